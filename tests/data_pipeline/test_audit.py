"""The audit finds each kind of damage, and nothing in sound records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from data_pipeline import ExclusionGraph, Skill, SkillCorpus, Stage1Record, Stage2Record, to_stage2
from data_pipeline.audit import audit_records
from data_pipeline.exclusions import ExclusionEdge

CORPUS = SkillCorpus([Skill(f"s{i}", f"name {i}", f"does thing {i}", f"body {i}", {}) for i in range(5)])
GRAPH = ExclusionGraph((ExclusionEdge("s0", "s4", "copy", 0.9, 0.7),))


def record(**changes: Any) -> Stage1Record:
    ids = ("s1", "s2")
    sound = Stage1Record(
        "r0", "a request", "a rationale", "s0", CORPUS.document("s0"), ids, tuple(map(CORPUS.document, ids)), "c"
    )
    return replace(sound, **changes)


def audit(stage1: list[Stage1Record], stage2: list[Stage2Record] | None = None) -> dict[str, int]:
    report = audit_records(stage1, stage2 or [], CORPUS, GRAPH)
    assert report.clean == (not any(report.found.values()))
    return {kind: count for kind, count in report.found.items() if count}


def test_sound_records_have_no_findings_and_are_counted() -> None:
    stage1 = [record(), record(record_id="r1")]
    report = audit_records(stage1, [to_stage2(stage1[0], "implicit")], CORPUS, GRAPH)
    assert report.clean
    assert (report.records, report.negative_positions) == (3, 6)


@pytest.mark.parametrize(
    ("ids", "finding"),
    [
        (("s0", "s2"), "positive_overlaps"),
        (("s1", "s1"), "duplicate_ids"),
        (("s1", "s4"), "graph_violations"),
    ],
)
def test_ids_that_may_not_be_negatives_are_found(ids: tuple[str, str], finding: str) -> None:
    assert audit([record(negative_ids=ids, negatives=tuple(map(CORPUS.document, ids)))]) == {finding: 1}


def test_an_id_that_the_corpus_lacks_is_found() -> None:
    assert audit([record(negative_ids=("s1", "gone"))]) == {"missing_ids": 1}


@pytest.mark.parametrize("changes", [{"positive": "another text"}, {"negatives": (CORPUS.document("s1"), "other")}])
def test_a_text_that_is_not_its_ids_document_is_found(changes: dict[str, Any]) -> None:
    assert audit([record(**changes)]) == {"id_text_mismatches": 1}


def test_a_repeated_record_and_a_wrong_number_of_negatives_are_found() -> None:
    short = record(record_id="r1", negative_ids=("s1",), negatives=(CORPUS.document("s1"),))
    assert audit([record(), record(), short]) == {"repeated_records": 1, "wrong_counts": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"negative_ids": ("s2", "s1"), "negatives": (CORPUS.document("s2"), CORPUS.document("s1"))},
        {"query_capability": "another rationale"},
        {"original_query": "another request"},
        {"record_id": "unknown"},
    ],
)
def test_a_second_stage_that_left_its_record_is_found(changes: dict[str, Any]) -> None:
    assert audit([record()], [replace(to_stage2(record(), "implicit"), **changes)]) == {"misaligned_stages": 1}
