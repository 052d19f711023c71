"""The one weight of BM25 and dense fusion, chosen on held-out training requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evaluation.metrics import NDCG_DEPTH, Qrels, evaluate_ranking
from retrieval.fusion import fuse
from retrieval.ranking import Ranking

WEIGHT_GRID = tuple(i / 10 for i in range(11))


class FusionChoice(NamedTuple):
    """The best weight, and the metrics (``recall@k``, ``ndcg@10``, ...) at every ``weight`` tried."""

    weight: float
    curve: list[dict[str, float]]


def choose_fusion_weight(
    dense: Ranking,
    bm25: Ranking,
    qrels: Qrels,
    query_ids: Sequence[str],
    grid: Sequence[float] = WEIGHT_GRID,
    metric: str = "recall@10",
) -> FusionChoice:
    """Try each weight of ``grid`` and keep the one with the best ``metric``.

    Of equal weights the one with the higher ``ndcg@10`` wins, then the one nearest to 0.5 (a weight in the
    middle relies on neither list alone), then the smaller. Test requests have no place here: pass training
    requests that were held out.

    Args:
        dense, bm25: top lists of the same queries, BM25's searched with ``matched_only=True``.
        qrels: relevant skills by query id.
        query_ids: the query of each list.
        grid: weights between 0 (BM25 alone) and 1 (dense alone).
        metric: ``recall@k``, ``ndcg@k`` or ``mrr``.

    Raises:
        ValueError: an empty grid, an unknown metric, and what :func:`evaluation.metrics.evaluate_ranking`
            refuses.
    """
    if not grid:
        raise ValueError("the grid of fusion weights is empty; expected numbers between 0 and 1")
    depth = max(NDCG_DEPTH, _metric_depth(metric))
    ks = sorted({1, 5, 10, depth})
    longest = max((len(d) + len(b) for d, b in zip(dense.ids, bm25.ids, strict=False)), default=1)
    curve = []
    for weight in grid:
        fused = fuse(dense, bm25, weight, max(longest, 1))
        curve.append({"weight": float(weight), **evaluate_ranking(fused, query_ids, qrels, ks)})
    # Rounded, because equal recalls summed in another order can differ in the last bit.
    best = min(
        curve,
        key=lambda row: (
            -round(row[metric], 12),
            -round(row[f"ndcg@{NDCG_DEPTH}"], 12),
            round(abs(row["weight"] - 0.5), 12),
            row["weight"],
        ),
    )
    return FusionChoice(best["weight"], curve)


def _metric_depth(metric: str) -> int:
    if metric == "mrr":
        return 1
    name, _, depth = metric.partition("@")
    if name not in ("recall", "ndcg") or not depth.isdecimal() or int(depth) < 1:
        raise ValueError(f"metric is {metric!r}; expected recall@k, ndcg@k or mrr")
    return int(depth)
