"""Requests, rationales and rewrites made from a skill's own text by rules: what the offline teacher writes.

The sentences are plain and somewhat wooden, since no rule understands a document. They are deterministic, true to the skill's
words, and free of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

from data_pipeline.corpus import Skill
from data_pipeline.phrases import (
    ASIDE,
    CODE_BLOCK,
    DANGLING,
    LINK,
    MARKUP,
    NEGATIVE,
    NO_VERB,
    base_form,
    first_words,
    gerund,
    leading_verbs,
    names_skill,
    strip_lead_in,
    words_of,
)
from data_pipeline.teacher.forms import MAX_RATIONALE_WORDS
from data_pipeline.teacher.untrusted import clean_text

MIN_WORDS, MAX_WORDS = 3, 18
"""Of a phrase that can stand in a request."""
MAX_PHRASES = 24

_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(.+)")
_HEADING = re.compile(r"\s*(?:#|\*\*[^*]+\*\*:?\s*$)")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")
_TOOL = re.compile(r".*(?:[a-z][A-Z]|[A-Z]{2}|\d|[/\\.@=_(]).*")  # CamelCase, ACRONYMS, versions, paths, code


class OfflineWriter(Protocol):
    """What the offline teacher needs from whoever writes for it. Text that a skill does not give is an empty list or string."""

    def requests(self, skill: Skill, count: int) -> list[str]:
        """Up to ``count`` different explicit requests."""
        ...

    def capability(self, skill: Skill, request: str) -> str:
        """The rationale of a request: "The user needs skills for …", under 32 words."""
        ...

    def implicit(self, skill: Skill, request: str) -> str:
        """The request without the skill's name and the names of tools."""
        ...

    def compound(self, skills: Sequence[Skill]) -> tuple[str, list[str]]:
        """One task that needs all the skills, and the part of it that each is needed for."""
        ...


class TextWriter:
    """Writes from descriptions, list items and headings."""

    def requests(self, skill: Skill, count: int) -> list[str]:
        found = actions(skill)
        made: list[str] = []
        for number in range(count if found else 0):
            first, second = (found[(number + step) % len(found)] for step in (0, 1))
            if number >= len(found) or first == second:
                second = ""
            made.append(_explicit(first, second, number))
        return list(dict.fromkeys(made))

    def capability(self, skill: Skill, request: str) -> str:
        return rationale_of(_closest(skill, request))

    def implicit(self, skill: Skill, request: str) -> str:
        things = [thing for action in _closest(skill, request) if (thing := object_of(action, skill))]
        if not things:
            return ""
        rest = f", and the same goes for {things[1]}" if len(things) > 1 else ""
        return (
            f"I keep losing time over {things[0]}{rest}. I do not know how this is done properly; please get me to a result "
            "that I can use and check."
        )

    def compound(self, skills: Sequence[Skill]) -> tuple[str, list[str]]:
        needs: list[str] = []
        for skill in skills:
            found = [action for action in actions(skill) if action not in needs]
            if not found:
                return "", []
            needs.append(found[0])
        steps = "; then ".join(needs)
        return (
            f"I have one piece of work with several parts: {steps}. Hand me a single result in which they fit together.",
            needs,
        )


def rationale_of(needs: Sequence[str]) -> str:
    """G.3's sentence on a few actions, under 32 words; empty where there are none."""
    if not needs:
        return ""
    room = (MAX_RATIONALE_WORDS - 5) // len(needs) - 1  # five words of the pattern, one "and" each
    return f"The user needs skills for {' and '.join(first_words(gerund(need), room) for need in needs)}."


@lru_cache(maxsize=1024)
def actions(skill: Skill) -> tuple[str, ...]:
    """What the skill does, as phrases that begin with a verb: ``extract tables from scanned pages``; none names the skill."""
    found: dict[str, str] = {}
    for phrase in _phrases(skill):
        action = _as_action(phrase)
        if not names_skill(action, skill):
            found.setdefault(action.lower(), action)
        if len(found) == MAX_PHRASES:
            break
    return tuple(found.values())


def _phrases(skill: Skill) -> Iterator[str]:
    body = CODE_BLOCK.sub("\n", clean_text(skill.body[:20_000]))
    for source in (*_SENTENCE_END.split(clean_text(skill.description)), *_items(body)):
        text = " ".join(MARKUP.sub(" ", ASIDE.sub(" ", LINK.sub(r"\1", source))).split()).replace(" ,", ",")
        text = strip_lead_in(text)
        text = re.split(r"[.:!?;]\s|\s[-–—→]+\s", text)[0].strip(" .,;:!?-–—→()'")
        if len(text.split()) >= MIN_WORDS and not NEGATIVE.search(text) and text.isprintable():
            yield first_words(text, MAX_WORDS)


def _items(body: str) -> Iterator[str]:
    """List items, but for those under a heading that says what the skill is not for."""
    skipped = False
    for line in body.splitlines():
        if _HEADING.match(line):
            skipped = bool(NEGATIVE.search(line))
        elif not skipped and (item := _ITEM.fullmatch(line)):
            yield item.group(1)


def _as_action(phrase: str) -> str:
    first, _, rest = phrase.partition(" ")
    word = first.lower()
    verb = base_form(word)
    if verb:
        return f"{verb} {rest}"
    return f"{NO_VERB}{word if first[1:].islower() else first} {rest}"


def _explicit(first: str, second: str, number: int) -> str:
    also = (
        f"Please also {second}, and say what you had to assume.",
        f"Along the way, {second} as well.",
        f"Somebody should also {second}.",
    )
    frames = (
        f"I need to {first} and get back something that I can check.",
        f"Could you {first} for me, with the material that I already have at hand?",
        f"We have to {first} before the end of the week, and nobody here has done it before.",
    )
    kind = number % len(frames)
    return f"{frames[kind]} {also[kind]}" if second else frames[kind]


def _closest(skill: Skill, request: str, count: int = 2) -> list[str]:
    """The actions that share most words with the request, best first; ties in the skill's order."""
    wanted = set(words_of(request))
    scored = [
        (-len(wanted & set(words_of(a))) / len(words_of(a)), i, a) for i, a in enumerate(actions(skill)) if words_of(a)
    ]
    return [action for _, _, action in sorted(scored)[:count]]


def object_of(action: str, skill: Skill) -> str:
    """The action without its verbs, without tools, and without the words of the skill's name."""
    named = set(words_of(skill.name))
    words = action.removeprefix(NO_VERB).split()
    kept = [
        word
        for word in (words if action.startswith(NO_VERB) else words[leading_verbs(words)[-1] + 1 :])
        if not _TOOL.fullmatch(word.strip(".,;:()'")) and not (set(words_of(word)) & named)
    ]
    while kept and kept[-1].lower().strip(",") in DANGLING:
        kept.pop()
    while kept and kept[0].lower().strip(",") in DANGLING - {"the", "a", "an"}:
        kept.pop(0)
    return " ".join(kept).strip(" ,") if len(kept) >= 2 else ""
