"""The choice of the fusion weight, and its rule for ties."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation import choose_fusion_weight
from retrieval import Ranking


def ranking(*rows: list[str]) -> Ranking:
    return Ranking(list(rows), np.zeros((len(rows), max(map(len, rows)))))


def distractors(prefix: str, n: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


def test_a_target_that_only_the_dense_list_has_asks_for_a_high_weight():
    # Rank 11 of the dense list: ten BM25 documents must all stay behind it, and ten dense ones stay ahead.
    dense, bm25 = ranking([*distractors("d", 4), "t"]), ranking(distractors("b", 20))
    choice = choose_fusion_weight(dense, bm25, {"q": {"t": 1}}, ["q"], metric="recall@5")
    by_weight = {row["weight"]: row["recall@5"] for row in choice.curve}
    assert by_weight[0.0] == 0.0
    assert by_weight[1.0] == 1.0
    assert by_weight[choice.weight] == 1.0


def test_the_curve_has_every_weight_of_the_grid():
    choice = choose_fusion_weight(ranking(["t"]), ranking(["t"]), {"q": {"t": 1}}, ["q"])
    assert [row["weight"] for row in choice.curve] == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert {"recall@10", "ndcg@10"} <= choice.curve[0].keys()


def test_equal_recall_is_decided_by_ndcg():
    # Both lists hold the target within ten; only BM25 has it first.
    dense, bm25 = ranking(["x", "y", "t"]), ranking(["t", "y", "x"])
    choice = choose_fusion_weight(dense, bm25, {"q": {"t": 1}}, ["q"], grid=(0.2, 0.8))
    assert [row["recall@10"] for row in choice.curve] == [1.0, 1.0]
    assert choice.weight == 0.2


def test_a_full_tie_takes_the_weight_nearest_to_one_half():
    both = ranking(["t", "x"])
    assert choose_fusion_weight(both, both, {"q": {"t": 1}}, ["q"], grid=(0.0, 0.9, 0.4, 1.0)).weight == 0.4
    assert choose_fusion_weight(both, both, {"q": {"t": 1}}, ["q"], grid=(0.7, 0.3)).weight == 0.3


@pytest.mark.parametrize("metric", ["precision@10", "recall", "recall@0", "ndcg@x"])
def test_an_unknown_metric_is_refused(metric):
    with pytest.raises(ValueError, match="expected recall@k, ndcg@k or mrr"):
        choose_fusion_weight(ranking(["t"]), ranking(["t"]), {"q": {"t": 1}}, ["q"], metric=metric)


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="grid of fusion weights is empty"):
        choose_fusion_weight(ranking(["t"]), ranking(["t"]), {"q": {"t": 1}}, ["q"], grid=())
