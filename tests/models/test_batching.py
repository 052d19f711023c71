"""Micro-batches: every row once, the budget kept, masks independent of ids."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from models.batching import pad_left, pad_right, plan_micro_batches


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_a_plan_holds_every_row_once_and_keeps_the_budget(lengths, budget):
    plan = plan_micro_batches(lengths, budget)
    assert sorted(row for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) == 1 or len(rows) * max(lengths[r] for r in rows) <= budget


def test_rows_are_grouped_from_the_longest():
    # 9 alone (two rows would be 18 > 12); then 4, 4, 3 (3 x 4 = 12); then 1
    assert plan_micro_batches([4, 1, 9, 3, 4], 12) == [[2], [0, 4, 3], [1]]


def test_a_budget_of_zero_puts_everything_into_one():
    assert plan_micro_batches([2, 5, 3], 0) == [[1, 2, 0]]


def test_no_rows_need_no_micro_batch():
    assert plan_micro_batches([], 10) == []


def test_padding_right():
    ids, mask = pad_right([[7, 8, 9], [7]], 7)
    assert ids.tolist() == [[7, 8, 9], [7, 7, 7]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_padding_left():
    ids, mask = pad_left([[7, 8, 9], [8]], 7)
    assert ids.tolist() == [[7, 8, 9], [7, 7, 8]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
