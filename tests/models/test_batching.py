"""Micro-batches: every row once, the budget kept, masks independent of ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.batching import pad_left, pad_right, plan_micro_batches, plan_over_ranks, plan_packed, prefix_order


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


def padded(batch: list[int], lengths: list[int]) -> int:
    return len(batch) * max((lengths[i] for i in batch), default=0)


UNEVEN = [7, 900, 31, 30, 2, 2, 450, 451, 12, 64, 3, 5, 100, 8, 9, 250, 1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 30])
@pytest.mark.parametrize("budget", [0, 100, 1000, 4000])
def test_over_ranks_every_sequence_is_planned_once_in_the_same_number_of_passes(ranks: int, budget: int):
    plan = plan_over_ranks(UNEVEN, budget, ranks)
    assert len(plan) == ranks
    assert len({len(passes) for passes in plan}) == 1
    assert sorted(row for passes in plan for batch in passes for row in batch) == list(range(len(UNEVEN)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_over_ranks_the_budget_holds_but_for_single_longer_sequences(ranks: int):
    for batch in (batch for passes in plan_over_ranks(UNEVEN, 200, ranks) for batch in passes):
        assert padded(batch, UNEVEN) <= 200 or len(batch) == 1


def test_over_ranks_no_more_passes_are_made_than_the_budget_asks_for():
    # 8 sequences of 10 tokens, 2 a micro-batch: 4 micro-batches on 2 ranks are 2 passes
    assert plan_over_ranks([10] * 8, 20, 2) == [[[0, 1], [6, 7]], [[2, 3], [4, 5]]]


def test_over_ranks_work_is_spread_where_the_budget_would_hold_it_all():
    # one micro-batch would do; each rank gets a quarter of it
    assert plan_over_ranks([10] * 8, 1000, 4) == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
    assert plan_over_ranks([10] * 8, 0, 4) == plan_over_ranks([10] * 8, 1000, 4)


def test_over_ranks_long_and_short_sequences_balance_by_padded_tokens():
    # 8 tokens in two sequences, or in eight
    assert plan_over_ranks([4, 4, 1, 1, 1, 1, 1, 1, 1, 1], 0, 2) == [[[0, 1]], [[2, 3, 4, 5, 6, 7, 8, 9]]]


def test_over_more_ranks_than_sequences_the_others_get_dummies():
    assert plan_over_ranks([5, 9], 100, 4) == [[[1]], [[0]], [[]], [[]]]
    assert plan_over_ranks([], 100, 3) == [[], [], []]


def test_over_one_rank_the_plan_is_that_of_one_process():
    assert plan_over_ranks(UNEVEN, 500, 1) == [plan_micro_batches(UNEVEN, 500)]


def test_over_ranks_every_other_pass_runs_in_reverse():
    # from the longest to the shortest: 8, 7 | 6, 5 in reverse, so that both ranks have 13 tokens
    plan = plan_over_ranks([8, 7, 6, 5], 8, 2)
    assert plan == [[[0], [3]], [[1], [2]]]


# -- packed -------------------------------------------------------------------------------------------------------------

A, B = list(range(100, 110)), list(range(200, 212))
"""Two prefixes, of 10 and 12 tokens."""
TREE = [[*B, 1], [*A, 1, 2, 3], [7], [*A], [*B, 2, 2], [*A, 1, 2, 4], [*A, 5]]


def test_the_order_of_prefixes_keeps_those_together_that_begin_alike():
    order = prefix_order(TREE)
    assert [TREE[index] for index, _ in order] == sorted(TREE)
    assert order == [(2, 0), (3, 0), (1, 10), (5, 12), (6, 10), (0, 0), (4, 12)]


def test_short_prefixes_are_not_shared():
    assert prefix_order([[1, 2, 3], [1, 2, 4]]) == [(0, 0), (1, 0)]
    assert prefix_order([[1, 2, 3], [1, 2, 4]], min_shared=2) == [(0, 0), (1, 2)]
    assert prefix_order([]) == []


def distinct(sequences: list[list[int]]) -> int:
    """Tokens of a micro-batch, counted by hand: the prefixes of A and B once."""
    shared = sum(max(0, sum(s[: len(p)] == p for s in sequences) - 1) * len(p) for p in (A, B))
    deeper = max(0, sum(s[:12] == [*A, 1, 2] for s in sequences) - 1) * 2
    return sum(map(len, sequences)) - shared - deeper


@pytest.mark.parametrize("budget", [1, 13, 16, 20, 30, 0])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_packed_micro_batches_hold_every_sequence_once_within_the_budget(budget: int, ranks: int):
    plan = plan_packed(TREE, budget, ranks)
    assert len(plan) == ranks
    assert len({len(passes) for passes in plan}) == 1
    assert sorted(row for passes in plan for rows in passes for row in rows) == list(range(len(TREE)))
    for rows in (rows for passes in plan for rows in passes):
        tokens = distinct([TREE[row] for row in rows])
        assert tokens <= budget or budget == 0 or len(rows) == 1


def test_a_packed_plan_has_as_few_passes_as_it_can_and_spreads_them_evenly():
    assert distinct(TREE) == 31
    assert len(plan_packed(TREE, 31)[0]) == 1
    sizes = [distinct([TREE[row] for row in rows]) for rows in plan_packed(TREE, 30)[0]]
    # and not 29 and 14, which the budget allows too: everything that begins with A, then with B
    assert sizes == [16, 15]


def test_no_sequences_need_no_packed_passes():
    assert plan_packed([], 10, 2) == [[], []]
