"""The deterministic quality score of D.1, which says which requests are looked at first; it is no training weight."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from data_pipeline.corpus import Skill
from data_pipeline.validation import MAX_QUERY_WORDS, MIN_QUERY_WORDS

META_PHRASES = (
    "sample query",
    "example query",
    "sample request",
    "example request",
    "trigger this skill",
    "use this skill",
    "this skill",
    "the skill",
    "user query",
    "as an ai",
)
"""Words of somebody who writes test data, not of somebody who wants something done."""

GOOD_WORDS = (25, 70)
"""Requests of this many words get the whole length score; it falls to 0 at D.1's bounds of 8 and 110."""
GOOD_OVERLAP = 0.3
"""Share of a request's content words in its target's name and description from which more overlap earns nothing."""

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class QualityScore:
    """``total`` and its parts, each 0..1: higher is better for ``length`` and ``overlap``, worse for the others.

    ``label_risk`` is 1 where a negative shares more of the request's words than the labeled target does: perhaps a wrong label,
    perhaps just the fine-grained negative that training needs. Such a row is ranked lower, never deleted.
    """

    total: float
    length: float
    overlap: float
    meta_language: float
    label_risk: float


def content_words(text: str) -> frozenset[str]:
    """Lower-cased words of two and more characters without function words."""
    stop_words = _stop_words()
    return frozenset(w for w in _WORD.findall(text.lower()) if len(w) > 1 and w not in stop_words)


def lexical_overlap(query: str, skill: Skill) -> float:
    """Share (0..1) of the request's content words that stand in the skill's name or description."""
    words = content_words(query)
    return len(words & content_words(f"{skill.name} {skill.description}")) / len(words) if words else 0.0


def quality_score(query: str, positive: Skill, negatives: Sequence[Skill]) -> QualityScore:
    """Length + ½ overlap − meta-language − ½ label risk (the weights are ours; D.1 names the parts)."""
    length = _length_score(len(query.split()))
    own = lexical_overlap(query, positive)
    overlap = min(own / GOOD_OVERLAP, 1.0)
    folded = " ".join(query.lower().split())
    meta = min(1.0, 0.5 * sum(phrase in folded for phrase in META_PHRASES))
    risk = float(any(lexical_overlap(query, negative) > own for negative in negatives))
    return QualityScore(round(length + 0.5 * overlap - meta - 0.5 * risk, 6), length, overlap, meta, risk)


def _length_score(words: int) -> float:
    low, high = GOOD_WORDS
    if words < low:
        return max(0.0, (words - MIN_QUERY_WORDS) / (low - MIN_QUERY_WORDS))
    if words > high:
        return max(0.0, (MAX_QUERY_WORDS - words) / (MAX_QUERY_WORDS - high))
    return 1.0


@cache
def _stop_words() -> frozenset[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return ENGLISH_STOP_WORDS
