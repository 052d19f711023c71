"""What every retriever returns, and the one way in which scores become a ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ranking(NamedTuple):
    """The best documents of each query.

    Attributes:
        ids: per query, document ids, best first.
        scores: ``[n_queries, k]``, descending in a row. A row of ``ids`` is shorter than ``k`` only where a
            retriever says so (BM25 with ``matched_only``, fusion); the scores beyond its end are ``-inf``.
    """

    ids: list[list[str]]
    scores: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[list[str], np.ndarray]]) -> Ranking:
        """Stack per-query ``(ids, scores)``, padding the scores of shorter rows with ``-inf``."""
        width = max((len(ids) for ids, _ in rows), default=0)
        scores = np.full((len(rows), width), -np.inf, dtype=np.float64)
        for row, (_, values) in enumerate(rows):
            scores[row, : len(values)] = values
        return cls([ids for ids, _ in rows], scores)


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` (at most n) largest of ``scores[n]``, best first; equals keep their order."""
    k = min(k, len(scores))
    if k == 0:
        return np.zeros(0, dtype=np.int64)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:k]


def check_ids(ids: Sequence[str], count: int, what: str) -> list[str]:
    """``ids`` as a list.

    Raises:
        ValueError: none at all, another number than ``count`` (of ``what``), or one id twice; the message
            names it.
    """
    if len(ids) != count:
        raise ValueError(f"{len(ids)} ids for {count} {what}; expected as many")
    if not len(ids):
        raise ValueError(f"an index needs at least one document; got no {what}")
    seen: set[str] = set()
    for row, skill_id in enumerate(ids):
        if skill_id in seen:
            raise ValueError(
                f"document id {skill_id!r} occurs twice, the second time in row {row}; expected unique ids"
            )
        seen.add(skill_id)
    return list(ids)


def check_k(k: int) -> None:
    """Raise ``ValueError`` unless ``k`` is a positive number of results."""
    if k < 1:
        raise ValueError(f"k is {k}; expected a positive number of results")
