"""Sessions: what reaches the loop of Ctrl-C, of the driver's wishes and of what it has kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.monitor import Monitor
from objectives.checkpoint import CheckpointError
from trainers.events import EventLog
from trainers.session import Command, LocalSession, RemoteSession


def test_ctrl_c_stops_a_loop_after_its_update_and_interrupts_exports(tmp_path: Path):
    with LocalSession("Stage I", EventLog(tmp_path / "events.jsonl")) as session:
        assert session.started(0, 3, ["host"]) == Command.GO
        signal.raise_signal(signal.SIGINT)
        assert session.updated(1, {"loss": 1.0}) == Command.STOP
    with LocalSession("Stage I", EventLog(tmp_path / "events.jsonl")) as session:
        session.started(0, 3, ["host"])
        session.finished()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signals_do_afterwards_what_they_did_before(tmp_path: Path):
    before = signal.getsignal(signal.SIGTERM)
    with LocalSession("Stage I", EventLog(tmp_path / "events.jsonl")) as session:
        session.started(0, 3, ["host"])
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Monitor:
    monkeypatch.setattr("ray.get", lambda value: value)
    monkeypatch.setenv("WANDB_API_KEY", "")  # so that what a session sets is undone
    monkeypatch.delenv("WANDB_API_KEY")
    monitor = Monitor(restarts=2, seconds_lost=30.0, saved=0)
    monitor.give({"WANDB_API_KEY": "of the driver"})
    return monitor


def remote(monitor: Monitor) -> Any:
    """The monitor's methods as those of an actor handle."""
    names = [name for name in dir(monitor) if not name.startswith("_") and callable(getattr(monitor, name))]
    return SimpleNamespace(**{name: SimpleNamespace(remote=getattr(monitor, name)) for name in names})


def test_a_group_hears_the_driver(monitor: Monitor):
    session = RemoteSession(remote(monitor))
    assert session.started(0, 9, ["a", "b"]) == Command.GO
    assert session.curves == {"recovery/restarts": 2, "recovery/seconds_lost": 30.0}
    monitor.wish("save")
    assert session.updated(1, {"loss": 1.0}) == Command.SAVE
    session.saved(1)
    assert session.updated(2, {}) == Command.GO
    monitor.wish("leave")
    assert session.updated(3, {}) == Command.LEAVE
    monitor.stop()
    assert session.updated(4, {}) == Command.STOP
    assert monitor.look().step == 4


def test_the_tracker_key_comes_from_the_driver_where_the_node_has_none(monitor: Monitor, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "of the node")
    RemoteSession(remote(monitor))
    assert os.environ["WANDB_API_KEY"] == "of the node"
    monkeypatch.delenv("WANDB_API_KEY")
    RemoteSession(remote(monitor))
    assert os.environ["WANDB_API_KEY"] == "of the driver"


def test_a_group_on_a_node_that_does_not_see_the_checkpoints_does_not_begin_anew(monitor: Monitor):
    first = RemoteSession(remote(monitor))
    first.started(0, 9, ["a"])
    first.updated(1, {})
    first.saved(1)
    monitor.ended("restart", "worker 0's process died")
    with pytest.raises(
        CheckpointError, match=r"update 1 was written, and .* run\.root and run\.checkpoints must lie on"
    ):
        RemoteSession(remote(monitor)).started(0, 9, ["b"])
