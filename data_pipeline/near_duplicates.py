"""Removing requests that say the same thing twice (D.1): dense neighbours first, then the words themselves."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from data_pipeline.quality import content_words

COSINE = 0.90
"""Requests at least this close are compared by their words. Ours: D.1 gives no number."""
WORD_JACCARD = 0.50
"""Content-word Jaccard from which two such requests say the same; shared terms of a field alone stay below it."""
NEIGHBOURS = 20


@dataclass(frozen=True)
class NearDuplicates:
    """Row numbers.

    Attributes:
        dropped: row -> the better row that says the same about the same target.
        disputed: pairs that say the same and have different targets: kept, for a review of their labels.
    """

    dropped: dict[int, int]
    disputed: list[tuple[int, int]]


def near_duplicates(
    queries: Sequence[str],
    targets: Sequence[str],
    scores: Sequence[float],
    embeddings: np.ndarray,
    *,
    cosine: float = COSINE,
    word_jaccard: float = WORD_JACCARD,
    among: AbstractSet[tuple[int, int]] | None = None,
    progress: bool = False,
) -> NearDuplicates:
    """Find requests of the same intent by exact inner product over unit rows ``embeddings[n, d]``, checked by their words.

    Of several with one target the highest score stays; equal scores are resolved by input order.

    Args:
        among: pairs (lower row, higher row) that another signal proposes; no other pair counts then.
    """
    from retrieval import DenseIndex

    if not queries:
        return NearDuplicates({}, [])
    index = DenseIndex([str(row) for row in range(len(queries))], embeddings)
    ranking = index.search(embeddings, min(NEIGHBOURS + 1, len(queries)), progress)
    words = [content_words(query) for query in queries]
    pairs: set[tuple[int, int]] = set()
    for row, (found, values) in enumerate(zip(ranking.ids, ranking.scores, strict=True)):
        for other, value in zip(map(int, found), values, strict=True):
            if value < cosine:
                break
            pair = (min(row, other), max(row, other))
            if other == row or (among is not None and pair not in among):
                continue
            if _jaccard(words[row], words[other]) >= word_jaccard:
                pairs.add(pair)
    order = {row: place for place, row in enumerate(sorted(range(len(queries)), key=lambda r: (-scores[r], r)))}
    dropped: dict[int, int] = {}
    disputed: list[tuple[int, int]] = []
    # The best first: a row that is dropped itself drops nobody.
    for better, worse in sorted(
        (sorted(pair, key=order.__getitem__) for pair in pairs), key=lambda p: [order[r] for r in p]
    ):
        if targets[better] != targets[worse]:
            disputed.append((min(better, worse), max(better, worse)))
        elif better not in dropped and worse not in dropped:
            dropped[worse] = better
    kept = [pair for pair in sorted(disputed) if not dropped.keys() & set(pair)]
    return NearDuplicates(dropped, kept)


def _jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    union = len(left | right)
    return len(left & right) / union if union else 1.0
