"""The schedule of updates: how many, which records, and the same ones after a resume."""

from __future__ import annotations

from collections import Counter

import pytest

from configs import ConfigError
from data_pipeline.records import Stage1Record
from trainers.batches import Batch, BatchSchedule


def make_records(count: int, skills: int | None = None) -> list[Stage1Record]:
    """``count`` records over ``skills`` skills (one each if not given) and a negative of their own."""
    return [
        Stage1Record(f"r{i}", "query", "why", f"s{i % (skills or count)}", "text", (f"n{i}",), ("text",), "c")
        for i in range(count)
    ]


def make_schedule(records: list[Stage1Record], batch_size: int, epochs: int = 1, max_steps: int = 0, seed: int = 42):
    return BatchSchedule(records, batch_size=batch_size, epochs=epochs, max_steps=max_steps, seed=seed, exclusions=None)


def ids(batch: Batch) -> list[str]:
    return [record.record_id for record in batch.records]


@pytest.mark.parametrize(("count", "batch_size", "updates"), [(30_000, 256, 117), (29_995, 112, 267)])
def test_the_papers_numbers_of_updates(count: int, batch_size: int, updates: int):
    schedule = make_schedule(make_records(count), batch_size)
    batches = list(schedule.after(0))
    assert schedule.total == len(batches) == updates
    assert {len(batch.records) for batch in batches} == {batch_size}
    assert max(Counter(record for batch in batches for record in ids(batch)).values()) == 1


def test_every_epoch_drops_its_own_incomplete_batch():
    batches = list(make_schedule(make_records(11), 3, epochs=4).after(0))
    assert [batch.step for batch in batches] == list(range(1, 13))
    assert [batch.epoch for batch in batches] == [e for e in range(4) for _ in range(3)]
    for epoch in range(4):
        assert len({r for batch in batches if batch.epoch == epoch for r in ids(batch)}) == 9


def test_epochs_differ():
    batches = list(make_schedule(make_records(9), 3, epochs=2).after(0))
    assert [ids(b) for b in batches[:3]] != [ids(b) for b in batches[3:]]


def test_after_any_step_come_the_batches_of_an_unbroken_run():
    records = make_records(11, skills=4)  # few skills: collisions cannot be avoided, and are part of a batch
    whole = list(make_schedule(records, 3, epochs=3).after(0))
    assert sum(batch.collisions for batch in whole) > 0
    for step in range(len(whole) + 1):
        assert list(make_schedule(records, 3, epochs=3).after(step)) == whole[step:], f"after step {step}"


def test_one_schedule_can_be_asked_again():
    schedule = make_schedule(make_records(11), 3, epochs=3)
    whole = list(schedule.after(0))
    assert list(schedule.after(4)) == whole[4:]
    assert list(schedule.after(0)) == whole


def test_the_seed_decides_the_order():
    records = make_records(30)
    first, second = (list(make_schedule(records, 3, seed=seed).after(0)) for seed in (1, 2))
    assert [ids(b) for b in first] != [ids(b) for b in second]


@pytest.mark.parametrize(("max_steps", "total"), [(0, 6), (4, 4), (6, 6), (50, 6)])
def test_a_limit_on_updates_ends_the_run_early_but_never_prolongs_it(max_steps: int, total: int):
    schedule = make_schedule(make_records(9), 3, epochs=2, max_steps=max_steps)
    assert schedule.total == len(list(schedule.after(0))) == total


def test_a_limit_on_updates_changes_no_batch():
    records = make_records(9)
    limited = list(make_schedule(records, 3, epochs=2, max_steps=4).after(0))
    assert limited == list(make_schedule(records, 3, epochs=2).after(0))[:4]


def test_fewer_records_than_a_batch_are_refused_by_key():
    with pytest.raises(ConfigError, match=r"data\.train_batch_size is 8; only 5 training records"):
        make_schedule(make_records(5), 8)


def test_exactly_one_batch_is_enough():
    assert make_schedule(make_records(8), 8).total == 1
