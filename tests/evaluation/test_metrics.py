"""Recall, NDCG and MRR by hand, and the mistakes that must be named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation import evaluate_ranking, metric_names, query_metrics
from retrieval import Ranking


def ranking(*rows: list[str]) -> Ranking:
    return Ranking(list(rows), np.zeros((len(rows), max(map(len, rows), default=0))))


def test_recall_counts_targets_within_k():
    found = evaluate_ranking(ranking(["a", "b"], ["x", "a"]), ["q1", "q2"], {"q1": {"a": 1}, "q2": {"a": 1}}, ks=(1, 2))
    assert (found["recall@1"], found["recall@2"]) == (0.5, 1.0)


def test_recall_is_fractional_for_several_targets():
    found = evaluate_ranking(ranking(["a", "x", "b", "y"]), ["q"], {"q": {"a": 1, "b": 1, "c": 1}}, ks=(1, 3))
    assert found["recall@1"] == pytest.approx(1 / 3)
    assert found["recall@3"] == pytest.approx(2 / 3)


def test_ndcg_is_binary_for_ungraded_targets():
    found = evaluate_ranking(ranking(["x", "a", "b"]), ["q"], {"q": {"a": 1, "b": 1}})
    ideal = 1 / math.log2(2) + 1 / math.log2(3)
    assert found["ndcg@10"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(4)) / ideal)


def test_ndcg_has_linear_gain_for_grades():
    found = evaluate_ranking(ranking(["a", "b"]), ["q"], {"q": {"a": 1, "b": 3}})
    assert found["ndcg@10"] == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))


def test_the_ideal_of_ndcg_is_cut_at_k_too():
    found = evaluate_ranking(ranking(["a", "x"]), ["q"], {"q": {"a": 1, "b": 1}}, ks=(1,))
    assert found["ndcg@1"] == 1.0


def test_grade_zero_is_not_relevant():
    found = evaluate_ranking(ranking(["a", "b"]), ["q"], {"q": {"a": 0, "b": 1}}, ks=(1,))
    assert (found["recall@1"], found["mrr"]) == (0.0, 0.5)


def test_mrr_is_the_mean_reciprocal_rank_of_the_first_target():
    found = evaluate_ranking(
        ranking(["x", "y", "a"], ["b", "a"], ["x", "y"]), ["1", "2", "3"], {q: {"a": 1} for q in "123"}
    )
    assert found["mrr"] == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)


def test_our_order_decides_and_not_scores_or_ids():
    # trec_eval would rank equal scores by descending id and put "z" first.
    tied = Ranking([["a", "z"]], np.array([[0.5, 0.5]]))
    assert evaluate_ranking(tied, ["q"], {"q": {"a": 1}}, ks=(1,))["recall@1"] == 1.0
    assert evaluate_ranking(tied, ["q"], {"q": {"z": 1}}, ks=(1,))["recall@1"] == 0.0


def test_a_query_that_is_missing_or_has_no_results_counts_as_zero():
    found = evaluate_ranking(ranking(["a"], []), ["q1", "q2"], {"q1": {"a": 1}, "q2": {"a": 1}, "q3": {"a": 1}})
    assert all(value == pytest.approx(1 / 3) for value in found.values())


def test_metrics_of_each_query_average_to_the_total():
    rows = ranking(["a", "b"], ["b", "a"])
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}}
    each = query_metrics(rows, ["q1", "q2"], qrels)
    assert [each[q]["recall@1"] for q in ("q1", "q2")] == [1.0, 0.0]
    assert evaluate_ranking(rows, ["q1", "q2"], qrels)["mrr"] == (each["q1"]["mrr"] + each["q2"]["mrr"]) / 2


def test_names_follow_the_depths_and_always_hold_ndcg_at_10():
    names = ["recall@1", "recall@5", "ndcg@1", "ndcg@5", "ndcg@10", "mrr"]
    assert metric_names((5, 1)) == names
    assert list(evaluate_ranking(ranking(["a"]), ["q"], {"q": {"a": 1}}, ks=(5, 1))) == names


def test_ndcg_agrees_with_scikit_learn_on_random_lists():
    from sklearn.metrics import ndcg_score

    rng = np.random.default_rng(0)
    ids = [f"s{i:02}" for i in range(30)]
    for _ in range(20):
        grades = rng.integers(0, 4, size=30)
        grades[0] = 1
        order = rng.permutation(30)
        scores = np.empty(30)
        scores[order] = np.arange(30, 0, -1)
        qrels = {"q": {skill_id: int(grade) for skill_id, grade in zip(ids, grades, strict=True)}}
        found = evaluate_ranking(ranking([ids[i] for i in order]), ["q"], qrels)
        assert found["ndcg@10"] == pytest.approx(ndcg_score([grades], [scores], k=10), abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "query_ids", "qrels", "ks", "message"),
    [
        ([["a"]], ["q9"], {"q": {"a": 1}}, (1,), "query id 'q9'"),
        ([["a"], ["a"]], ["q", "q"], {"q": {"a": 1}}, (1,), "'q' occurs twice, the second time in row 1"),
        ([["a", "b", "a"]], ["q"], {"q": {"a": 1}}, (1,), "'q' lists skill 'a' twice"),
        ([["a"]], ["q"], {"q": {"a": 0}}, (1,), "query 'q' has no relevant skill"),
        ([["a"]], ["q"], {}, (1,), "qrels are empty"),
        ([["a"]], ["q"], {"q": {"a": 1}}, (0,), r"depths are \[0\]"),
        ([["a"]], ["q", "r"], {"q": {"a": 1}}, (1,), "1 rankings for 2 query ids"),
    ],
)
def test_mistakes_are_named(rows, query_ids, qrels, ks, message):
    with pytest.raises(ValueError, match=message):
        evaluate_ranking(ranking(*rows), query_ids, qrels, ks)
