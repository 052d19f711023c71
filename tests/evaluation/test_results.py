"""The result file: what it holds, that it is read back as it was, and files that are none."""

from __future__ import annotations

import json

import numpy as np
import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.records import BenchQuery
from evaluation.benchmarks import Benchmark, Protocol
from evaluation.results import query_rows, read_result, score, write_result
from retrieval import Ranking

CORPUS = SkillCorpus([Skill(skill_id, f"Skill {skill_id}", "", "") for skill_id in "abcd"])
PROTOCOL = Protocol("for tests", ("recall@1", "recall@10"), macro=True)


@pytest.fixture
def bench() -> Benchmark:
    """Suite ``one`` with three requests, suite ``two`` with one of two targets."""
    queries = [
        BenchQuery("q1", "x", {"a": 1}),
        BenchQuery("q2", "x y", {"b": 1}),
        BenchQuery("q3", "x y z", {"c": 1}),
        BenchQuery("q4", "w x y z", {"a": 3, "b": 3, "c": 1}),
    ]
    suites = {"q1": "one", "q2": "one", "q3": "one", "q4": "two"}
    return Benchmark("mine", CORPUS, queries, PROTOCOL, "here", {"q4": ("a", "b")}, suites)


RANKING = Ranking(
    [["a", "b"], ["a", "b"], ["c"], ["b", "c"]],
    np.array([[0.9, 0.8], [0.9, 0.8], [0.7, -np.inf], [0.5, 0.5]]),
)


def test_metrics_suites_and_the_macro_average_follow_from_the_rankings(bench):
    found = score(bench, RANKING, (1, 10))
    # Recall@1: 1, 0, 1 in the first suite, half of the two targets in the second.
    assert found["metrics"]["recall@1"] == pytest.approx(2.5 / 4)
    assert [(row["suite"], row["n_queries"]) for row in found["suites"]] == [("one", 3), ("two", 1)]
    assert found["suites"][0]["metrics"]["recall@1"] == pytest.approx(2 / 3)
    assert found["suites"][1]["metrics"]["multi_fc@10"] == 0.0
    assert found["macro"]["metrics"] == pytest.approx({"recall@1": (2 / 3 + 1 / 2) / 2, "recall@10": (1 + 1 / 2) / 2})


def test_headline_metrics_have_intervals_around_their_means(bench):
    found = score(bench, RANKING, (1, 10))
    assert list(found["intervals"]["metrics"]) == ["recall@1", "recall@10"]
    assert found["intervals"]["level"] == 0.95
    for part in (found, found["macro"]):
        for name, (low, high) in part["intervals"]["metrics"].items():
            assert 0 <= low <= part["metrics"][name] <= high <= 1


def test_slices_have_the_headline_metrics(bench):
    found = score(bench, RANKING, (1, 10))["slices"]["length"]
    assert sum(row["n_queries"] for row in found) == 4
    assert all(list(row["metrics"]) == ["recall@1", "recall@10"] for row in found)


def test_a_file_is_read_back_with_everything_that_scores_it(bench, tmp_path):
    value = {**score(bench, RANKING, (1, 10)), "model": "bm25", "queries": query_rows(bench, RANKING)}
    path = tmp_path / "new" / "result.json"
    write_result(path, value)
    assert json.loads(path.read_text()) == value
    stored = read_result(path)
    assert (stored.model, stored.query_ids, stored.headline) == (
        "bm25",
        ["q1", "q2", "q3", "q4"],
        ["recall@1", "recall@10"],
    )
    assert stored.suites == bench.suites
    again = stored.scores((1, 10)).means()
    assert again == pytest.approx(value["metrics"])


def test_each_request_stands_on_one_line(bench, tmp_path):
    value = {"metrics": {"recall@1": 0.5}, "model": "bm25", "queries": query_rows(bench, RANKING)}
    write_result(tmp_path / "result.json", value)
    lines = (tmp_path / "result.json").read_text().splitlines()
    row = next(line for line in lines if '"q4"' in line)
    assert json.loads(row.strip().rstrip(",")) == {
        "query_id": "q4",
        "ids": ["b", "c"],
        "scores": [0.5, 0.5],
        "qrels": {"a": 3, "b": 3, "c": 1},
        "targets": ["a", "b"],
        "suite": "two",
    }


def test_a_shorter_list_has_as_many_scores(bench):
    assert query_rows(bench, RANKING)[2]["scores"] == [0.7]


def test_a_reranked_result_is_called_after_both_models(bench, tmp_path):
    value = {"model": "dense", "rerank": {"model": "cross", "depth": 20}, "queries": query_rows(bench, RANKING)}
    write_result(tmp_path / "r.json", value)
    assert read_result(tmp_path / "r.json").model == "dense × cross"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "not a result of skillreason evaluate, but no JSON at all"),
        ('{"systems": {}}', "not a result of skillreason evaluate .KeyError.*expected model and queries"),
        ("[1]", "not a result of skillreason evaluate"),
        ('{"model": "m", "queries": [{"query_id": "q", "ids": ["a"]}]}', "query 'q' has no qrels.*evaluate again"),
        ('{"model": "m", "queries": []}', "has no qrels"),
    ],
)
def test_files_that_are_no_results_are_refused(tmp_path, text, message):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_result(tmp_path / "r.json")
