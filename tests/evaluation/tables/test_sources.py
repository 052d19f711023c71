"""What is found under files and folders."""

from __future__ import annotations

import json

import pytest

from evaluation.tables.sources import collect


def test_kinds_are_told_apart(tmp_path, write_result):
    write_result("bm25.json", "bm25", "b", 0.5)
    files = {
        "study/study.json": {"tables": {}, "seeds": [1], "title": "t"},
        "grid/grid.json": {"rows": [], "rerank_depth": 20, "title": "t"},
        "e2e/result.json": {"format": "skillreason-end-to-end-1", "conditions": [], "model": "m"},
        "latency/latency.json": {"paths": [], "protocol": {}},
        "rescored.json": {"bm25": {"file": "a.jsonl", "recall": []}},
        "other.json": {"anything": 1},
    }
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    (tmp_path / "broken.json").write_text('{"metrics": {')
    found = collect([tmp_path])
    kinds = (found.results, found.studies, found.grids, found.end_to_end, found.latencies, found.rescored)
    assert [[path.name for path, _ in kind] for kind in kinds] == [
        ["bm25.json"], ["study.json"], ["grid.json"], ["result.json"], ["latency.json"], ["rescored.json"],
    ]  # fmt: skip
    assert [run.name for run in found.runs] == ["run"]
    assert len(found.passed_over) == 1
    assert "broken.json" in found.passed_over[0]


def test_results_of_a_study_are_not_results_of_their_own_unless_named(tmp_path, write_result):
    inner = write_result("study/results/b/raw.json", "runs/raw", "b", 0.5)
    (tmp_path / "study" / "study.json").write_text(json.dumps({"tables": {}, "seeds": [1], "title": "t"}))
    assert collect([tmp_path]).results == []
    assert [path for path, _ in collect([tmp_path, inner]).results] == [inner]


def test_the_same_file_is_taken_once(tmp_path, write_result):
    path = write_result("bm25.json", "bm25", "b", 0.5)
    assert len(collect([path, tmp_path, tmp_path / "." / "bm25.json"]).results) == 1


def test_a_named_file_must_be_a_result(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match=r"x\.json: not a result of skillreason"):
        collect([tmp_path / "x.json"])
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x\.json: cannot be read as JSON"):
        collect([tmp_path / "x.json"])


def test_nothing_found_and_no_such_path(tmp_path):
    with pytest.raises(ValueError, match="no result under"):
        collect([tmp_path])
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        collect([tmp_path / "absent"])
