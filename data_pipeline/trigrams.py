"""Character-trigram Jaccard similarity of skill documents, which tells copies from mere neighbours (D.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from data_pipeline.corpus import Skill

COPY_BODY_CHARS = 4000
"""Characters of the folded body that are compared: more than a retriever sees, so that forks that differ late differ."""


def copy_text(skill: Skill) -> str:
    """The compared text: name, description and the first 4,000 characters of the body, lower-cased, white space folded."""
    name, description, body = (" ".join(text.lower().split()) for text in (skill.name, skill.description, skill.body))
    return f"{name} {description} {body[:COPY_BODY_CHARS]}"


class TrigramSets:
    """The trigram sets of many texts, packed so that a pair costs microseconds; exact, nothing is hashed."""

    def __init__(self, texts: Iterable[str]) -> None:
        codes = [_trigram_codes(text) for text in texts]
        vocabulary = _sorted_union(codes)
        # Positions in the vocabulary index the mark table below; 32 bits halve the memory of 65,714 documents.
        self._sets = [np.searchsorted(vocabulary, code).astype(np.int32) for code in codes]
        self._marks = np.zeros(len(vocabulary), dtype=bool)

    def __len__(self) -> int:
        return len(self._sets)

    def jaccard_to(self, left: int, others: Sequence[int]) -> np.ndarray:
        """J(left, other) = |A ∩ B| / |A ∪ B| for each of ``others``: float64 ``[len(others)]``; 0 where both are empty."""
        mine = self._sets[left]
        self._marks[mine] = True
        scores = np.zeros(len(others))
        for i, other in enumerate(others):
            theirs = self._sets[other]
            shared = int(np.count_nonzero(self._marks[theirs]))
            union = len(mine) + len(theirs) - shared
            scores[i] = shared / union if union else 0.0
        self._marks[mine] = False
        return scores


def _trigram_codes(text: str) -> np.ndarray:
    """Sorted distinct trigrams as int64: three code points of 21 bits each."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    if len(points) < 3:
        return np.zeros(0, dtype=np.int64)
    return np.unique((points[:-2] << 42) | (points[1:-1] << 21) | points[2:])


def _sorted_union(codes: Sequence[np.ndarray], chunk: int = 2048) -> np.ndarray:
    union = np.zeros(0, dtype=np.int64)
    for start in range(0, len(codes), chunk):
        union = np.unique(np.concatenate([union, *codes[start : start + chunk]]))
    return union
