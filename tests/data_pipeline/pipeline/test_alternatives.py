"""Alternatives pooled from several retrievers (A.2): which pairs are judged, once each, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.pipeline import PipelineError
from data_pipeline.pipeline.alternatives import audit_alternatives
from data_pipeline.rows import read_rows, write_rows
from data_pipeline.teacher import TeacherConfig

Script = Callable[..., dict[str, Any]]
IDS = [f"g/s{i}" for i in range(9)]
OFFLINE = TeacherConfig()


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """A corpus of nine, a request with one target and one with two, and two retrievers' lists."""
    SkillCorpus([Skill(i, f"name {i}", "", f"body of {i}") for i in IDS]).to_jsonl(tmp_path / "corpus.jsonl")
    bench = [
        {"query_id": "one", "query": "first request", "skill_id": IDS[0]},
        {"query_id": "two", "query": "second request", "skill_ids": [IDS[1], IDS[2]]},
    ]
    write_rows(tmp_path / "bench.jsonl", bench)
    a = write_result(tmp_path, "a", "bm25", one=[3, 0, 4, 5, 6, 7], two=[2, 8, 1, 3, 4])
    b = write_result(tmp_path, "b", "dense", one=[0, 4, 3, 1, 2, 8], two=[8, 1, 2, 5, 6])
    out = tmp_path / "alternatives.jsonl"
    return {
        "bench_file": tmp_path / "bench.jsonl",
        "corpus_file": tmp_path / "corpus.jsonl",
        "result_files": [a, b],
        "out": out,
    }


def write_result(folder: Path, name: str, model: str, **lists: list[int]) -> Path:
    queries = [
        {"query_id": q, "ids": [IDS[i] for i in found], "scores": [0.0] * len(found)} for q, found in lists.items()
    ]
    (folder / f"{name}.json").write_text(json.dumps({"model": model, "metrics": {}, "queries": queries}))
    return folder / f"{name}.json"


def written(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(given["out"])]


def test_the_top_5_are_pooled_without_targets_and_each_pair_is_judged_once(
    given: dict[str, Any], script: Script
) -> None:
    teacher = script({"alternative_audit": lambda t: {"decision": "ignore", "reason": "why"}})["default"]
    report = audit_alternatives(**given, teacher=OFFLINE)
    # of "one" a has 3 4 5 6 (7 is the sixth) and b has 4 3 1 2; of "two" a has 8 3 4 and b has 8 5 6
    assert (report.predictions, report.pairs) == (4 + 4 + 3 + 3, 6 + 5)
    assert len(teacher.asked) == len(set(teacher.asked)) == 6 + 2 * 5  # two targets: against each of them
    found = {(r["query_id"], r["target_id"], r["skill_id"]): r["retrievers"] for r in written(given)}
    assert found["one", IDS[0], IDS[3]] == ["bm25", "dense"]
    assert found["one", IDS[0], IDS[5]] == ["bm25"]
    assert found["two", IDS[1], IDS[8]] == found["two", IDS[2], IDS[8]] == ["bm25", "dense"]
    assert ("one", IDS[0], IDS[7]) not in found
    assert not [key for key in found if key[2] in ((IDS[0],) if key[0] == "one" else IDS[1:3])]


def test_decisions_are_written_with_reason_and_teacher_in_a_fixed_order(given: dict[str, Any], script: Script) -> None:
    def decide(task: Any) -> dict[str, Any] | None:
        number = int(task.inputs["candidate"].skill_id[-1])
        return (
            None
            if number == 6
            else {"decision": "positive" if number == 3 else "hard_negative", "reason": f"n{number}"}
        )

    script({"alternative_audit": decide})
    report = audit_alternatives(**given, teacher=OFFLINE, depth=1)
    assert [row["skill_id"] for row in written(given)] == [IDS[3], IDS[8], IDS[8]]
    assert written(given)[0] == {
        "query_id": "one",
        "target_id": IDS[0],
        "skill_id": IDS[3],
        "decision": "positive",
        "reason": "n3",
        "retrievers": ["bm25"],
        "teacher": "offline",
    }
    assert report.decisions == {"hard_negative": 2, "positive": 1}
    failing = audit_alternatives(**given, teacher=OFFLINE)
    assert failing.failed == {"teacher_invalid_json": 1 + 2}
    assert IDS[6] not in {row["skill_id"] for row in written(given)}


def test_two_results_of_one_model_are_called_by_their_files(
    given: dict[str, Any], script: Script, tmp_path: Path
) -> None:
    script({"alternative_audit": lambda t: {"decision": "ignore", "reason": "-"}})
    again = write_result(tmp_path, "b", "bm25", one=[0, 4, 3, 1, 2], two=[8, 1, 2, 5, 6])
    audit_alternatives(**{**given, "result_files": [given["result_files"][0], again]}, teacher=OFFLINE)
    assert {name for row in written(given) for name in row["retrievers"]} == {"a", "b"}


def test_the_offline_teacher_needs_no_script(given: dict[str, Any]) -> None:
    report = audit_alternatives(**given, teacher=OFFLINE)
    assert sum(report.decisions.values()) == 16
    assert {row["teacher"] for row in written(given)} == {"offline"}


def test_a_spent_budget_writes_nothing_and_says_how_to_go_on(given: dict[str, Any], script: Script) -> None:
    script({"alternative_audit": lambda t: {"decision": "ignore", "reason": "-"}}, left_over=3)
    with pytest.raises(PipelineError, match=r"budget of teacher is spent: 3 of 16 tasks are answered and kept"):
        audit_alternatives(**given, teacher=OFFLINE)
    assert not given["out"].exists()


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queries": [{"query_id": "three", "ids": []}]}, r"a.json: query_id 'three' is not in the benchmark"),
        (
            {"queries": [{"query_id": "one", "ids": ["no/such"]}]},
            r"a.json: 'one' ranks 'no/such', which the corpus lacks",
        ),
        ({"queries": [{"query_id": "one", "ids": []}]}, r"a.json: no list for query_id 'two'"),
        ({"queries": None}, r"a.json: not a result of skillreason evaluate"),
        ({"queries": [{"ids": []}]}, r"a.json: not a result of skillreason evaluate \(KeyError: 'query_id'\)"),
    ],
)
def test_results_that_do_not_fit_are_refused_by_file(
    given: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    change(given["result_files"][0], **changes)
    with pytest.raises(ValueError, match=message):
        audit_alternatives(**given, teacher=OFFLINE)


def test_a_target_that_the_corpus_lacks_is_refused(given: dict[str, Any]) -> None:
    write_rows(given["bench_file"], [{"query_id": "one", "query": "x", "skill_id": "no/such"}])
    with pytest.raises(ValueError, match=r"bench.jsonl: 'one' has target 'no/such'"):
        audit_alternatives(**given, teacher=OFFLINE)


@pytest.mark.parametrize("row", [{"query_id": ["one"], "ids": []}, {"query_id": "one", "ids": [{}]}])
def test_a_result_whose_ids_are_no_text_is_refused_by_file(given: dict[str, Any], tmp_path: Path, row: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"model": "m", "queries": [row]}))
    with pytest.raises(ValueError, match=r"a.json: not a result of skillreason evaluate .*no text"):
        audit_alternatives(**given, teacher=OFFLINE)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_asked(
    given: dict[str, Any], script: Script, tmp_path: Path
) -> None:
    teacher = script({})["default"]
    with pytest.raises(ValueError, match=r"a.txt: unknown file format"):
        audit_alternatives(**{**given, "out": tmp_path / "a.txt"}, teacher=OFFLINE)
    assert teacher.asked == []
