"""Reciprocal-rank fusion of several rankings of the same documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.ranking import Ranking, check_k

RRF_OFFSET = 60


def fuse(dense: Ranking, bm25: Ranking, weight: float, k: int) -> Ranking:
    """Fuse the union of both lists by ``w/(60 + rank_dense) + (1 - w)/(60 + rank_BM25)``, ranks from 1.

    A document that one list lacks gets nothing from it. Equal scores are ordered by dense rank, then by BM25
    rank, so weight 1 keeps the dense order and weight 0 the BM25 order. Pass BM25 results searched with
    ``matched_only=True``: the order of documents that share no word with the request says nothing and must
    not earn a score.

    Args:
        dense: the dense retriever's top list per query.
        bm25: BM25's top list for the same queries.
        weight: w, between 0 (BM25 alone) and 1 (dense alone).
        k: results per query; clipped to the union, whose size can differ by query.

    Raises:
        ValueError: weight or k out of range, or rankings of different numbers of queries.
    """
    check_k(k)
    if not 0 <= weight <= 1:
        raise ValueError(f"fusion weight is {weight}; expected a number between 0 (BM25 alone) and 1 (dense alone)")
    if len(dense.ids) != len(bm25.ids):
        raise ValueError(f"{len(dense.ids)} dense rankings and {len(bm25.ids)} of BM25; expected the same queries")
    rows = [fuse_lists(lists, k, (weight, 1 - weight)) for lists in zip(dense.ids, bm25.ids, strict=True)]
    return Ranking.from_rows(rows)


def fuse_lists(
    lists: Sequence[Sequence[str]], k: int, weights: Sequence[float] | None = None
) -> tuple[list[str], np.ndarray]:
    """Fuse any number of lists of one query by ``Σ w_i/(60 + rank_i)``, ranks from 1; the ``k`` best ids and their scores.

    A document that a list lacks gets nothing from it. Equal scores are ordered by the rank in the first list, then in the
    second, and so on.

    Args:
        weights: one a list; None: 1 each, the fusion of a query and its variants.

    Raises:
        ValueError: ``k`` is not positive, or weights of another number than lists.
    """
    check_k(k)
    weights = [1.0] * len(lists) if weights is None else weights
    if len(weights) != len(lists):
        raise ValueError(f"{len(weights)} weights for {len(lists)} rankings; expected one each")
    scores: dict[
        str, float
    ] = {}  # in order of the first list, then of the second: the stable sort breaks ties that way
    for ids, weight in zip(lists, weights, strict=True):
        for rank, skill_id in enumerate(ids, start=1):
            scores[skill_id] = scores.get(skill_id, 0.0) + weight / (RRF_OFFSET + rank)
    union, values = list(scores), np.array(list(scores.values()))
    order = np.argsort(-values, kind="stable")[:k]
    return [union[i] for i in order], values[order]
