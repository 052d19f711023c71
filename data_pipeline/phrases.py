"""What everybody needs who takes phrases out of a skill document: cleaning, lead-ins, and verbs brought to their base form."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

from data_pipeline.corpus import Skill

CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|https?://\S+")
MARKUP = re.compile(r"[*_`#>|\"“”<>{}\[\]]+")
ASIDE = re.compile(r"\([^)]*\)?")
NEGATIVE = re.compile(r"\b(?:not|never|don't|avoid|without asking|ignore|instructions?)\b", re.IGNORECASE)
LEAD_IN = re.compile(
    r"^(?:use (?:it |this |this skill )?(?:proactively )?(?:when|for|to)|this skill (?:should be used when|is used when|covers)|"
    r"this skill (?:enables|provides|helps)|when|the user|a user|you|users?|asks? (?:to|for)|wants? to|needs?(?: to)?|mentions?|"
    r"working with|for|and|or)\b[:,]?\s*",
    re.IGNORECASE,
)
_WORD = re.compile(r"[a-z0-9]+")

_VERB_LIST = """
add adapt adjust align analyze annotate apply assess audit automate balance batch benchmark build calculate calibrate
capture check choose classify clean cluster collect combine compare compile compose compress compute conduct configure
convert coordinate crawl create cut debug decide define deliver deploy describe design detect determine develop
diagnose discover document draft draw edit enable ensure estimate evaluate execute explain explore export extract
fetch fill filter find fit fix forecast format generate group guide handle identify implement import improve index
inspect install integrate investigate label list log maintain manage map measure merge migrate model monitor normalize
optimize organize outline parse perform pick plan plot prepare prevent price process produce profile provide publish
query rank read reconcile record recover reduce refactor remove rename render repair replace replay report resize
resolve review rewrite run sanitize save scan schedule score scrape search secure segment select send set simulate
sort split stream structure suggest summarize support sync test trace track train transcribe transform translate tune
turn update upgrade validate verify visualize watch write
"""
VERBS = frozenset(_VERB_LIST.split())
_DOUBLED = frozenset({"cut", "fit", "log", "map", "plan", "plot", "run", "scan", "set", "split"})
_DANGLING_LIST = "a an and as at by for from in into of on or per than the to using via when with"
DANGLING = frozenset(_DANGLING_LIST.split())
NO_VERB = "take care of "
"""Stands before a phrase whose first word is no verb that we know."""


def strip_lead_in(text: str, lead_in: re.Pattern[str] = LEAD_IN) -> str:
    """``text`` from its first word that says something: ``use this when you draw maps`` as ``draw maps``."""
    while text != (shorter := lead_in.sub("", text, count=1)):
        text = shorter
    return text


def base_form(word: str, verbs: Container[str] = VERBS) -> str | None:
    """The base form among ``verbs`` of a lower-cased verb in its base, its ``-s`` or its ``-ing`` form."""
    stem = word[:-3] if word.endswith("ing") else word
    bases = [word, word.removesuffix("s"), word.removesuffix("es"), stem, f"{stem}e", stem[:-1]]
    return next((base for base in bases if base in verbs), None)


def gerund(action: str) -> str:
    """``plan trips`` as ``planning trips``, ``plan and book trips`` as ``planning and booking trips``."""
    if action.startswith(NO_VERB):
        return action.removeprefix(NO_VERB)
    words = action.split(" ")
    for place in leading_verbs(words):
        verb = words[place].rstrip(",")
        comma = words[place][len(verb) :]
        stem = verb + verb[-1] if verb in _DOUBLED else verb.removesuffix("e")
        words[place] = f"{stem}ing{comma}"
    return " ".join(words)


def leading_verbs(words: Sequence[str]) -> list[int]:
    """Places of the verbs that a phrase begins with: 0, 1 and 3 of ``review, audit, or improve the files``."""
    places = [0]
    while True:
        last = places[-1]
        joined = last + 1 < len(words) and words[last + 1] in ("and", "or")
        following = last + 1 + joined
        if (
            not (joined or words[last].endswith(","))
            or following >= len(words)
            or words[following].rstrip(",") not in VERBS
        ):
            return places
        places.append(following)


def words_of(text: str) -> list[str]:
    """Lower-cased runs of letters and digits."""
    return _WORD.findall(text.lower())


def names_skill(text: str, skill: Skill) -> bool:
    """Whether the words of the skill's name stand in ``text`` one after another."""
    name, words = words_of(skill.name), words_of(text)
    return bool(name) and any(words[i : i + len(name)] == name for i in range(len(words) - len(name) + 1))


def first_words(text: str, limit: int) -> str:
    """The first ``limit`` words, without a preposition, article or conjunction at the end."""
    words = text.split()[:limit]
    while len(words) > 1 and words[-1].lower().strip(",") in DANGLING:
        words.pop()
    return " ".join(words).rstrip(" ,;:")
