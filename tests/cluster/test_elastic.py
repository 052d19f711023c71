"""What the driver makes of a group that loads, is lost, has no room, or whose monitor is slow; time is a number here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from cluster import elastic
from cluster.controller import GroupLost
from cluster.elastic import GroupSize, run_group
from cluster.monitor import GroupStatus

SIZE = GroupSize(workers=2, min_workers=0, cpus=1.0, gpus=0.0)


class Story:
    """A driver's clock, and a monitor and a group that behave by it.

    Attributes:
        now: seconds since the beginning; every look takes one.
        asked: how often the monitor was asked.
    """

    def __init__(self, end: float, status: Callable[[float], GroupStatus], silent: tuple[float, float] = (-1.0, -1.0)):
        self.now, self.end, self.status, self.silent = 0.0, end, status, silent
        self.asked = 0
        self.kwargs: dict[str, Any] = {}
        self.look = SimpleNamespace(remote=self._ask)

    def _ask(self) -> str:
        self.asked += 1
        return "look"

    def get(self, reference: Any, timeout: float | None = None) -> Any:
        if reference != "look":
            return None
        self.now += 1.0
        if self.silent[0] <= self.now < self.silent[1]:
            self.now += timeout or 0.0
            raise GetTimeoutError
        return self.status(self.now)

    def trainer(self, train: Any, **kwargs: Any) -> Any:
        self.kwargs = kwargs
        return self

    def follow(self, monkeypatch: pytest.MonkeyPatch, wait_s: float = 0.0, watch: Any = lambda status: None) -> Any:
        actor = SimpleNamespace(look=self.look, give=SimpleNamespace(remote=lambda environment: None))
        fake = SimpleNamespace(
            get=self.get,
            kill=lambda actor: None,
            nodes=list,
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: 28 * "ab"),
            remote=lambda kind: SimpleNamespace(
                options=lambda **options: SimpleNamespace(remote=lambda *arguments: actor)
            ),
        )
        fit = SimpleNamespace(is_alive=lambda: self.now < self.end, join=lambda s: None, error=None, result="done")
        monkeypatch.setattr(elastic, "ray", fake)
        monkeypatch.setattr(elastic, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(elastic, "TorchTrainer", self.trainer)
        monkeypatch.setattr(elastic, "_Fit", lambda trainer: fit)
        return run_group(
            lambda settings: None,
            {},
            name="run",
            size=SIZE,
            max_restarts=3,
            wait_s=wait_s,
            fatal=(ValueError,),
            watch=watch,
            stop_requested=lambda: False,
        )


def training(now: float) -> GroupStatus:
    return GroupStatus(running=True, state="RUNNING", step=int(now))


def test_a_loss_after_a_model_that_loads_for_long_is_given_its_own_time(monkeypatch):
    def status(now: float) -> GroupStatus:
        if now < 30:
            return GroupStatus(state="SCHEDULING")
        if now < 1000:
            return GroupStatus(state="RUNNING")  # the processes are there and load
        return GroupStatus(state="SCHEDULING") if now < 1400 else training(now)

    assert Story(1500, status).follow(monkeypatch) == "done"


@pytest.mark.parametrize(("wait_s", "given_up"), [(0, 700), (1800, 1900)])
def test_a_lost_group_without_room_ends_the_run_after_ten_minutes_or_what_the_user_allows(
    monkeypatch, wait_s, given_up
):
    story = Story(1e6, lambda now: training(now) if now < 100 else GroupStatus(state="RESTARTING"))
    with pytest.raises(GroupLost, match=r"no group for \d+ s; training needs 2 workers of 1 CPU"):
        story.follow(monkeypatch, wait_s)
    assert given_up < story.now < given_up + 30


def test_a_monitor_that_is_slow_is_waited_for_and_asked_once(monkeypatch):
    seen: list[int] = []
    story = Story(300, training, silent=(100, 200))
    assert story.follow(monkeypatch, watch=lambda status: seen.append(status.step)) == "done"
    assert seen[98:100] == [99, 224]  # four answers too late, 31 s each
    assert story.asked == len(seen)


def test_a_monitor_that_stays_silent_ends_the_run_after_five_minutes(monkeypatch):
    story = Story(1e6, training, silent=(100, 1e6))
    with pytest.raises(GroupLost, match=r"monitor has not answered for 3\d\d s"):
        story.follow(monkeypatch)
    assert 400 < story.now < 500


def test_the_other_processes_wait_two_hours_for_the_one_that_writes(monkeypatch):
    story = Story(0, training)
    story.follow(monkeypatch)
    assert story.kwargs["torch_config"].timeout_s == 7200
