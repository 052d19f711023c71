"""Weighted reciprocal-rank fusion of a dense and a lexical ranking."""

from __future__ import annotations

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
    rows = [_fuse_row(d, b, weight, k) for d, b in zip(dense.ids, bm25.ids, strict=True)]
    return Ranking.from_rows(rows)


def _fuse_row(dense: list[str], bm25: list[str], weight: float, k: int) -> tuple[list[str], np.ndarray]:
    dense_rank = {skill_id: rank for rank, skill_id in enumerate(dense, start=1)}
    bm25_rank = {skill_id: rank for rank, skill_id in enumerate(bm25, start=1)}
    # The union in order of dense rank, then BM25 rank: a stable sort by score then breaks ties that way.
    union = list(dict.fromkeys([*dense, *bm25]))
    scores = np.array(
        [
            _reciprocal(weight, dense_rank.get(skill_id)) + _reciprocal(1 - weight, bm25_rank.get(skill_id))
            for skill_id in union
        ]
    )
    order = np.argsort(-scores, kind="stable")[:k]
    return [union[i] for i in order], scores[order]


def _reciprocal(weight: float, rank: int | None) -> float:
    return 0.0 if rank is None else weight / (RRF_OFFSET + rank)
