"""The candidate pool of E.4: what a request's hard negatives are."""

from __future__ import annotations

import pytest

from rewards import build_pool


def negatives(pool, row: int) -> set[str]:
    return {skill_id for skill_id, kept in zip(pool.ids, pool.negatives[row].tolist(), strict=True) if kept}


def test_the_pool_is_every_document_of_the_batch_once():
    pool = build_pool(["a", "d"], [["b", "c"], ["b", "e"]])
    assert pool.ids == ["a", "b", "c", "d", "e"]
    assert pool.occurrences == 6


def test_the_papers_pool_has_1232_occurrences():
    positives = [f"p{i}" for i in range(112)]
    pool = build_pool(positives, [[f"n{i}-{j}" for j in range(10)] for i in range(112)])
    assert pool.occurrences == len(pool.ids) == 1232
    assert pool.negatives.sum(1).tolist() == [1231] * 112


def test_a_request_is_compared_with_the_documents_of_all_groups_but_its_target():
    pool = build_pool(["a", "d"], [["b", "c"], ["b", "e"]])
    assert negatives(pool, 0) == {"b", "c", "d", "e"}
    assert negatives(pool, 1) == {"a", "b", "c", "e"}


def test_the_positive_points_at_the_target():
    pool = build_pool(["a", "d"], [["d", "c"], ["b", "a"]])
    assert [pool.ids[i] for i in pool.positive.tolist()] == ["a", "d"]


def test_a_target_that_another_request_lists_as_negative_stays_out_by_skill_id():
    pool = build_pool(["a", "d"], [["b", "c"], ["a", "e"]], mask_positive="skill_id")
    assert negatives(pool, 0) == {"b", "c", "d", "e"}


def test_a_target_that_another_request_lists_as_negative_stays_in_by_occurrence():
    pool = build_pool(["a", "d"], [["b", "c"], ["a", "e"]], mask_positive="occurrence")
    assert negatives(pool, 0) == {"a", "b", "c", "d", "e"}
    assert negatives(pool, 1) == {"a", "b", "c", "e"}


def test_two_requests_with_one_target_keep_it_out_by_skill_id():
    pool = build_pool(["a", "a"], [["b"], ["c"]], mask_positive="skill_id")
    assert negatives(pool, 0) == negatives(pool, 1) == {"b", "c"}


def test_neighbours_in_the_exclusion_graph_are_masked_where_it_is_given():
    exclusions = {"a": {"b", "e", "not-in-the-pool"}}
    pool = build_pool(["a", "d"], [["b", "c"], ["b", "e"]], exclusions=exclusions)
    assert negatives(pool, 0) == {"c", "d"}
    assert negatives(pool, 1) == {"a", "b", "c", "e"}


def test_a_request_without_any_negative_left_is_refused_with_its_target():
    with pytest.raises(ValueError, match="query 0 with target 'a' has no negative left in a pool of 2 documents"):
        build_pool(["a"], [["b"]], exclusions={"a": {"b"}})


def test_an_unknown_masking_is_refused_by_key():
    with pytest.raises(ValueError, match=r"reward\.mask_positive is 'id'; expected 'skill_id' or 'occurrence'"):
        build_pool(["a"], [["b"]], mask_positive="id")
