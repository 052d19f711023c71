"""Exec-Pass, Func-Coverage and Distinct-3 (A.4) against cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_pipeline.skill2query.graph import Capability, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form, PseudoQuery
from data_pipeline.skill2query.quality import (
    covers,
    distinct_3,
    exec_pass,
    func_coverage,
    func_coverage_by_trace,
    quality_report,
)


def query(
    text: str,
    skill: str = "a/fern",
    capability: str = "c1",
    problems: tuple[str, ...] = (),
    method: str = "skill2query",
):
    return PseudoQuery(
        f"{method}/{skill}/{text}", skill, text, capability, "", f"t/{text}", text, Form.WH, {}, problems, method
    )


def graph(skill: str, *capabilities: str) -> SkillGraph:
    nodes = tuple(Capability(f"c{i}", text, "list") for i, text in enumerate(capabilities, start=1))
    return SkillGraph(skill, skill, "", nodes)


FERN = graph("a/fern", "water tropical ferns", "repot cactus plants", "prune hedges")
MOSS = graph("a/moss", "collect moss samples")
BARE = graph("a/bare")


def test_exec_pass_is_the_share_of_results_without_problems() -> None:
    failing = ("range: x = 9 is outside 1 to 5", "type: y = 'a' is not a number")
    assert exec_pass([query("a"), query("b", problems=failing), query("c"), query("d")]) == 3 / 4


def test_exec_pass_of_nothing_is_0() -> None:
    assert exec_pass([]) == 0


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("How often do I water tropical ferns?", True),  # all three words
        ("Why do my ferns need so much water?", True),  # two of three
        ("Are ferns poisonous?", False),  # one of three
        ("Watering a fern, how?", True),  # endings do not matter
        ("What is the time?", False),
    ],
)
def test_a_query_covers_a_capability_with_half_of_its_content_words(text: str, covered: bool) -> None:
    assert covers(text, "water tropical ferns") is covered


def test_func_coverage_is_the_mean_over_skills_with_capabilities() -> None:
    # fern: 2 of 3 capabilities, by three queries; moss: 0 of 1, it has no query; bare does not count.
    queries = [
        query("Water the tropical ferns"),
        query("Water ferns"),
        query("Repot a cactus"),
        query("Who?", "a/bare"),
    ]
    assert func_coverage(queries, [FERN, MOSS, BARE]) == pytest.approx((2 / 3 + 0) / 2)


def test_a_query_covers_capabilities_of_its_own_skill_only() -> None:
    assert func_coverage([query("Collect moss samples", "a/fern")], [FERN, MOSS]) == 0


def test_func_coverage_by_trace_goes_by_the_capability_that_the_query_was_written_for() -> None:
    queries = [query("x", capability="c1"), query("y", capability="c3"), query("z", "a/moss", "c1")]
    assert func_coverage_by_trace(queries, [FERN, MOSS, BARE]) == pytest.approx((2 / 3 + 1) / 2)


def test_func_coverage_without_capabilities_is_0() -> None:
    assert func_coverage([query("x")], [BARE]) == 0


def test_distinct_3_by_hand() -> None:
    # a b c | b c d | c d e   and   a b c | b c x: five trigrams, four different ones
    assert distinct_3(["a b c d e", "a b c x"]) == 4 / 5


def test_distinct_3_ignores_case_and_punctuation() -> None:
    assert distinct_3(["Water my ferns!", "water, my ferns"]) == 1 / 2


def test_trigrams_do_not_go_from_one_query_into_the_next() -> None:
    assert distinct_3(["a b", "c d"]) == 0
    assert distinct_3(["a b c", "d e f"]) == 1


def test_the_report_has_a_row_for_each_method_over_the_same_skills() -> None:
    ours = [
        query("Water tropical ferns now"),
        replace(query("Repot the cactus", capability="c2", problems=("enum: x",)), slots={"n": "1"}),
    ]
    theirs = [query("Are ferns nice?", capability="", method="zero_shot")]
    report = quality_report([*theirs, *ours], [FERN, MOSS, BARE])
    assert [row.method for row in report.methods] == ["skill2query", "zero_shot"]
    assert (report.skills, report.with_capabilities, report.capabilities) == (3, 2, 4)
    first, second = report.methods
    assert (first.queries, first.exec_pass, first.exec_pass_slots, first.problems) == (2, 0.5, 0.0, {"enum": 1})
    assert first.func_coverage == pytest.approx(1 / 3)
    assert first.func_coverage_by_trace == pytest.approx(1 / 3)
    assert (second.func_coverage, second.func_coverage_by_trace, second.exec_pass_slots) == (0, None, None)
    assert "| zero_shot | 1 | 1 | 100.00 | – | 0.00 | – | 100.00 | 3 |" in report.table().splitlines()


def test_a_query_of_an_unknown_skill_is_refused() -> None:
    with pytest.raises(ValueError, match="'a/other', which the corpus lacks"):
        quality_report([query("x", "a/other")], [FERN])
