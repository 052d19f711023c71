"""The deterministic quality score of a request."""

from __future__ import annotations

import pytest

from data_pipeline import Skill
from data_pipeline.quality import content_words, lexical_overlap, quality_score

CHARTS = Skill("a/charts", "charts", "draw bar charts from spreadsheet columns", "", {})
TABLES = Skill("a/tables", "tables", "merge spreadsheet tables by key columns", "", {})


def words(count: int) -> str:
    return " ".join(f"word{i}" for i in range(count))


def test_content_words_leave_out_function_words_case_and_punctuation() -> None:
    assert content_words("Please draw THE bar-charts, for us!") == {"draw", "bar", "charts"}


def test_overlap_is_the_share_of_the_requests_content_words() -> None:
    assert lexical_overlap("draw charts quickly tomorrow", CHARTS) == pytest.approx(2 / 4)
    assert lexical_overlap("the of and", CHARTS) == 0.0


@pytest.mark.parametrize(
    ("count", "expected"), [(8, 0.0), (25, 1.0), (47, 1.0), (70, 1.0), (90, 0.5), (110, 0.0), (16, 8 / 17)]
)
def test_length_is_best_between_25_and_70_words(count: int, expected: float) -> None:
    assert quality_score(words(count), CHARTS, []).length == pytest.approx(expected)


def test_meta_language_is_penalized() -> None:
    plain = quality_score(f"{words(30)} now", CHARTS, [])
    meta = quality_score(f"{words(30)} use this skill", CHARTS, [])  # "use this skill" and "this skill"
    assert meta.meta_language == 1.0
    assert meta.total == pytest.approx(plain.total - 1.0)


def test_a_negative_that_fits_better_than_the_target_lowers_the_score() -> None:
    query = f"merge spreadsheet tables {words(30)}"
    risky = quality_score(query, CHARTS, [TABLES])
    safe = quality_score(query, TABLES, [CHARTS])
    assert (risky.label_risk, safe.label_risk) == (1.0, 0.0)
    assert safe.total > risky.total


def test_an_equally_fitting_negative_is_no_risk() -> None:
    assert quality_score(f"spreadsheet {words(30)}", CHARTS, [TABLES]).label_risk == 0.0
