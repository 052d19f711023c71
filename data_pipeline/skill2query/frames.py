"""Sentence frames of the four forms (3.3.2) around a verb phrase, in the person and tone of a style."""

from __future__ import annotations

import re
from collections.abc import Mapping

from data_pipeline.skill2query.grammar import gerund
from data_pipeline.skill2query.pseudo_query import Form
from data_pipeline.skill2query.style import Style
from data_pipeline.skill2query.wording import pick

SHORT_WORDS, LONG_WORDS = 8, 17
"""Median words of a request up to which a style is short, and from which it is long."""

# <act> is the verb phrase, <ing> its gerund, <I>, <me>, <my> the person who asks. A frame with <ing> takes one verb only.
FRAMES: Mapping[Form, tuple[str, ...]] = {
    Form.IMPERATIVE: (
        "<act>.",
        "Help <me> <act>.",
        "Show <me> how to <act>.",
        "<act> for <me>.",
        "Please <act>.",
        "Walk <me> through <ing>.",
        "Give <me> a hand with <ing>.",
        "Guide <me> as <I> <act>.",
        "Please help <me> <act>.",
        "Tell <me> how to <act>.",
        "Start <ing> for <me>.",
        "Explain how <I> can <act>.",
        "Let's <act>.",
    ),
    Form.YES_NO: (
        "Can you <act>?",
        "Can you help <me> <act>?",
        "Is there a way to <act>?",
        "Is it possible to <act>?",
        "Could you <act>?",
        "Would you be able to <act>?",
        "Are you able to <act>?",
        "Do you know how to <act>?",
        "Can <I> get help with <ing>?",
        "Could you please <act>?",
        "Would you mind <ing>?",
        "Can you show <me> how to <act>?",
        "Is there an easy way to <act>?",
        "Could somebody <act> for <me>?",
        "Any idea how to <act>?",
        "Can anyone tell <me> how to <act>?",
    ),
    Form.WH: (
        "How do <I> <act>?",
        "What is the best way to <act>?",
        "How can <I> <act>?",
        "How should <I> go about <ing>?",
        "What do <I> need to <act>?",
        "What are the steps to <act>?",
        "How would you <act>?",
        "What's the right way to <act>?",
        "What does it take to <act>?",
        "Where do <I> start if <I> want to <act>?",
        "What is a good approach to <ing>?",
        "How do people usually <act>?",
        "What's the quickest way to <act>?",
        "Which steps do <I> follow to <act>?",
        "What should <I> do first to <act>?",
    ),
    Form.INDIRECT: (
        "<I> need to <act>.",
        "<I> want to <act>.",
        "<I'd> like to <act>.",
        "<I'm> trying to <act>.",
        "<I> have to <act>.",
        "<I'm> looking for a way to <act>.",
        "<I> could use some help with <ing>.",
        "<I> was hoping you could <act>.",
        "<I'm> not sure how to <act>.",
        "<my> next task is to <act>.",
        "<I'd> appreciate help with <ing>.",
        "It would help if you could <act>.",
        "<I> need someone to <act>.",
        "<I've> been asked to <act>.",
        "<I> don't know how to <act> yet.",
        "The plan is to <act>.",
    ),
}

CLOSINGS = (
    "It has to be ready by Friday.",
    "<I> have not done this before.",
    "Keep it as simple as you can.",
    "Tell <me> what you had to assume.",
    "Others will have to work with the result.",
    "Say which steps <I> should check.",
    "<I> would rather get it right than fast.",
    "A short explanation would be good, too.",
)
"""A second sentence for the skills whose examples are long."""

BACKGROUNDS = (
    "<I'm> <ing>.",
    "<I> have to <act>.",
    "<I'm> about to <act>.",
    "<my> job is to <act>.",
    "This is for a project where <I> have to <act>.",
)
"""What a person says first about the work that the request is part of."""

PURPOSES = ("while <ing>", "as part of <ing>", "so that <I> can <act>", "before <I> <act>")
"""The same, after the request."""

_PERSONS = {
    "I": {"I": "I", "me": "me", "my": "my", "I'd": "I'd", "I'm": "I'm", "I've": "I've", "was": "was"},
    "we": {"I": "we", "me": "us", "my": "our", "I'd": "we'd", "I'm": "we're", "I've": "we've", "was": "were"},
}
_TOKEN = re.compile(r"<(I'd|I'm|I've|I|me|my)>( was\b)?")
_POLITE = re.compile(r"(?i)please|could|would|appreciate|hoping|help if")
_SEVERAL = re.compile(r",|\b(?:and|or)\b|/")


def sentence(form: Form, action: str, slots: str, style: Style, *key: object, background: str = "") -> str:
    """A sentence of this form that asks for ``action`` with the slot phrases ``slots``; ``key`` decides between the frames.

    ``background`` is another verb phrase: the work that the request is part of, told before or after it.
    """
    person = style.person or "I"
    before, purpose = _told(_owned(background, person), person, key) if background else ("", "")
    slots = " ".join(part for part in (slots, purpose) if part)
    fitting = [frame for frame in FRAMES[form] if _fits(frame, action, slots)]
    wanted = pick(100, "tone", *key) < 100 * style.polite
    toned = [frame for frame in fitting if bool(_POLITE.search(frame)) == wanted] or fitting
    text = _with_action(toned[pick(len(toned), *key)], _owned(action, person), slots, person)
    closing = _in_person(CLOSINGS[pick(len(CLOSINGS), "closing", *key)], person) if style.words >= LONG_WORDS else ""
    return " ".join(part[0].upper() + part[1:] for part in (before, text, closing) if part)


def _told(background: str, person: str, key: tuple[object, ...]) -> tuple[str, str]:
    """A sentence before the request, or words after it, that tell the background; the other one is empty."""
    shapes = [shape for shape in (*BACKGROUNDS, *PURPOSES) if "<ing>" not in shape or not _SEVERAL.search(background)]
    shape = shapes[pick(len(shapes), "background", *key)]
    text = _with_action(shape, background, "", person)
    return (text, "") if shape in BACKGROUNDS else ("", text)


def _with_action(frame: str, action: str, after: str, person: str) -> str:
    text, after = _in_person(frame, person), f" {after}" if after else ""
    return text.replace("<ing>", gerund(action) + after) if "<ing>" in text else text.replace("<act>", action + after)


def _owned(action: str, person: str) -> str:
    return _in_person(re.sub(r"\b(my|me)\b", r"<\1>", action), person)


def _fits(frame: str, action: str, slots: str) -> bool:
    if "<ing>" in frame and (_SEVERAL.search(action) or "and " in slots):
        return False
    if frame.endswith(("for <me>.", "for <me>?")):
        return not slots and len(action.split()) < 9 and not re.search(r"\bfor\b", action)
    return not (re.search(r"\bhow\b", action) and "how" in frame.lower())


def _in_person(text: str, person: str) -> str:
    words = _PERSONS[person]

    def put(match: re.Match[str]) -> str:
        return words[match[1]] + (f" {words['was']}" if match[2] else "")

    return _TOKEN.sub(put, text)
