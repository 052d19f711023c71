"""D.1's structural checks, one broken rule at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_pipeline import Skill, SkillCorpus, Stage1Record
from data_pipeline.validation import query_problem, record_problem

CORPUS = SkillCorpus([*(Skill(f"s{i}", f"n{i}", "d", "b") for i in range(4)), Skill("copy", "n1", "d", "b")])
GOOD = Stage1Record("r", "q", "c", "s0", "n0 | d | b", ("s1", "s2"), ("n1 | d | b", "n2 | d | b"), "s0")


def problem(record: Stage1Record, **exclusions: set[str]) -> str | None:
    return record_problem(record, CORPUS, {k: frozenset(v) for k, v in exclusions.items()}, 2)


def test_a_good_record_has_no_problem() -> None:
    assert problem(GOOD, s1={"s2"}, s2={"s1"}) is None


@pytest.mark.parametrize(
    "record, expected",
    [
        (replace(GOOD, negative_ids=("s1",), negatives=("n1 | d | b",)), "wrong_negative_count"),
        (replace(GOOD, negatives=("n1 | d | b",)), "wrong_negative_count"),
        (replace(GOOD, negative_ids=("s1", "s1")), "duplicate_negative"),
        (replace(GOOD, negative_ids=("s1", "s0")), "positive_among_negatives"),
        (replace(GOOD, negative_ids=("s1", "s9")), "unknown_skill"),
        (replace(GOOD, positive_id="s9"), "unknown_skill"),
        (replace(GOOD, negatives=("n1 | d | b", " ")), "empty_document"),
        (replace(GOOD, negatives=("n2 | d | b", "n1 | d | b")), "id_text_mismatch"),
        (replace(GOOD, positive="n0 | d | changed"), "id_text_mismatch"),
    ],
)
def test_broken_rule(record: Stage1Record, expected: str) -> None:
    assert problem(record) == expected


def test_an_edge_of_the_exclusion_graph_is_found() -> None:
    assert problem(GOOD, s0={"s2"}, s2={"s0"}) == "excluded_negative"


@pytest.mark.parametrize(
    "query, expected",
    [
        ("one two three four five six seven", "short_query"),
        ("one two three four five six seven eight", None),
        (" ".join(["w"] * 110), None),
        (" ".join(["w"] * 111), "overlong_query"),
        (" ".join(["w" * 86] * 8) + "wwwww", None),
        (" ".join(["w" * 86] * 8) + "wwwwww", "overlong_query"),
        (" \n", "empty_query"),
    ],
)
def test_request_bounds(query: str, expected: str | None) -> None:
    assert query_problem(query) == expected
