"""Which checkpoint a run goes on from after a loss."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from configs.schema import GrpoConfig
from objectives.checkpoint import CheckpointError
from trainers import recovery
from trainers.grpo import GrpoLoop
from trainers.recovery import newest_checkpoint
from trainers.run_folder import RunFolder
from trainers.saving import Saving


def write(folder: Path, step: int) -> Path:
    path = folder / f"step_{step:06d}"
    path.mkdir(parents=True)
    (path / "state.json").write_text("{}")
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, str(tmp_path / "checkpoints"))


def test_a_run_without_checkpoints_has_none(run: RunFolder):
    assert newest_checkpoint(run, 0) is None


def test_the_newest_is_taken_though_it_is_newer_than_the_last_one_told(run: RunFolder):
    write(Path(run.checkpoints), 2)
    newest = write(Path(run.checkpoints), 4)  # its writer died before it could say so
    assert newest_checkpoint(run, 2) == str(newest)


@pytest.mark.parametrize(("seen", "what"), [(2, "is of update 2"), (0, "does not exist")])
def test_a_checkpoint_that_cannot_be_seen_ends_the_run(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, seen: int, what: str
):
    monkeypatch.setattr(recovery, "SIGHT_S", 0.2)
    if seen:
        write(Path(run.checkpoints), seen)
    with pytest.raises(
        CheckpointError, match=rf"saved update 4, .*{what}; expected run\.root, or run\.checkpoints, on"
    ):
        newest_checkpoint(run, 4)


def test_a_checkpoint_that_comes_into_sight_late_is_waited_for(run: RunFolder):
    write(Path(run.checkpoints), 2)
    threading.Timer(0.5, write, (Path(run.checkpoints), 4)).start()
    found = newest_checkpoint(run, 4)
    assert found is not None
    assert Path(found).name == "step_000004"


def test_a_loop_that_saved_what_it_cannot_see_keeps_its_curves_and_ends(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recovery, "SIGHT_S", 0.2)
    loop: Any = object.__new__(GrpoLoop)
    loop.config, loop.run, loop.roles, loop.timeline = GrpoConfig(), run, MagicMock(), MagicMock()
    loop.validation, loop.saved, loop.identity = None, 0, {}
    loop.saving = Saving(1, lambda why: None)
    loop.timeline.curves.return_value = {}
    loop._pool_curves = dict
    loop.step = lambda records, step: {"reward/total/mean": 0.0, "actor/kl_loss": 0.0}
    batches = [SimpleNamespace(records=[], step=step, collisions=0) for step in (1, 2)]
    loop.schedule = SimpleNamespace(after=lambda step: batches, total=9)
    tracker, bar = MagicMock(), MagicMock()
    loop._updates({"step": 0, "collisions": 0}, tracker, bar, SimpleNamespace(requested=False))
    assert loop.roles.policy.save.call_count == 2  # on another node's own disk
    with pytest.raises(CheckpointError, match=r"the policy saved update 2, .* does not exist"):
        loop._rewind(tracker, bar)
    tracker.rewind.assert_not_called()
    loop.roles.policy.restore.assert_not_called()
