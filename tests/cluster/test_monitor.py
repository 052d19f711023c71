"""What the monitor tells driver, group and controller in the order in which a run makes them ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cluster.monitor import Monitor

GROUP = ["host (process 1)", "host (process 2)"]


@pytest.fixture
def monitor() -> Monitor:
    """A group of two that has made 12 updates after a checkpoint of the tenth."""
    monitor = Monitor(restarts=0, seconds_lost=0.0, saved=0)
    monitor.started(0, 100, GROUP)
    for step in range(1, 13):
        assert monitor.updated(step, {"loss": 1.0}) == "go"
        if step == 10:
            monitor.saved(step)
    return monitor


def test_the_driver_sees_where_training_is(monitor: Monitor):
    status = monitor.look()
    assert (status.running, status.step, status.total, status.workers) == (True, 12, 100, 2)
    assert status.members == tuple(GROUP)
    assert status.events == []


def test_a_loss_is_an_event_once_training_goes_on(monitor: Monitor):
    monitor.ended("restart", "worker 1's process died")
    assert not monitor.look().running
    answer = monitor.started(10, 100, GROUP[:1])
    (event,) = monitor.look().events
    curves = {"recovery/restarts": 1, "recovery/seconds_lost": event["seconds"]}
    assert answer == {"command": "go", "saved": 10, "curves": curves}
    assert event["detail"] == "worker 1's process died; 2 -> 1 workers, goes on after update 10"
    assert [event[key] for key in ("event", "step", "workers_before", "workers", "updates_lost")] == [
        "restart",
        10,
        2,
        1,
        2,
    ]
    assert 0 <= event["seconds"] < 60
    assert monitor.look().events == []  # handed out once


def test_a_group_lost_again_before_it_trains_counts_twice_and_is_one_event(monitor: Monitor):
    monitor.ended("restart", "worker 1's process died")
    monitor.ended("restart", "worker 0's process died")
    assert monitor.started(10, 100, GROUP)["curves"]["recovery/restarts"] == 2
    (event,) = monitor.look().events
    assert event["detail"] == "worker 1's process died, then worker 0's process died; goes on after update 10"


def test_a_resize_is_no_restart(monitor: Monitor):
    monitor.ended("resize", "the cluster has room for 3 workers")
    assert monitor.started(12, 100, [*GROUP, "other (process 3)"])["curves"]["recovery/restarts"] == 0
    (event,) = monitor.look().events
    assert [event[key] for key in ("event", "workers_before", "workers", "updates_lost")] == ["resize", 2, 3, 0]


def test_restarts_go_on_from_earlier_processes_of_the_run():
    monitor = Monitor(restarts=3, seconds_lost=40.5, saved=20)
    curves = {"recovery/restarts": 3, "recovery/seconds_lost": 40.5}
    assert monitor.started(20, 100, GROUP) == {"command": "go", "saved": 20, "curves": curves}
    assert monitor.look().events == []


def test_a_group_that_does_not_see_the_newest_checkpoint_is_told_and_is_no_event(monitor: Monitor):
    monitor.ended("restart", "worker 1's process died")
    assert monitor.started(0, 100, GROUP)["saved"] == 10
    assert monitor.look().events == []


def test_a_wish_is_over_when_a_checkpoint_follows_its_delivery(monitor: Monitor):
    assert monitor.wish("leave")
    monitor.saved(12)  # begun before the group could know
    assert monitor.wish_pending()
    assert monitor.updated(13, {}) == "leave"
    assert monitor.wish_pending()
    monitor.saved(13)
    assert not monitor.wish_pending()


def test_nothing_is_wished_of_a_group_that_makes_no_updates(monitor: Monitor):
    monitor.finished()  # exporting
    assert not monitor.wish("leave")
    assert not monitor.wish_pending()
    monitor.ended("restart", "worker 0's process died")
    assert not monitor.wish("leave")
    monitor.started(12, 100, GROUP)
    assert monitor.wish("leave")


def test_a_lost_group_owes_nothing(monitor: Monitor):
    monitor.wish("save")
    monitor.ended("restart", "worker 0's process died")
    assert not monitor.wish_pending()
    assert monitor.started(10, 100, GROUP)["command"] == "go"


def test_stop_goes_before_every_wish_and_reaches_the_next_group_too(monitor: Monitor):
    monitor.wish("save")
    monitor.stop()
    assert monitor.updated(13, {}) == "stop"
    monitor.saved(13)
    monitor.ended("resize", "the cluster has room for 1 workers")
    assert monitor.started(13, 100, GROUP[:1])["command"] == "stop"


def test_a_checkpoint_that_failed_is_an_event(monitor: Monitor):
    monitor.save_failed(12, "503")
    (event,) = monitor.look().events
    assert event == {"event": "save_failed", "detail": "503", "step": 12}
    assert monitor.newest_saved() == 10


def test_a_group_hangs_once_it_is_silent_for_three_times_its_longest_update_but_not_while_it_saves(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("cluster.monitor.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    monitor = Monitor(restarts=0, seconds_lost=0.0, saved=0)
    monitor.started(0, 100, GROUP)
    for step, seconds in ((1, 20), (2, 200), (3, 20)):
        now[0] += seconds
        monitor.updated(step, {})
    monitor.wish("leave")
    now[0] += 599
    assert not monitor.hangs()
    now[0] += 2
    assert monitor.hangs()
    assert monitor.updated(4, {}) == "leave"
    now[0] += 2000
    assert not monitor.hangs()


def test_a_group_of_short_updates_is_given_five_minutes(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("cluster.monitor.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    monitor = Monitor(restarts=0, seconds_lost=0.0, saved=0)
    monitor.started(0, 100, GROUP)
    now[0] += 299
    assert not monitor.hangs()
    now[0] += 2
    assert monitor.hangs()
