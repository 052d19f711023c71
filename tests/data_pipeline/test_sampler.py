"""The separated batch sampler: sizes, determinism, collisions avoided and counted."""

from __future__ import annotations

import random
import time
from itertools import combinations

import pytest

from data_pipeline import ExclusionGraph, SeparatedBatchSampler, Stage1Record, UniqueSkillBatchSampler
from data_pipeline.exclusions import ExclusionEdge


def record(positive: str, *negatives: str) -> Stage1Record:
    return Stage1Record("r", "q", "c", positive, "d", negatives, ("d",) * len(negatives), "c")


def collide(a: Stage1Record, b: Stage1Record) -> bool:
    return a.positive_id in (b.positive_id, *b.negative_ids) or b.positive_id in (a.positive_id, *a.negative_ids)


def separate(n: int) -> list[Stage1Record]:
    return [record(f"p{i}", f"n{i}") for i in range(n)]


@pytest.mark.parametrize("n, size, updates", [(30_000, 256, 117), (29_995, 112, 267), (10, 10, 1), (19, 10, 1)])
def test_the_incomplete_batch_is_dropped(n: int, size: int, updates: int) -> None:
    sampler = SeparatedBatchSampler(separate(n), size)
    batches = list(sampler)
    assert len(batches) == len(sampler) == updates
    assert all(len(batch) == size for batch in batches)
    assert len({i for batch in batches for i in batch}) == updates * size


def test_seed_and_epoch_alone_decide() -> None:
    records = separate(100)
    same = [list(SeparatedBatchSampler(records, 10, seed=1, epoch=2)) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != list(SeparatedBatchSampler(records, 10, seed=1, epoch=3))
    assert same[0] != list(SeparatedBatchSampler(records, 10, seed=2, epoch=2))


def test_set_epoch_equals_a_new_sampler() -> None:
    records = separate(100)
    sampler = SeparatedBatchSampler(records, 10, seed=1, epoch=0)
    list(sampler)
    sampler.set_epoch(5)
    assert list(sampler) == list(SeparatedBatchSampler(records, 10, seed=1, epoch=5))


def test_iterating_twice_gives_the_same_batches() -> None:
    sampler = SeparatedBatchSampler(separate(40), 8)
    first = list(sampler)
    first[0].clear()
    assert [len(batch) for batch in sampler] == [8] * 5


@pytest.mark.parametrize("epoch", range(10))
def test_repeated_groups_are_separated(epoch: int) -> None:
    records = [record(f"p{i % 20}", f"n{i}") for i in range(40)]
    sampler = SeparatedBatchSampler(records, 20, epoch=epoch)
    assert [len({records[i].positive_id for i in batch}) for batch in sampler] == [20, 20]
    assert sampler.collisions == 0


@pytest.mark.parametrize("epoch", range(10))
def test_a_positive_is_kept_from_batches_where_it_is_a_negative(epoch: int) -> None:
    records = [record("a", "b"), record("b", "x"), record("c", "d"), record("d", "y")]
    sampler = SeparatedBatchSampler(records, 2, epoch=epoch)
    assert sampler.collisions == 0
    assert all(sorted(batch) not in ([0, 1], [2, 3]) for batch in sampler)


@pytest.mark.parametrize("records", [[("a", "x"), ("b", "y")], [("a", "x"), ("c", "b")]])
def test_exclusion_neighbours_collide_as_positives_and_as_negatives(records: list[tuple[str, str]]) -> None:
    graph = ExclusionGraph((ExclusionEdge("a", "b", "copy", 0.9, 0.9),))
    made = [record(*names) for names in records]
    assert SeparatedBatchSampler(made, 2, exclusions=graph).collisions == 1
    assert SeparatedBatchSampler(made, 2, exclusions=graph.adjacency).collisions == 1
    assert SeparatedBatchSampler(made, 2).collisions == 0


def test_shared_negatives_are_no_collision() -> None:
    assert SeparatedBatchSampler([record("a", "x"), record("b", "x")], 2).collisions == 0


def test_unavoidable_collisions_are_counted_as_pairs() -> None:
    # Four records of one skill in one batch: six pairs. Two that collide both ways are still one pair.
    assert SeparatedBatchSampler([record("a", f"n{i}") for i in range(4)], 4).collisions == 6
    assert SeparatedBatchSampler([record("a", "b"), record("b", "a")], 2).collisions == 1


def test_the_count_equals_a_brute_force_count_and_is_far_below_chance() -> None:
    generator = random.Random(3)
    skills = [f"s{i}" for i in range(400)]
    records = []
    for _ in range(400):
        positive, *negatives = generator.sample(skills, 7)
        records.append(record(positive, *negatives))
    sampler = SeparatedBatchSampler(records, 40)
    counted = sum(collide(records[a], records[b]) for batch in sampler for a, b in combinations(batch, 2))
    assert sampler.collisions == counted
    order = list(range(400))
    generator.shuffle(order)
    chance = sum(
        collide(records[a], records[b])
        for start in range(0, 400, 40)
        for a, b in combinations(order[start : start + 40], 2)
    )
    assert chance > 100
    assert counted < chance / 5


def test_records_with_many_collisions_are_not_dropped_every_epoch() -> None:
    # Every other record has the hub among its negatives; 15 records in batches of 10 drop five an epoch.
    records = [record("hub", "x"), *(record(f"p{i}", "hub") for i in range(14))]
    seen = [any(0 in batch for batch in SeparatedBatchSampler(records, 10, epoch=epoch)) for epoch in range(60)]
    # Chance keeps it in two of three epochs: 40 of 60, deviation 3.7.
    assert 22 < sum(seen) < 58


def test_fewer_records_than_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size = 256: only 3 records"):
        SeparatedBatchSampler(separate(3), 256)


def test_the_papers_size_takes_seconds() -> None:
    generator = random.Random(0)
    skills = [f"s{i}" for i in range(65_714)]
    positives = skills[:12_573] * 2 + skills[12_573:17_427]
    records = [record(positive, *generator.sample(skills, 10)) for positive in positives]
    start = time.perf_counter()
    sampler = SeparatedBatchSampler(records, 256)
    assert len(list(sampler)) == 117
    assert sampler.collisions == 0
    assert time.perf_counter() - start < 30


# -- batches in which no skill occurs twice --------------------------------------------------------------------------------


def copies(*counts: int) -> list[Stage1Record]:
    """``counts[i]`` records of skill i."""
    return [record(f"p{i}") for i, count in enumerate(counts) for _ in range(count)]


@pytest.mark.parametrize(
    ("counts", "size", "batches"),
    [
        ((1,) * 10, 3, 3),  # one record a skill: as many as whole batches
        ((5, 1, 1, 1), 2, 3),  # min(5, 3) + 3 = 6 = 3 * 2
        ((4, 4), 2, 4),
        ((7, 2), 2, 2),  # the second skill has two
        ((9, 1, 1), 3, 1),
    ],
)
def test_as_many_batches_as_distinct_skills_allow(counts: tuple[int, ...], size: int, batches: int) -> None:
    records = copies(*counts)
    for epoch in range(5):
        sampler = UniqueSkillBatchSampler(records, size, seed=3, epoch=epoch)
        found = list(sampler)
        assert len(found) == len(sampler) == batches
        for batch in found:
            assert len({records[row].positive_id for row in batch}) == len(batch) == size
        rows = [row for batch in found for row in batch]
        assert len(set(rows)) == len(rows)


def test_unique_batches_depend_on_seed_and_epoch_alone() -> None:
    records = copies(*[3] * 20)
    first = list(UniqueSkillBatchSampler(records, 8, seed=1, epoch=2))
    moved = UniqueSkillBatchSampler(records, 8, seed=1)
    moved.set_epoch(2)
    assert list(moved) == first
    assert list(UniqueSkillBatchSampler(records, 8, seed=1, epoch=3)) != first
    assert list(UniqueSkillBatchSampler(records, 8, seed=2, epoch=2)) != first


def test_what_an_epoch_leaves_out_differs_by_epoch() -> None:
    records = copies(6, 1, 1)
    sampler = UniqueSkillBatchSampler(records, 2, seed=0)
    seen = set()
    for epoch in range(30):
        sampler.set_epoch(epoch)
        seen |= {row for batch in sampler for row in batch}
    assert seen == set(range(8))


def test_fewer_skills_than_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="the 9 records have 2 skills, and no batch has one twice; expected at most 2"):
        UniqueSkillBatchSampler(copies(8, 1), 3)
