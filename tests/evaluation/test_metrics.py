"""Recall, NDCG and MRR by hand, and the mistakes that must be named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation import evaluate_ranking, metric_names, query_metrics
from evaluation.metrics import score_queries
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
    names = [
        *("recall@1", "recall@5", "ndcg@1", "ndcg@5", "ndcg@10", "mrr", "map", "complete@1", "complete@5"),
    ]
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


def test_map_averages_the_precision_at_each_target():
    found = evaluate_ranking(ranking(["a", "x", "b", "y"]), ["q"], {"q": {"a": 1, "b": 1, "c": 1}})
    assert found["map"] == pytest.approx((1 / 1 + 2 / 3 + 0) / 3)


def test_complete_asks_for_all_targets_within_k():
    qrels = {"q1": {"a": 1, "b": 1}, "q2": {"a": 1}}
    found = evaluate_ranking(ranking(["a", "x", "b"], ["a"]), ["q1", "q2"], qrels, ks=(1, 3))
    assert (found["complete@1"], found["complete@3"]) == (0.5, 1.0)


def test_full_coverage_is_over_queries_with_several_targets_only():
    rows = ranking(["a", "b"], ["a", "x"], ["x"])
    scores = score_queries(rows, ["1", "2", "3"], {"1": {"a": 1, "b": 2}, "2": {"a": 1, "b": 1}, "3": {"a": 1}})
    assert scores.means()["multi_fc@10"] == 0.5
    assert "multi_fc@10" not in query_metrics(rows, ["1", "2", "3"], {q: {"a": 1} for q in "123"})["1"]


def test_full_coverage_looks_at_ten_skills_whatever_the_depths():
    late = ranking([f"x{i}" for i in range(8)] + ["a", "b"], [f"x{i}" for i in range(9)] + ["a", "b"])
    qrels = {q: {"a": 1, "b": 1} for q in ("10", "11")}
    assert score_queries(late, ["10", "11"], qrels, ks=(1,)).means()["multi_fc@10"] == 0.5


def test_given_targets_replace_the_grades_except_in_ndcg():
    qrels = {"q": {"a": 3, "b": 3, "copy": 1}}
    scores = score_queries(ranking(["b", "copy", "a"]), ["q"], qrels, (1, 3), {"q": ["a"]}).means()
    assert (scores["recall@1"], scores["recall@3"], scores["mrr"]) == (0.0, 1.0, pytest.approx(1 / 3))
    ideal = 3 + 3 / math.log2(3) + 1 / 2
    assert scores["ndcg@10"] == pytest.approx((3 + 1 / math.log2(3) + 3 / 2) / ideal)
    assert scores["binary_ndcg@10"] == pytest.approx(1 / 2)


def test_binary_ndcg_stands_beside_grades_only():
    graded = evaluate_ranking(ranking(["a", "b"]), ["q"], {"q": {"a": 1, "b": 3}})
    assert graded["binary_ndcg@10"] == 1.0
    assert "binary_ndcg@10" not in evaluate_ranking(ranking(["a"]), ["q"], {"q": {"a": 1}})


def test_a_selection_keeps_metrics_that_apply():
    scores = score_queries(ranking(["a"], ["a"]), ["1", "2"], {"1": {"a": 1}, "2": {"a": 1, "b": 1}})
    assert scores.select(["multi_fc@10", "recall@1"]).names == ["recall@1", "multi_fc@10"]
    assert scores.select(["multi_fc@10", "recall@1"], {"1"}).names == ["recall@1"]


def random_runs(count: int, seed: int, top_grade: int):
    """Lists with ties in their scores, short and empty ones, queries that were not run, and targets that no list has."""
    rng = np.random.default_rng(seed)
    skills = [f"s{i:02}" for i in range(40)]
    qrels, lists, run_ids = {}, [], []
    for number in range(count):
        query_id = f"q{number:04}"
        judged = rng.choice(skills, size=int(rng.integers(1, 7)), replace=False)
        qrels[query_id] = {
            str(s): int(g) for s, g in zip(judged, rng.integers(0, top_grade + 1, len(judged)), strict=True)
        }
        qrels[query_id][str(judged[0])] = int(rng.integers(1, top_grade + 1))
        if rng.random() < 0.9:
            run_ids.append(query_id)
            lists.append([str(s) for s in rng.permutation(skills)[: int(rng.integers(0, 25))]])
    order = rng.permutation(len(run_ids))
    run_ids, lists = [run_ids[i] for i in order], [lists[i] for i in order]
    tied = np.sort(rng.integers(0, 4, (len(lists), 25)), axis=1)[:, ::-1].astype(float)
    return Ranking(lists, tied), run_ids, qrels


@pytest.mark.slow  # ranx compiles its metrics first, for a minute
@pytest.mark.parametrize(("seed", "top_grade"), [(0, 1), (1, 3)])
def test_two_thousand_random_runs_agree_with_ranx(seed, top_grade):
    import ranx

    rows, run_ids, qrels = random_runs(2000, seed, top_grade)
    scores = score_queries(rows, run_ids, qrels)
    # ranx knows no query that was not run: an empty-handed list with a skill that nobody knows stands for it.
    run = {query_id: {"nothing": 1.0} for query_id in qrels}
    for query_id, ids in zip(run_ids, rows.ids, strict=True):
        run[query_id] |= {skill_id: float(100 - rank) for rank, skill_id in enumerate(ids)}
    relevant = {q: {s: g for s, g in grades.items() if g > 0} for q, grades in qrels.items()}
    names = {f"{metric}@{k}": f"{metric}@{k}" for metric in ("recall", "ndcg") for k in (1, 5, 10)}
    names |= {"mrr": "mrr", "map": "map"}
    theirs = ranx.Run(run)
    ranx.evaluate(ranx.Qrels(relevant), theirs, list(names.values()), return_mean=False, make_comparable=True)
    for ours, name in names.items():
        column = scores.values[:, scores.names.index(ours)]
        expected = [theirs.scores[name][query_id] for query_id in scores.query_ids]
        np.testing.assert_allclose(column, expected, atol=1e-9, err_msg=ours)


@pytest.mark.parametrize("top_grade", [1, 3])
def test_two_thousand_random_runs_agree_with_the_definitions(top_grade):
    rows, run_ids, qrels = random_runs(2000, 2, top_grade)
    scores = score_queries(rows, run_ids, qrels)
    lists = dict(zip(run_ids, rows.ids, strict=True))

    def dcg(grades: list[int], k: int) -> float:
        return sum(grade / math.log2(1 + rank) for rank, grade in enumerate(grades[:k], start=1))

    for query_id, row in zip(scores.query_ids, scores.values, strict=True):
        found = dict(zip(scores.names, row, strict=True))
        grades = qrels[query_id]
        targets = {s for s, grade in grades.items() if grade > 0}
        best = lists.get(query_id, [])
        ranks = [rank for rank, s in enumerate(best, start=1) if s in targets]
        expected = {
            "mrr": 1 / ranks[0] if ranks else 0.0,
            "map": sum(number / rank for number, rank in enumerate(ranks, start=1)) / len(targets),
            "multi_fc@10": float(targets <= set(best[:10])) if len(targets) > 1 else math.nan,
        }
        for k in (1, 5, 10):
            expected[f"recall@{k}"] = len(targets & set(best[:k])) / len(targets)
            expected[f"complete@{k}"] = float(targets <= set(best[:k]))
            gains = [grades.get(s, 0) for s in best]
            expected[f"ndcg@{k}"] = dcg(gains, k) / dcg(sorted(grades.values(), reverse=True), k)
        if top_grade > 1:
            expected["binary_ndcg@10"] = dcg([s in targets for s in best], 10) / dcg([1] * len(targets), 10)
        assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


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
