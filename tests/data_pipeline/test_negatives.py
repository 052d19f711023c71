"""Table 13: order, quotas and admissibility of the four sources."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from data_pipeline import NegativeQuotas, Skill, category_from_prefix
from data_pipeline.negatives import NegativeMiner, NegativeSet, Shortfall

CATEGORIES = {f"{c}/{i}": c for c in "abc" for i in range(20)}
NEAR = {"a/0": [f"a/{i}" for i in range(1, 10)]}
RANKED = ["a/0", "b/1", "a/1", "b/2", "gone", "b/3", "b/4", "b/5"]


def miner(**options: Any) -> NegativeMiner:
    defaults: dict[str, Any] = {"categories": CATEGORIES, "exclusions": {}, "skill_neighbours": NEAR}
    return NegativeMiner(**(defaults | options))


def mine(record_id: str = "r1", ranked: list[str] = RANKED, **options: Any) -> NegativeSet:
    mined = miner(**options).mine(record_id, "a/0", ranked)
    assert isinstance(mined, NegativeSet)
    return mined


def test_order_and_quotas_of_table_13() -> None:
    assert mine().sources == (
        *["skill_neighbours"] * 4,
        *["query_neighbours"] * 3,
        *["same_category"] * 2,
        "cross_category",
    )


def test_neighbours_come_best_first_without_the_positive_repeats_or_unknown_ids() -> None:
    mined = mine()
    assert mined.ids[:4] == ("a/1", "a/2", "a/3", "a/4")
    assert mined.ids[4:7] == ("b/1", "b/2", "b/3")


def test_sampled_sources_keep_to_their_categories() -> None:
    mined = mine()
    assert [CATEGORIES[i] for i in mined.ids[7:9]] == ["a", "a"]
    assert CATEGORIES[mined.ids[9]] in "bc"
    assert len(set(mined.ids)) == 10
    assert "a/0" not in mined.ids


def test_excluded_skills_are_kept_out_of_every_source() -> None:
    excluded = frozenset({"a/1", "b/1", *(f"a/{i}" for i in range(10, 20)), *(f"c/{i}" for i in range(20))})
    for n in range(50):
        mined = mine(f"r{n}", exclusions={"a/0": excluded})
        assert excluded.isdisjoint(mined.ids)
        assert mined.ids[:7] == ("a/2", "a/3", "a/4", "a/5", "b/2", "b/3", "b/4")


def test_an_outcome_depends_on_seed_and_record_only() -> None:
    assert mine("r1") == mine("r1")
    assert len({mine(f"r{n}").ids for n in range(20)}) > 15
    assert len({mine("r1", seed=n).ids for n in range(20)}) > 15


def test_the_order_of_the_corpus_does_not_matter() -> None:
    assert mine(categories=dict(reversed(CATEGORIES.items()))) == mine()


def test_samples_are_uniform_over_the_admissible() -> None:
    # a/5 .. a/19 are left for two places: each has probability 2/15, about 533 of 4,000 with deviation 21.5.
    counts = Counter(i for n in range(4000) for i in mine(f"r{n}").ids[7:9])
    assert set(counts) == {f"a/{i}" for i in range(5, 20)}
    assert all(abs(count - 4000 * 2 / 15) < 5 * 21.5 for count in counts.values())


@pytest.mark.parametrize(
    "options, ranked, expected",
    [
        ({"skill_neighbours": {"a/0": ["a/1", "a/2"]}}, RANKED, Shortfall("skill_neighbours", 4, 2)),
        ({}, ["a/0", "b/1"], Shortfall("query_neighbours", 3, 1)),
        ({"categories": {k: v for k, v in CATEGORIES.items() if v != "a" or int(k[2:]) < 6}}, RANKED, None),
        (
            {"categories": {k: v for k, v in CATEGORIES.items() if v != "a" or int(k[2:]) < 5}},
            RANKED,
            Shortfall("same_category", 2, 0),
        ),
        ({"categories": dict.fromkeys(CATEGORIES, "one")}, RANKED, Shortfall("cross_category", 1, 0)),
    ],
)
def test_a_source_that_runs_dry_is_reported(
    options: dict[str, Any], ranked: list[str], expected: Shortfall | None
) -> None:
    mined = miner(**options).mine("r1", "a/0", ranked)
    assert mined == (expected or Shortfall("same_category", 2, 1))


def test_a_source_without_quota_is_not_asked() -> None:
    quotas = NegativeQuotas(skill_neighbours=2, query_neighbours=0, same_category=0, cross_category=0)
    assert mine(quotas=quotas, ranked=[]).ids == ("a/1", "a/2")


def test_impossible_quotas_are_named() -> None:
    with pytest.raises(ValueError, match=r"quotas\.same_category = -1"):
        NegativeQuotas(same_category=-1)
    with pytest.raises(ValueError, match="all four are 0"):
        NegativeQuotas(0, 0, 0, 0)


def test_the_papers_total_is_ten() -> None:
    assert NegativeQuotas().total == 10


def test_category_is_the_prefix_of_the_id() -> None:
    assert category_from_prefix(Skill("finance/budget/deep", "n", "d", "b")) == "finance"
    assert category_from_prefix(Skill("alone", "n", "d", "b")) == "alone"
