"""Which checkpoint a run goes on from after a loss, how often it does, and what it tells of it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from actors.groups import GroupDied
from actors.members import RoleError
from configs.schema import GrpoConfig
from objectives.checkpoint import CheckpointError
from trainers import run_folder
from trainers.events import EventLog
from trainers.grpo import GrpoLoop
from trainers.recovery import Account, PolicyRenewed, Recovery, newest_checkpoint
from trainers.run_folder import RunFolder
from trainers.saving import Saving
from trainers.tracking import read_metrics


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
    monkeypatch.setattr(run_folder, "CACHE_S", 0.2)
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
    monkeypatch.setattr(run_folder, "CACHE_S", 0.2)
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


# -- restarts -----------------------------------------------------------------------------------------------------------------


class FakeRoles:
    """Notes which groups are started again; ``moves`` says that the reference's bundles went with the policy's."""

    def __init__(self, moves: bool = False, reference_dies: int = 0):
        self.moves = moves
        self.dies = reference_dies
        self.started: list[str] = []
        self.reference = self

    def restart(self, group: str) -> set[str]:
        self.started.append(group)
        return {"policy", "reference"} if self.moves else {group}

    def ready(self) -> None:
        if self.dies:
            self.dies -= 1
            raise lost("reference")


def lost(group: str) -> GroupDied:
    return GroupDied(group, [1], f"the {group} group lost worker 1 of 2: killed")


def make_recovery(run: RunFolder, roles: FakeRoles, most: int = 3) -> Recovery:
    return Recovery(cast(Any, roles), Account(EventLog(run.events)), most)


def told(run: RunFolder, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(field) for field in fields) for row in read_metrics(run.events)]


def test_restarts_are_counted_over_both_groups_and_end_by_name(run: RunFolder):
    roles = FakeRoles()
    recovery_ = make_recovery(run, roles, most=2)
    recovery_.restart(lost("policy"))
    recovery_.restart(lost("reference"))
    with pytest.raises(
        RoleError, match=r"lost worker 1 of 2: killed; trainer\.max_restarts is 2, .* the last checkpoint"
    ):
        recovery_.restart(lost("policy"))
    assert roles.started == ["policy", "reference"]


def test_a_reference_that_dies_again_as_it_loads_is_one_more_restart(run: RunFolder):
    roles = FakeRoles(reference_dies=1)
    make_recovery(run, roles).restart(lost("reference"))
    assert roles.started == ["reference", "reference"]
    assert told(run, "event", "group") == [("died", "reference"), ("died", "reference"), ("restart", "reference")]
    with pytest.raises(RoleError, match="max_restarts is 1"):
        make_recovery(run, FakeRoles(reference_dies=1), most=1).restart(lost("reference"))


def test_a_reference_whose_bundles_were_the_policys_takes_the_policy_back_too(run: RunFolder):
    recovery_ = make_recovery(run, FakeRoles(moves=True))
    with pytest.raises(PolicyRenewed):
        recovery_.restart(lost("reference"))
    recovery_.policy_is_back(step=4, updates_lost=2)
    fields = ("event", "group", "step", "updates_lost")
    assert told(run, *fields) == [("died", "reference", None, None), ("restart", "policy", 4, 2)]


def test_a_policy_that_never_was_away_is_not_told_of(run: RunFolder):
    make_recovery(run, FakeRoles()).policy_is_back(step=0, updates_lost=0)
    assert not run.events.exists()


def test_losses_are_summed_over_the_processes_of_a_run(run: RunFolder):
    first = Account(EventLog(run.events))
    first.note("joined", "rollout-0", seconds=20.0)  # a start is no loss
    first.note("left", "rollout-0")
    first.note("redispatched", "piece 3", seconds=2.5)
    again = Account(EventLog(run.events))
    again.note("died", "the policy")
    again.note("restart", "the policy", seconds=10.0)
    assert again.curves() == {
        "recovery/lost": 2.0,
        "pool/redispatched": 1.0,
        "recovery/restarts": 1.0,
        "recovery/seconds_lost": 12.5,
    }
