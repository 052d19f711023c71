"""Weak descriptions: missing, short, cut off, boilerplate, or without a word for what the skill does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from data_pipeline.corpus import INDEX_TEXT, Skill, SkillCorpus
from data_pipeline.isolation import normalize
from data_pipeline.phrases import base_form, words_of
from data_pipeline.quality import content_words
from data_pipeline.skill2query.parsing.verbs import KNOWN
from models.views import DESCRIPTION_CHARS

SHORT_WORDS = 6
"""Content words, the name's own not counted, below which a description is short."""
PHRASE = 5
"""Words of a phrase that counts as boilerplate where enough descriptions share it."""
SHARED_BY = 4
"""Descriptions that have such a phrase, this one included."""
BOILERPLATE = 0.5
"""Share of a description's words inside shared phrases from which it is boilerplate."""

Weakness = Literal["missing", "repeats_name", "short", "no_capability", "boilerplate", "cut"]


@dataclass(frozen=True)
class Weak:
    """One weakness of one description.

    Attributes:
        skill: row of the skill.
        kind: ``missing``; ``repeats_name``: no content word beside the name's; ``short``: fewer than six of them;
            ``no_capability``: no verb that says what it does; ``boilerplate``: half of its words in phrases that others have;
            ``cut``: at least six content words come after what retrievers read.
        amount: content words, percent of boilerplate, or characters, by kind; 0 where there is nothing to count.
        quote: the shared phrase, or where the part begins that is not read.
        others: descriptions that share the phrase.
    """

    skill: int
    kind: Weakness
    amount: int = 0
    quote: str = ""
    others: int = 0


def weak_descriptions(corpus: SkillCorpus) -> list[Weak]:
    """All weaknesses of all descriptions, in corpus order."""
    words = [words_of(skill.description) for skill in corpus]
    phrases = Counter(phrase for own in words for phrase in set(_phrases(own)))
    shared = {phrase: count for phrase, count in phrases.items() if count >= SHARED_BY}
    out: list[Weak] = []
    for row, skill in enumerate(corpus):
        if not skill.description.strip():
            out.append(Weak(row, "missing"))
            continue
        own = content_words(skill.description) - content_words(skill.name)
        if not own or normalize(skill.description) == normalize(skill.name):
            out.append(Weak(row, "repeats_name"))
        elif len(own) < SHORT_WORDS:
            out.append(Weak(row, "short", len(own)))
        if own and not any(base_form(word, KNOWN) for word in words[row]) and _is_english(skill):
            out.append(Weak(row, "no_capability"))
        found = _boilerplate(words[row], shared)
        if found is not None:
            share, phrase = found
            out.append(Weak(row, "boilerplate", round(100 * share), " ".join(phrase), shared[phrase] - 1))
        _, unread = as_read(skill)
        if len(content_words(unread)) >= SHORT_WORDS:
            out.append(Weak(row, "cut", len(skill.description), " ".join(unread.split()[:12])))
    return out


def as_read(skill: Skill) -> tuple[str, str]:
    """A description as far as retrievers read it, and the rest, from the word that the limit cuts in two."""
    text = skill.description
    if len(text) <= DESCRIPTION_CHARS or INDEX_TEXT in skill.metadata:
        return text, ""
    words = text[: DESCRIPTION_CHARS + 1].rsplit(None, 1)
    end = len(words[0]) if len(words) > 1 else DESCRIPTION_CHARS
    return text[:end], text[end:]


def _phrases(words: list[str]) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + PHRASE]) for i in range(len(words) - PHRASE + 1)]


def _boilerplate(words: list[str], shared: dict[tuple[str, ...], int]) -> tuple[float, tuple[str, ...]] | None:
    """The share of the words that stand in a shared phrase, and the most shared one; None where it is too small."""
    places = [(place, phrase) for place, phrase in enumerate(_phrases(words)) if phrase in shared]
    covered = {word for place, _ in places for word in range(place, place + PHRASE)}
    if not places or len(covered) < BOILERPLATE * len(words):
        return None
    return len(covered) / len(words), max((phrase for _, phrase in places), key=lambda phrase: shared[phrase])


def _is_english(skill: Skill) -> bool:
    """Whether the verb list can judge a description: most of its letters are ASCII, and it has an English function word."""
    letters = [c for c in skill.description if c.isalpha()]
    content = content_words(skill.description)
    has_function_word = any(word not in content for word in words_of(skill.description))
    return has_function_word and sum(c.isascii() for c in letters) >= 0.9 * len(letters)
