"""Accuracies by suite and on average, intervals and tests, from verdicts chosen by hand."""

from __future__ import annotations

import pytest

from evaluation.end_to_end.scoring import score_conditions
from evaluation.end_to_end.tasks import Task


def tasks(**sizes: int) -> list[Task]:
    return [Task(f"{suite}{i}", suite, "?", (), {}) for suite, size in sizes.items() for i in range(size)]


def test_the_average_is_over_suites_not_over_instances():
    scored = score_conditions(tasks(a=4, b=1), {"x": ["correct", "wrong", "wrong", "wrong", "correct"]})
    (row,) = scored["conditions"]
    assert row["accuracy"] == pytest.approx((1 / 4 + 1) / 2)
    assert (row["correct"], row["wrong"], row["unparsable"], row["missing"]) == (2, 3, 0, 0)
    assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]


def test_unparsable_is_not_solved_and_missing_is_left_out():
    scored = score_conditions(tasks(a=4), {"x": ["correct", "unparsable", "missing", "missing"]})
    assert scored["conditions"][0]["accuracy"] == pytest.approx(1 / 2)


def test_a_suite_without_any_answer_has_no_average():
    scored = score_conditions(tasks(a=1, b=1), {"x": ["correct", "missing"], "y": ["correct", "correct"]})
    assert scored["conditions"][0]["accuracy"] is None
    assert scored["conditions"][0]["interval"] is None
    assert scored["comparisons"] == [
        {"first": "x", "second": "y", "n": 1, "difference": None, "interval": None, "p": None}
    ]


def test_a_difference_is_the_second_minus_the_first_on_average_over_suites():
    statuses = {"x": ["wrong"] * 4 + ["correct"], "y": ["correct", "wrong", "wrong", "wrong", "correct"]}
    (pair,) = score_conditions(tasks(a=4, b=1), statuses)["comparisons"]
    assert pair["difference"] == pytest.approx(1 / 8)  # a quarter in one suite of two
    assert (pair["first"], pair["second"], pair["n"]) == ("x", "y", 5)


def test_p_counts_the_changes_of_sign():
    # Three instances changed, all for the better: of the eight ways to choose signs two are as extreme.
    statuses = {"x": ["wrong"] * 3 + ["correct"], "y": ["correct"] * 4}
    (pair,) = score_conditions(tasks(a=4), statuses)["comparisons"]
    assert pair["p"] == pytest.approx(2 / 8)


def test_p_weighs_suites_as_the_average_does():
    # Suite a (2 instances) gains one, weight 1/2; suite b (1 instance) loses one, weight 1. Of the four sums of signs
    # (±1/2 ±1) all are at least as far from 0 as -1/2.
    statuses = {"x": ["wrong", "wrong", "correct"], "y": ["correct", "wrong", "wrong"]}
    (pair,) = score_conditions(tasks(a=2, b=1), statuses)["comparisons"]
    assert pair["difference"] == pytest.approx((0.5 - 1) / 2)
    assert pair["p"] == pytest.approx(1.0)


def test_instances_that_one_lacks_are_not_compared():
    statuses = {"x": ["wrong", "missing"], "y": ["correct", "correct"]}
    (pair,) = score_conditions(tasks(a=2), statuses)["comparisons"]
    assert (pair["n"], pair["difference"]) == (1, 1.0)
