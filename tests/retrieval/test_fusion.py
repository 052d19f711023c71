"""Weighted reciprocal-rank fusion, worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from retrieval import Ranking, fuse, fuse_lists


def ranking(*rows: list[str]) -> Ranking:
    return Ranking(list(rows), np.zeros((len(rows), max(map(len, rows), default=0))))


def test_scores_are_the_weighted_reciprocal_ranks_of_the_union():
    fused = fuse(ranking(["a", "b", "c"]), ranking(["c", "d"]), weight=0.7, k=10)
    w, v = Fraction(7, 10), Fraction(3, 10)
    expected = {"c": w / 63 + v / 61, "a": w / 61, "b": w / 62, "d": v / 62}
    assert fused.ids == [["c", "a", "b", "d"]]
    np.testing.assert_allclose(fused.scores[0], [float(expected[i]) for i in fused.ids[0]], rtol=1e-12)


def test_only_k_results_are_kept():
    assert fuse(ranking(["a", "b", "c"]), ranking(["c", "d"]), weight=0.7, k=2).ids == [["c", "a"]]


def test_weight_one_keeps_the_dense_order_and_weight_zero_that_of_bm25():
    dense, bm25 = ranking(["a", "b", "c"]), ranking(["d", "c", "b"])
    assert fuse(dense, bm25, 1.0, 3).ids == [["a", "b", "c"]]
    assert fuse(dense, bm25, 0.0, 3).ids == [["d", "c", "b"]]


def test_equal_scores_go_by_dense_rank_first():
    assert fuse(ranking(["x"]), ranking(["y"]), 0.5, 2).ids == [["x", "y"]]


def test_an_empty_lexical_list_leaves_the_dense_order():
    assert fuse(ranking(["b", "a"]), ranking([]), 0.1, 2).ids == [["b", "a"]]


def test_each_query_is_fused_with_its_own_list():
    fused = fuse(ranking(["a", "b"], ["b", "a"]), ranking(["b"], ["a", "c"]), 0.5, 3)
    assert fused.ids == [["b", "a"], ["a", "b", "c"]]
    assert np.isneginf(fused.scores[0, 2])


def test_scores_of_the_lists_do_not_matter():
    low = Ranking([["a", "b"]], np.array([[0.2, 0.1]]))
    high = Ranking([["a", "b"]], np.array([[90.0, -4.0]]))
    assert fuse(low, low, 0.4, 2).scores.tolist() == fuse(high, high, 0.4, 2).scores.tolist()


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_a_weight_outside_zero_to_one_is_refused(weight):
    with pytest.raises(ValueError, match="fusion weight is"):
        fuse(ranking(["a"]), ranking(["a"]), weight, 1)


def test_rankings_of_different_queries_are_refused():
    with pytest.raises(ValueError, match="2 dense rankings and 1 of BM25"):
        fuse(ranking(["a"], ["b"]), ranking(["a"]), 0.5, 1)


# -- any number of lists ---------------------------------------------------------------------------------------------------


def test_three_lists_without_weights_sum_their_reciprocal_ranks():
    ids, scores = fuse_lists([["a", "b"], ["b", "c"], ["c", "b", "a"]], k=3)
    b = Fraction(1, 62) + Fraction(1, 61) + Fraction(1, 62)
    c = Fraction(1, 62) + Fraction(1, 61)
    a = Fraction(1, 61) + Fraction(1, 63)
    assert c > a
    assert ids == ["b", "c", "a"]
    np.testing.assert_allclose(scores, [float(b), float(c), float(a)], rtol=1e-12)


def test_equal_scores_of_many_lists_go_by_the_first_list_that_differs():
    assert fuse_lists([["x"], ["y"], ["z"]], k=3)[0] == ["x", "y", "z"]


def test_one_list_keeps_its_order():
    assert fuse_lists([["b", "a", "c"]], k=2)[0] == ["b", "a"]


def test_weights_of_another_number_than_lists_are_refused():
    with pytest.raises(ValueError, match="1 weights for 2 rankings"):
        fuse_lists([["a"], ["b"]], k=1, weights=[1.0])


@pytest.mark.slow  # ranx compiles for half a minute
def test_ranx_fuses_the_same_lists_to_the_same_scores():
    ranx = pytest.importorskip("ranx")
    lists = [["a", "b", "c", "d"], ["d", "a", "e"], ["f", "c", "a", "b", "g"]]
    runs = [ranx.Run({"q": {i: float(len(ids) - rank) for rank, i in enumerate(ids)}}) for ids in lists]
    theirs = ranx.fuse(runs, method="rrf", params={"k": 60}, norm=None)["q"]
    ids, scores = fuse_lists(lists, k=10)
    assert dict(zip(ids, scores, strict=True)) == pytest.approx(dict(theirs), rel=1e-9)
