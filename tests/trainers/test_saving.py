"""A checkpoint that could not be written: tried again after the next update, and the end of a run only where it must be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from objectives.checkpoint import CheckpointWriteError
from trainers.events import EventLog
from trainers.grpo import GrpoLoop
from trainers.recovery import Account
from trainers.run_folder import RunFolder
from trainers.saving import Saving
from trainers.tracking import read_metrics


def written() -> None:
    pass


def broken() -> None:
    raise CheckpointWriteError("s3://bucket/step_000010 could not be written: 503")


def test_a_failed_checkpoint_is_due_again_after_the_next_update_until_one_is_there():
    told: list[str] = []
    saving = Saving(10, told.append)
    assert [saving.due(step) for step in (9, 10, 11)] == [False, True, False]
    assert not saving.attempt(broken, must=False)
    assert told == ["s3://bucket/step_000010 could not be written: 503; tried again after the next update"]
    assert saving.due(11)
    assert saving.attempt(written, must=False)
    assert [saving.due(step) for step in (12, 20)] == [False, True]


def test_three_failures_in_a_row_end_the_run():
    saving = Saving(10, lambda why: None)
    for outcome in (broken, broken, written, broken, broken):  # the third begins a row of its own
        saving.attempt(outcome, must=False)
    with pytest.raises(CheckpointWriteError, match="503"):
        saving.attempt(broken, must=False)


def test_a_checkpoint_that_ends_the_run_must_be_written():
    told: list[str] = []
    with pytest.raises(CheckpointWriteError, match="503"):
        Saving(10, told.append).attempt(broken, must=True)
    assert told == []


def test_what_another_try_cannot_cure_is_raised_at_once():
    def not_finite() -> None:
        raise FloatingPointError("weight x is not finite")

    with pytest.raises(FloatingPointError):
        Saving(10, lambda why: None).attempt(not_finite, must=False)


def test_without_a_frequency_only_failures_make_a_checkpoint_due():
    saving = Saving(0, lambda why: None)
    assert not saving.due(10)
    saving.attempt(broken, must=False)
    assert saving.due(11)


def test_stage_two_goes_on_after_a_failed_checkpoint_and_tells_of_it(make_grpo, tmp_path: Path, monkeypatch):
    tried = []

    def save(folder: str, step: int, progress: dict[str, Any], keep: int) -> None:
        tried.append(step)
        if step in (2, 3):
            broken()

    def step(loop: GrpoLoop, records: Any, number: int) -> dict[str, float]:
        loop.timeline.begin(number)
        return {"reward/total/mean": 0.0, "actor/kl_loss": 0.0}

    monkeypatch.setattr(GrpoLoop, "step", step)
    config = make_grpo(tmp_path, "trainer.save_freq=2")
    run = RunFolder.of(config.run)
    pool = SimpleNamespace(name="any", size=lambda: 1)
    roles: Any = SimpleNamespace(policy=SimpleNamespace(save=save), rollouts=pool, retrievers=pool)
    batches = [SimpleNamespace(step=number, records=[], collisions=0) for number in range(1, 7)]
    schedule: Any = SimpleNamespace(total=6, after=lambda step: batches)
    nobody: Any = SimpleNamespace(
        log=lambda *a: None, update=lambda: None, set_postfix=lambda **k: None, requested=False
    )
    unused: Any = None
    loop = GrpoLoop(config, run, roles, unused, schedule, None, {}, Account(EventLog(run.events)))
    loop._updates({"step": 0, "collisions": 0}, nobody, nobody, nobody)
    assert tried == [2, 3, 4, 6]
    assert [row["event"] for row in read_metrics(run.events)] == ["save_failed", "save_failed"]
