"""Record formats of E.1 and C.5: what is accepted, and how a wrong row is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import (
    BenchQuery,
    RecordError,
    Stage1Record,
    Stage2Record,
    TrainingRequest,
    read_bench,
    read_stage1,
    read_stage2,
    read_training_requests,
    to_stage2,
    write_records,
)

Writer = Callable[..., Path]

REQUEST = {
    "record_id": "r1",
    "skill_id": "a/x",
    "query": "How do I close the books?",
    "query_capability": "The user needs skills for closing books.",
    "implicit_query": "It is month end again.",
}
STAGE1: dict[str, Any] = {
    "record_id": "r1",
    "query": "How do I close the books?",
    "query_capability": "The user needs skills for closing books.",
    "positive_id": "a/x",
    "positive": "x | d | b",
    "negative_ids": ["a/y", "b/z"],
    "negatives": ["y | d | b", "z | d | b"],
    "category": "a",
    "sample_weight": 0.5,
}


def without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def test_training_request_fields(write_jsonl: Writer) -> None:
    path = write_jsonl("train.jsonl", [REQUEST | {"note": "other keys are left alone"}])
    assert read_training_requests(path) == [
        TrainingRequest(
            "r1",
            "a/x",
            "How do I close the books?",
            "The user needs skills for closing books.",
            "It is month end again.",
        )
    ]


def test_training_request_may_lack_its_rewrite(write_jsonl: Writer) -> None:
    path = write_jsonl("train.jsonl", [without(REQUEST, "implicit_query")])
    assert read_training_requests(path)[0].implicit_query == ""


@pytest.mark.parametrize("key", ["record_id", "skill_id", "query", "query_capability"])
def test_training_request_names_a_missing_key(write_jsonl: Writer, key: str) -> None:
    path = write_jsonl("train.jsonl", [without(REQUEST, key)])
    with pytest.raises(RecordError, match=f"train.jsonl:1: missing key '{key}'"):
        read_training_requests(path)


def test_an_error_names_file_row_key_and_value(write_jsonl: Writer) -> None:
    path = write_jsonl("train.jsonl", [REQUEST, REQUEST | {"record_id": "r2", "query": 17}])
    with pytest.raises(RecordError) as caught:
        read_training_requests(path)
    assert str(caught.value) == f"{path}:2: query = 17: expected a string"


def test_repeated_ids_name_both_rows(write_jsonl: Writer) -> None:
    path = write_jsonl("train.jsonl", [REQUEST, REQUEST])
    with pytest.raises(RecordError, match=r"train.jsonl:2: record_id = 'r1': duplicate id, first seen in row 1"):
        read_training_requests(path)


def test_an_empty_file_is_refused(write_jsonl: Writer) -> None:
    with pytest.raises(RecordError, match="no records"):
        read_training_requests(write_jsonl("train.jsonl", []))


def test_stage1_fields(write_jsonl: Writer) -> None:
    (record,) = read_stage1(write_jsonl("s1.jsonl.gz", [STAGE1]))
    assert record == Stage1Record(
        record_id="r1",
        query="How do I close the books?",
        query_capability="The user needs skills for closing books.",
        positive_id="a/x",
        positive="x | d | b",
        negative_ids=("a/y", "b/z"),
        negatives=("y | d | b", "z | d | b"),
        category="a",
        sample_weight=0.5,
    )


def test_sample_weight_defaults_to_one(write_jsonl: Writer) -> None:
    assert read_stage1(write_jsonl("s1.jsonl", [without(STAGE1, "sample_weight")]))[0].sample_weight == 1.0


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"negatives": ["only one"]}, "1 texts for 2 negative_ids"),
        ({"negative_ids": ["a/y", "a/y"]}, r"negative_ids = 'a/y': occurs twice"),
        ({"negative_ids": ["a/y", "a/x"]}, r"negative_ids = 'a/x': the positive is among its own negatives"),
        ({"negative_ids": "a/y"}, r"negative_ids = 'a/y': expected a non-empty list of strings"),
        ({"negative_ids": ["a/y", 3]}, r"negative_ids\[1\] = 3: expected a string"),
        ({"negatives": ["y", " "]}, r"negatives\[1\] = ' ': expected a non-empty string"),
        ({"sample_weight": -1}, r"sample_weight = -1: expected a finite number >= 0"),
        ({"sample_weight": True}, r"sample_weight = True: expected a finite number"),
        ({"sample_weight": "1"}, r"sample_weight = '1': expected a finite number"),
        ({"sample_wieght": 2.0}, r"sample_wieght = 2.0: unknown key"),
        ({"original_query": "q"}, r"original_query = 'q': unknown key"),
        ({"query": "half \ud800 pair"}, r"query = .*half of a surrogate pair"),
    ],
)
def test_stage1_refuses(write_jsonl: Writer, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecordError, match="s1.jsonl:1: " + problem if "texts for" not in problem else problem):
        read_stage1(write_jsonl("s1.jsonl", [STAGE1 | change]))


def test_stage1_refuses_rows_of_unequal_size(write_jsonl: Writer) -> None:
    short = STAGE1 | {"record_id": "r2", "negative_ids": ["a/y"], "negatives": ["y"]}
    with pytest.raises(ValueError, match="1 negatives in record 'r2'; expected 2"):
        read_stage1(write_jsonl("s1.jsonl", [STAGE1, short]))


def test_stage1_refuses_another_number_of_negatives_than_asked(write_jsonl: Writer) -> None:
    with pytest.raises(ValueError, match="2 negatives in record 'r1'; expected 10"):
        read_stage1(write_jsonl("s1.jsonl", [STAGE1]), n_negatives=10)


def test_stage2_needs_the_original_request(write_jsonl: Writer) -> None:
    with pytest.raises(RecordError, match="missing key 'original_query'"):
        read_stage2(write_jsonl("s2.jsonl", [STAGE1]))


def test_stage2_keeps_rewrite_and_original(write_jsonl: Writer) -> None:
    row = STAGE1 | {"query": "It is month end again.", "original_query": STAGE1["query"]}
    (record,) = read_stage2(write_jsonl("s2.jsonl", [row]))
    assert isinstance(record, Stage2Record)
    assert (record.query, record.original_query) == ("It is month end again.", "How do I close the books?")


@pytest.mark.parametrize(
    "labels, qrels",
    [
        ({"skill_id": "a/x"}, {"a/x": 1}),
        ({"skill_ids": ["a/x", "b/y"]}, {"a/x": 1, "b/y": 1}),
        ({"qrels": {"a/x": 2, "b/y": 0}}, {"a/x": 2, "b/y": 0}),
    ],
)
def test_bench_labels(write_jsonl: Writer, labels: dict[str, Any], qrels: dict[str, int]) -> None:
    row = {"query_id": "q1", "query": "text", "domain": "ai-ml", "capability_reasoning": "why"} | labels
    assert read_bench(write_jsonl("b.jsonl", [row])) == [
        BenchQuery("q1", "text", qrels, "ai-ml", {"capability_reasoning": "why"})
    ]


@pytest.mark.parametrize(
    "labels, problem",
    [
        ({}, "found none of them; expected exactly one of"),
        ({"skill_id": "a", "skill_ids": ["a"]}, "found skill_id and skill_ids"),
        ({"skill_ids": []}, "skill_ids = .*non-empty list"),
        ({"qrels": {"a": 1.5}}, r"qrels\['a'\] = 1.5: expected a whole number"),
        ({"qrels": {"a": 0}}, "no skill has a grade above 0"),
        ({"qrels": ["a"]}, "expected a non-empty object"),
    ],
)
def test_bench_refuses(write_jsonl: Writer, labels: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecordError, match=problem):
        read_bench(write_jsonl("b.jsonl", [{"query_id": "q1", "query": "text"} | labels]))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
@pytest.mark.parametrize("kind", ["requests", "stage1", "stage2", "bench"])
def test_written_records_come_back(tmp_path: Path, suffix: str, kind: str) -> None:
    first = Stage1Record("r1", "q", "c", "a/x", "x", ("a/y", "b/z"), ("y", "z"), "a", 0.25)
    cases: dict[str, tuple[list[Any], Callable[..., Any]]] = {
        "requests": (
            [TrainingRequest("r1", "a", "q", "c", "i"), TrainingRequest("r2", "a", "q", "c")],
            read_training_requests,
        ),
        "stage1": ([first], read_stage1),
        "stage2": ([to_stage2(first, "rewrite")], read_stage2),
        "bench": (
            [
                BenchQuery("q1", "one", {"a": 1}),
                BenchQuery("q2", "two", {"a": 1, "b": 1}, "legal", {"note": "n"}),
                BenchQuery("q3", "three", {"a": 3, "c": 0}),
            ],
            read_bench,
        ),
    }
    records, read = cases[kind]
    write_records(tmp_path / f"x{suffix}", records)
    assert read(tmp_path / f"x{suffix}") == records
