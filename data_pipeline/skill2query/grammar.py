"""English around slots: articles, number and plural agreement (A.3), gerunds; by ``inflect``, its slips put right."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any


def word_set(words: str) -> frozenset[str]:
    """The words of a text with spaces between them."""
    return frozenset(words.split())


FUNCTION_WORDS = word_set(
    """
    a an the and or but nor in on at to of for from with without by per via into onto over under about as than
    then that which who is are was were be been am has have had do does can could will would should my our your
    their his her its using set so if
    """
)
"""Words that end the noun phrase after a number."""

_SINGULAR_S = ("ss", "us", "is", "os")
_AN_EXCEPTIONS = ("url", "uri", "usb", "us", "utf", "uuid", "use", "unix", "uni")
_PLURAL_VERBS = {"are": "is", "were": "was", "Are": "Is", "Were": "Was"}


def article(word: str) -> str:
    """``a`` or ``an`` before a word or a number."""
    engine = _engine()
    if word[:1].isdigit():
        word = engine.number_to_words(re.match(r"\d+", word).group())  # type: ignore[union-attr]
    if word.lower().startswith(_AN_EXCEPTIONS):
        return "a"
    return engine.a(word).split()[0]


@lru_cache(maxsize=4096)
def singular(word: str) -> str | None:
    """The singular of a plural noun; None for any other word."""
    lower = word.lower()
    if not re.fullmatch(r"[A-Za-z]{3,}", word) or lower.endswith(_SINGULAR_S):
        return None
    found = _engine().singular_noun(word)
    return found if isinstance(found, str) and found != word else None


@lru_cache(maxsize=4096)
def plural(word: str) -> str:
    """The plural of a singular noun."""
    return _engine().plural_noun(word)


@lru_cache(maxsize=2048)
def gerund(action: str) -> str:
    """``plan trips`` as ``planning trips``."""
    verb, space, rest = action.partition(" ")
    form = _engine().present_participle(verb)
    # inflect doubles the last letter of unstressed syllables, too: "auditting"
    if form == f"{verb}{verb[-1]}ing" and len(re.findall("[aeiouy]+", verb)) > 1 and verb not in _STRESSED_AT_END:
        form = f"{verb}ing"
    return f"{form}{space}{rest}"


def agree(before: str, value: str, after: str) -> tuple[str, str]:
    """The text on both sides of a filled number, with nouns, verbs and articles that agree with it (A.3).

    A plural noun after 1 becomes singular (``1 identical round table``); a singular noun directly after another number becomes
    plural (``5 people``), unless an article says that number and noun qualify what follows (``a 30 second timeout``); "are 1"
    becomes "is 1".
    """
    one = float(value) == 1
    words = re.split(r"(\s+)", after)  # words at even places, white space between them
    run: list[int] = []
    for place in range(0, len(words), 2):
        word = words[place]
        core = word.strip(".,;:!?")
        if place == 0:
            if word:
                break  # glued to the number: "30-second", "1."
            continue
        if not re.fullmatch(r"[A-Za-z]+", core) or core.lower() in FUNCTION_WORDS or len(run) == 4:
            break
        run.append(place)
        if core != word:
            break
    if one:
        for place in reversed(run):
            if single := singular(words[place].strip(".,;:!?")):
                words[place] = words[place].replace(words[place].strip(".,;:!?"), single)
                break
        verb = re.search(r"(\w+)(\s+)$", before)
        if verb and verb[1] in _PLURAL_VERBS:
            before = before[: verb.start(1)] + _PLURAL_VERBS[verb[1]] + verb[2]
    elif len(run) == 1 and not re.search(r"\b(?:an?|the|every|each|per)\s+$", before, re.I):
        core = words[run[0]].strip(".,;:!?")
        if not singular(core) and not plural_like(core):
            words[run[0]] = words[run[0]].replace(core, plural(core))
    return before, "".join(words)


def plural_like(word: str) -> bool:
    """Words that stay as they are after a number: plurals without an s, abbreviated units, adverbs."""
    lower = word.lower()
    return lower in _UNCHANGED or lower.endswith(("ss", "ly", "s")) or lower != word or len(word) < 3


_STRESSED_AT_END = word_set(
    """
    bootstrap commit debug emit embed format reset submit input refer transfer defer prefer infer control unzip rerun begin
    forget permit admit transmit omit
    """
)
_UNCHANGED = word_set(
    """
    people children men women data news series media px ms kb mb gb fps dpi percent more less each other times
    """
)


@lru_cache(maxsize=1)
def _engine() -> Any:
    import inflect  # takes a moment to import

    return inflect.engine()
