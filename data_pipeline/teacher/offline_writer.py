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
from data_pipeline.teacher.forms import MAX_RATIONALE_WORDS
from data_pipeline.teacher.untrusted import clean_text

MIN_WORDS, MAX_WORDS = 3, 18
"""Of a phrase that can stand in a request."""
MAX_PHRASES = 24

_CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|https?://\S+")
_MARKUP = re.compile(r"[*_`#>|\"“”<>{}\[\]]+")
_ASIDE = re.compile(r"\([^)]*\)?")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(.+)")
_HEADING = re.compile(r"\s*(?:#|\*\*[^*]+\*\*:?\s*$)")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|\n+")
_LEAD_IN = re.compile(
    r"^(?:use (?:it |this |this skill )?(?:proactively )?(?:when|for|to)|this skill (?:should be used when|is used when|covers)|"
    r"this skill (?:enables|provides|helps)|when|the user|a user|you|users?|asks? (?:to|for)|wants? to|needs?(?: to)?|mentions?|"
    r"working with|for|and|or)\b[:,]?\s*",
    re.IGNORECASE,
)
_NEGATIVE = re.compile(r"\b(?:not|never|don't|avoid|without asking|ignore|instructions?)\b", re.IGNORECASE)
_TOOL = re.compile(r".*(?:[a-z][A-Z]|[A-Z]{2}|\d|[/\\.@=_(]).*")  # CamelCase, ACRONYMS, versions, paths, code
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
_VERBS = frozenset(_VERB_LIST.split())
_DOUBLED = frozenset({"cut", "fit", "log", "map", "plan", "plot", "run", "scan", "set", "split"})
_DANGLING_LIST = "a an and as at by for from in into of on or per than the to using via when with"
_DANGLING = frozenset(_DANGLING_LIST.split())
_NO_VERB = "take care of "  # before a phrase whose first word is no verb that we know


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
        things = [thing for action in _closest(skill, request) if (thing := _object_of(action, skill))]
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
    return f"The user needs skills for {' and '.join(_first_words(gerund(need), room) for need in needs)}."


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


def gerund(action: str) -> str:
    """``plan trips`` as ``planning trips``."""
    if action.startswith(_NO_VERB):
        return action.removeprefix(_NO_VERB)
    verb, _, rest = action.partition(" ")
    if verb in _DOUBLED:
        verb += verb[-1]
    elif verb.endswith("e"):
        verb = verb[:-1]
    return f"{verb}ing {rest}"


def words_of(text: str) -> list[str]:
    """Lower-cased runs of letters and digits."""
    return _WORD.findall(text.lower())


def names_skill(text: str, skill: Skill) -> bool:
    """Whether the words of the skill's name stand in ``text`` one after another."""
    name, words = words_of(skill.name), words_of(text)
    return bool(name) and any(words[i : i + len(name)] == name for i in range(len(words) - len(name) + 1))


def _phrases(skill: Skill) -> Iterator[str]:
    body = _CODE_BLOCK.sub("\n", clean_text(skill.body[:20_000]))
    for source in (*_SENTENCE_END.split(clean_text(skill.description)), *_items(body)):
        text = " ".join(_MARKUP.sub(" ", _ASIDE.sub(" ", _LINK.sub(r"\1", source))).split()).replace(" ,", ",")
        while text != (shorter := _LEAD_IN.sub("", text)):
            text = shorter
        text = re.split(r"[.:!?;]\s|\s[-–—→]+\s", text)[0].strip(" .,;:!?-–—→()'")
        if len(text.split()) >= MIN_WORDS and not _NEGATIVE.search(text) and text.isprintable():
            yield _first_words(text, MAX_WORDS)


def _items(body: str) -> Iterator[str]:
    """List items, but for those under a heading that says what the skill is not for."""
    skipped = False
    for line in body.splitlines():
        if _HEADING.match(line):
            skipped = bool(_NEGATIVE.search(line))
        elif not skipped and (item := _ITEM.fullmatch(line)):
            yield item.group(1)


def _as_action(phrase: str) -> str:
    first, _, rest = phrase.partition(" ")
    word = first.lower()
    stem = word[:-3] if word.endswith("ing") else word
    bases = [word, word.removesuffix("s"), word.removesuffix("es"), stem, f"{stem}e", stem[:-1]]
    verb = next((base for base in bases if base in _VERBS), None)
    if verb:
        return f"{verb} {rest}"
    return f"{_NO_VERB}{word if first[1:].islower() else first} {rest}"


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


def _object_of(action: str, skill: Skill) -> str:
    """The action without its verb, without tools, and without the words of the skill's name."""
    named = set(words_of(skill.name))
    kept = [
        word
        for word in (action.removeprefix(_NO_VERB) if action.startswith(_NO_VERB) else action.partition(" ")[2]).split()
        if not _TOOL.fullmatch(word.strip(".,;:()'")) and not (set(words_of(word)) & named)
    ]
    while kept and kept[-1].lower().strip(",") in _DANGLING:
        kept.pop()
    while kept and kept[0].lower().strip(",") in _DANGLING - {"the", "a", "an"}:
        kept.pop(0)
    return " ".join(kept).strip(" ,") if len(kept) >= 2 else ""


def _first_words(text: str, limit: int) -> str:
    words = text.split()[:limit]
    while len(words) > 1 and words[-1].lower().strip(",") in _DANGLING:
        words.pop()
    return " ".join(words).rstrip(" ,;:")
