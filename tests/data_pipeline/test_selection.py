"""Coverage-constrained selection."""

from __future__ import annotations

from collections import Counter

import pytest

from data_pipeline.selection import Candidate, select


def make(category: str, count: int, score: float = 1.0, per_skill: int = 1) -> list[Candidate]:
    return [
        Candidate(f"{category}{i}", f"{category}/s{i // per_skill}", category, score - i * 1e-3) for i in range(count)
    ]


def test_small_categories_get_their_reserve_before_better_scores_elsewhere() -> None:
    rows = [*make("big", 20, 9.0), *make("mid", 20, 5.0), *make("tiny", 2, 0.0)]
    chosen = select(rows, 10, reserve=2, category_share=0.5).chosen
    assert Counter(name.rstrip("0123456789") for name in chosen) == {"big": 5, "mid": 3, "tiny": 2}


def test_no_skill_has_more_than_two_requests() -> None:
    rows = [*make("a", 6, per_skill=3), *make("b", 6, per_skill=3), *make("c", 6, per_skill=3)]
    result = select(rows, 18)
    skills = Counter(row.skill_id for row in rows if row.record_id in result.chosen)
    assert set(skills.values()) == {2}
    assert result.left_out["skill_full"] == 6


def test_no_category_makes_up_more_than_its_share_of_what_is_selected_in_the_end() -> None:
    rows = [*make("a", 90, 2.0), *make("b", 5), *make("c", 5)]
    result = select(rows, 100, category_share=0.4)
    assert result.by_category["a"] <= 0.4 * len(result.chosen)
    assert result.by_category == {"a": 6, "b": 5, "c": 5}  # 6 of 16; a seventh would be 7 of 17


def test_the_best_scores_fill_what_the_reserves_leave() -> None:
    rows = [*make("a", 4, 1.0), *make("b", 4, 9.0)]
    assert set(select(rows, 4, reserve=1, category_share=0.75).chosen) == {"a0", "b0", "b1", "b2"}


def test_equal_scores_keep_their_order_and_the_result_is_in_input_order() -> None:
    rows = [Candidate(name, name, name[0], 1.0) for name in ("b1", "a1", "b2", "a2")]
    assert select(rows, 2, reserve=1, category_share=0.5).chosen == ["b1", "a1"]


def test_too_few_categories_for_the_share_are_refused_with_what_would_do() -> None:
    with pytest.raises(ValueError, match=r"select.category_share is 0.4, and there are 2 categories.*at least 0.50"):
        select([*make("a", 3), *make("b", 3)], 4)


def test_nothing_to_select_from_is_no_error() -> None:
    assert select([], 10).chosen == []
