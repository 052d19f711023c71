"""Requests that say the same thing twice."""

from __future__ import annotations

import numpy as np

from data_pipeline.near_duplicates import near_duplicates


def unit(*rows: tuple[float, float]) -> np.ndarray:
    matrix = np.array(rows, dtype=np.float32)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


SAME = ["draw monthly revenue chart", "draw revenue chart monthly", "draw monthly revenue chart"]


def test_of_one_target_the_best_score_stays() -> None:
    found = near_duplicates(SAME, ["s", "s", "s"], [0.1, 0.9, 0.5], unit((1, 0), (1, 0.01), (1, 0.02)))
    assert found.dropped == {0: 1, 2: 1}


def test_equal_scores_are_resolved_by_input_order() -> None:
    found = near_duplicates(SAME[:2], ["s", "s"], [0.5, 0.5], unit((1, 0), (1, 0)))
    assert found.dropped == {1: 0}


def test_the_same_words_for_two_targets_are_kept_and_disputed() -> None:
    found = near_duplicates(SAME[:2], ["s", "t"], [0.5, 0.9], unit((1, 0), (1, 0)))
    assert (found.dropped, found.disputed) == ({}, [(0, 1)])


def test_close_vectors_with_other_words_are_two_requests() -> None:
    queries = ["translate contract into German", "repair leaking kitchen pipe"]
    assert near_duplicates(queries, ["s", "s"], [1, 1], unit((1, 0), (1, 0))).dropped == {}


def test_the_same_words_far_apart_are_two_requests() -> None:
    assert near_duplicates(SAME[:2], ["s", "s"], [1, 1], unit((1, 0), (0, 1))).dropped == {}


def test_a_row_that_is_dropped_itself_drops_nobody() -> None:
    # 0 ~ 1 and 1 ~ 2, but 0 and 2 share too few words: 1 falls to 0, and 2 stays
    queries = ["alpha beta gamma delta", "beta gamma delta epsilon", "gamma delta epsilon zeta"]
    found = near_duplicates(queries, ["s"] * 3, [3, 2, 1], unit((1, 0), (1, 0), (1, 0)))
    assert found.dropped == {1: 0}


def test_a_second_signal_may_name_the_only_pairs_that_count() -> None:
    # all three say the same; without the pair (0, 1) row 1 stays, and drops 2 in its turn
    vectors = unit((1, 0), (1, 0), (1, 0))
    assert near_duplicates(SAME, ["s"] * 3, [3, 2, 1], vectors, among={(1, 2)}).dropped == {2: 1}
    assert near_duplicates(SAME, ["s"] * 3, [3, 2, 1], vectors, among=set()).dropped == {}


def test_no_requests_have_no_duplicates() -> None:
    assert near_duplicates([], [], [], np.zeros((0, 2), dtype=np.float32)).dropped == {}
