"""Two results of one benchmark: differences by query, and results that cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.compare import compare, comparison_table


def result(path: Path, lists: dict[str, list[str]], qrels: dict[str, dict[str, int]], model: str = "m", **more) -> Path:
    rows = [{"query_id": q, "ids": ids, "scores": [1.0] * len(ids), "qrels": qrels[q]} for q, ids in lists.items()]
    path.write_text(json.dumps({"model": model, "queries": rows} | more))
    return path


QRELS = {f"q{i}": {"a": 1} for i in range(8)}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """B finds six of eight targets first, A two; once A is right and B is not."""
    right_a, right_b = {0, 1}, {1, 2, 3, 4, 5, 6}
    a = result(
        tmp_path / "a.json", {q: ["a", "x"] if i in right_a else ["x", "a"] for i, q in enumerate(QRELS)}, QRELS, "bm25"
    )
    lists = {q: ["a", "x"] if i in right_b else ["x", "a"] for i, q in enumerate(QRELS)}
    b = result(tmp_path / "b.json", dict(reversed(lists.items())), QRELS, "dense")
    return a, b


def test_differences_are_taken_query_by_query(pair):
    found = compare(*pair)["metrics"]["recall@1"]
    assert (found["first"], found["second"], found["difference"]) == (0.25, 0.75, 0.5)
    assert (found["better"], found["worse"], found["equal"]) == (5, 1, 2)
    # Six signs of equal size: |sum| >= 4 for 6 or 5 of one sign, 2 (1 + 6) of 64 ways.
    assert found["p_value"] == pytest.approx(14 / 64)


def test_the_interval_is_of_the_paired_difference(pair):
    low, high = compare(*pair)["metrics"]["recall@1"]["interval"]
    gaps = np.array([-1, 0, 1, 1, 1, 1, 1, 0])
    draws = np.random.default_rng(0).choice(gaps, (20_000, 8)).mean(axis=1)
    assert (low, high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])), abs=0.07)


def test_a_system_does_not_differ_from_itself(pair):
    found = compare(pair[0], pair[0])["metrics"]
    assert all(row["difference"] == 0 and row["p_value"] == 1.0 and row["interval"] == [0, 0] for row in found.values())


def test_the_metrics_are_those_asked_for_or_the_headline_of_the_result(pair, tmp_path):
    assert list(compare(*pair)["metrics"]) == ["recall@1", "recall@5", "recall@10", "ndcg@10", "mrr"]
    assert list(compare(pair[0], pair[1], metrics=["map"])["metrics"]) == ["map"]
    own = result(tmp_path / "c.json", {q: ["a"] for q in QRELS}, QRELS, intervals={"metrics": {"recall@10": [0, 1]}})
    assert list(compare(own, pair[1])["metrics"]) == ["recall@10"]


def test_a_metric_of_some_queries_is_compared_on_those(tmp_path):
    qrels = {"q1": {"a": 1, "b": 1}, "q2": {"a": 1}}
    a = result(tmp_path / "a.json", {"q1": ["a"], "q2": ["a"]}, qrels)
    b = result(tmp_path / "b.json", {"q1": ["a", "b"], "q2": ["x"]}, qrels)
    found = compare(a, b, ["multi_fc@10"])["metrics"]["multi_fc@10"]
    assert (found["first"], found["second"], found["better"] + found["worse"] + found["equal"]) == (0.0, 1.0, 1)


def test_the_table_names_both_systems_and_shows_points(pair):
    table = comparison_table(compare(pair[0], pair[1], metrics=["recall@1"]))
    assert table.startswith("A: bm25, B: dense; 8 queries")
    cells = [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")]
    assert cells[:4] == ["recall@1", "25.00", "75.00", "+50.00"]
    assert cells[5:] == ["0.219", "5", "1", "2"]


def test_results_of_two_benchmarks_are_refused(pair, tmp_path):
    fewer = result(tmp_path / "c.json", {q: ["a"] for q in list(QRELS)[:7]}, QRELS)
    with pytest.raises(ValueError, match=r"query 'q7' is in .*a.json and not in .*c.json"):
        compare(pair[0], fewer)
    with pytest.raises(ValueError, match=r"query 'q7' is in .*a.json and not in .*c.json"):
        compare(fewer, pair[0])
    relabeled = result(tmp_path / "d.json", {q: ["a"] for q in QRELS}, QRELS | {"q3": {"b": 1}})
    with pytest.raises(ValueError, match=r"query 'q3' has other labels in .*a.json than in .*d.json"):
        compare(pair[0], relabeled)


def test_an_unknown_metric_is_named(pair):
    with pytest.raises(ValueError, match=r"no metric 'recall@3' in .*expected some of recall@1"):
        compare(pair[0], pair[1], metrics=["recall@3"])
