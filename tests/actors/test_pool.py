"""Elastic pools of real Ray actors: who does which work, and what a lost member costs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import ActorDiedError, OwnerDiedError

import actors.members
import actors.pool
from actors.members import RoleError
from actors.pool import ElasticPool, piece_sizes

pytestmark = pytest.mark.ray


class Place:
    def __init__(self, number: int, there: bool):
        self.number = number
        self.there = there

    def ready(self) -> bool:
        return self.there

    def node(self) -> str:
        return "here"


class Room:
    """Places that exist as far as the test says so; as :class:`cluster.placement.Placement` gives them."""

    def __init__(self, open_places: int):
        self.open = set(range(open_places))
        self.places: dict[int, Place] = {}

    def seat(self, role: str, number: int) -> Place:
        place = self.places.setdefault(number, Place(number, False))
        place.there = number in self.open
        return place

    def leave(self, role: str, number: int) -> None:
        self.places.pop(number, None)


ECC = "CUDA error: uncorrectable ECC error encountered"


def worker_class(folder: Path) -> Any:
    """An actor that writes down what it does; a class of a function, because workers cannot import this file."""

    class Worker:
        def __init__(self, number: int, behaviour: str):
            self.number = number
            self.taken = 0
            if behaviour == "raises":
                raise ValueError("no such model: tiny")
            if behaviour == "dies" or behaviour == f"{number} dies":
                os._exit(1)
            if behaviour == "fails once" and self.first("started"):
                raise torch.AcceleratorError(ECC)

        def ready(self) -> int:
            return os.getpid()

        def take(self, version: int) -> None:
            self.taken = version

        def square(self, value: int, seconds: float, killer: bool = False) -> tuple[int, int, int]:
            with (folder / "done").open("a") as handle:
                handle.write(f"{value} {os.getpid()}\n")
            if killer:
                os._exit(1)
            time.sleep(seconds)
            return value * value, self.number, self.taken

        def first(self, what: str) -> bool:
            try:
                (folder / what).touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        def break_once(self, value: int, memory: bool) -> int:
            if self.first("broken"):
                raise torch.OutOfMemoryError("CUDA out of memory") if memory else torch.AcceleratorError(ECC)
            return value

        def break_always(self) -> None:
            raise torch.AcceleratorError(ECC)

        def take_or_break(self) -> None:
            if self.first("welcomed"):
                raise torch.AcceleratorError(ECC)

        def take_or_miss(self, version: int) -> None:
            if self.first("missed"):
                raise OwnerDiedError("00" * 28, b"", "")
            self.taken = version

        def hang_once(self, value: int) -> int:
            try:
                (folder / "hung").touch(exist_ok=False)
            except FileExistsError:
                return value
            time.sleep(600)
            return -1

        def fail(self) -> None:
            raise KeyError("not a loss")

    return Worker


@pytest.fixture
def make_pool(ray_cluster, tmp_path: Path) -> Iterator[Callable[..., ElasticPool]]:
    """``make(most, least, open_places)``; its events are in ``pool.told``, ``(event, values)`` each."""
    made: list[ElasticPool] = []

    def make(most: int, least: int, room: Room, behaviour: str = "", **keys: Any) -> ElasticPool:
        told: list[tuple[str, dict[str, Any]]] = []
        cls = worker_class(tmp_path)

        def create(place: Place) -> Any:
            options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
            return ray.remote(cls).options(**options).remote(place.number, behaviour)

        def note(event: str, detail: str, **values: Any) -> None:
            told.append((event, {"detail": detail, **values}))

        pool = ElasticPool("rollout", room, create, most=most, least=least, wait_s=0.0, note=note, **keys)
        pool.told = told  # type: ignore[attr-defined]
        made.append(pool)
        return pool

    yield make
    for pool in made:
        pool.stop()


def events(pool: Any) -> Counter[str]:
    return Counter(event for event, _ in pool.told)


def done(folder: Path) -> Counter[int]:
    return Counter(int(line.split()[0]) for line in (folder / "done").read_text().splitlines())


# -- pieces -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("items", "most"), [(0, 3), (1, 4), (7, 2), (112, 5), (896, 16)])
def test_pieces_cover_the_work_and_get_smaller(items: int, most: int):
    sizes = piece_sizes(items, most)
    assert sum(sizes) == items
    assert sizes == sorted(sizes, reverse=True)
    assert all(size >= 1 for size in sizes)


def test_the_last_pieces_are_small_and_the_first_ones_few():
    sizes = piece_sizes(112, 4)
    assert sizes[0] == 14  # an eighth: half of a fair share
    assert sizes[-1] <= 4
    assert len(sizes) <= 8 * 4


def test_a_pool_of_one_gets_everything_at_once():
    assert piece_sizes(112, 1) == [112]


# -- work -----------------------------------------------------------------------------------------------------------------


def test_results_come_in_order_and_a_slow_member_does_less(make_pool, tmp_path: Path):
    pool = make_pool(2, 2, Room(2))
    pool.wait_ready()
    # pieces of the slow member take a second, whichever they are
    slow = {value: 1.0 if value == 0 else 0.05 for value in range(12)}
    results = pool.map("square", [(value, slow[value]) for value in range(12)])
    assert [square for square, _, _ in results] == [value * value for value in range(12)]
    counts = Counter(number for _, number, _ in results)
    assert sorted(counts.values()) == [1, 11]
    assert set(done(tmp_path).values()) == {1}


def test_a_killed_members_piece_goes_to_another_and_nothing_else_is_repeated(make_pool, tmp_path: Path):
    pool = make_pool(2, 1, Room(2))
    pool.least = 2
    pool.wait_ready()
    pool.least = 1
    victim = ray.get(pool.handles()["rollout-0"].ready.remote())
    threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
    results = pool.map("square", [(value, 0.8) for value in range(4)])
    assert [square for square, _, _ in results] == [0, 1, 4, 9]
    assert events(pool)["died"] == events(pool)["redispatched"] == 1
    assert sorted(done(tmp_path).values()) == [1, 1, 1, 2]
    (lost,) = [values for event, values in pool.told if event == "redispatched"]
    assert 0.2 < lost["seconds"] < 3
    pool.least = 2
    pool.wait_ready()
    assert set(pool.handles()) == {"rollout-0.2", "rollout-1"}  # replaced


def test_a_member_that_comes_in_mid_work_takes_part(make_pool):
    room = Room(1)
    pool = make_pool(2, 1, room)
    pool.wait_ready()
    threading.Timer(0.5, room.open.add, (1,)).start()
    results = pool.map("square", [(value, 0.4) for value in range(20)])
    assert {number for _, number, _ in results} == {0, 1}
    assert [square for square, _, _ in results] == [value * value for value in range(20)]


def test_a_member_is_welcomed_before_it_works_and_so_is_its_replacement(make_pool):
    pool = make_pool(1, 1, Room(1), welcome=lambda worker: worker.take.remote(7))
    pool.wait_ready()
    assert [taken for _, _, taken in pool.map("square", [(1, 0.0)])] == [7]
    os.kill(ray.get(pool.handles()["rollout-0"].ready.remote()), signal.SIGKILL)
    assert [taken for _, _, taken in pool.map("square", [(2, 0.0), (3, 0.0)])] == [7, 7]


def test_a_hung_member_is_replaced(make_pool, monkeypatch: pytest.MonkeyPatch):
    pool = make_pool(2, 2, Room(2))
    pool.wait_ready()
    monkeypatch.setattr(actors.pool, "HUNG_S", 1.5)
    assert pool.map("hang_once", [(value,) for value in range(3)]) == [0, 1, 2]
    assert events(pool)["hung"] == events(pool)["redispatched"] == 1


def test_what_a_method_raises_is_no_loss(make_pool):
    pool = make_pool(1, 1, Room(1))
    pool.wait_ready()
    with pytest.raises(KeyError, match="not a loss"):
        pool.map("fail", [()])
    assert events(pool) == {"joined": 1}
    assert pool.map("square", [(3, 0.0)])[0][0] == 9


@pytest.mark.parametrize("memory", [False, True])
def test_a_failed_gpu_costs_its_member_and_its_piece_goes_to_another(make_pool, memory: bool):
    pool = make_pool(2, 2, Room(2))
    pool.wait_ready()
    assert pool.map("break_once", [(value, memory) for value in range(3)]) == [0, 1, 2]
    assert events(pool)["died"] == events(pool)["redispatched"] == 1
    assert "its GPU failed: CUDA" in next(values["detail"] for event, values in pool.told if event == "died")


def test_a_piece_that_breaks_every_gpu_ends_the_run(make_pool):
    pool = make_pool(1, 1, Room(1))
    pool.wait_ready()
    with pytest.raises(
        RoleError, match=r"3 members .* the last one because: its GPU failed: CUDA error: uncorrectable"
    ):
        pool.map("break_always", [()])


def test_a_gpu_that_fails_in_a_call_to_all_costs_its_member_alone(make_pool):
    pool = make_pool(2, 2, Room(2))
    pool.wait_ready()
    pool.call_all("take_or_break")
    assert pool.size() == 1
    assert events(pool) == {"joined": 2, "died": 1}


def test_a_gpu_that_fails_at_the_start_or_the_welcome_is_tried_again(make_pool):
    pool = make_pool(1, 1, Room(1), "fails once", welcome=lambda worker: worker.take_or_break.remote())
    pool.wait_ready()
    assert events(pool) == {"died": 2, "joined": 1}


def test_a_member_that_is_lost_as_it_is_welcomed_is_replaced(make_pool):
    lost: list[int] = []

    def welcome(worker: Any) -> Any:
        if not lost:
            lost.append(1)
            raise ActorDiedError
        return worker.take.remote(7)

    pool = make_pool(1, 1, Room(1), welcome=welcome)
    pool.wait_ready()
    assert events(pool) == {"died": 1, "joined": 1}


def test_a_member_whose_weights_went_with_their_owner_is_welcomed_again(make_pool):
    pool = make_pool(1, 1, Room(1), welcome=lambda worker: worker.take_or_miss.remote(7))
    pool.wait_ready()
    assert events(pool) == {"joined": 1}
    assert [taken for _, _, taken in pool.map("square", [(1, 0.0)])] == [7]


def test_a_piece_that_kills_whoever_takes_it_ends_the_run(make_pool, tmp_path: Path):
    pool = make_pool(2, 1, Room(2))
    pool.wait_ready()
    with pytest.raises(RoleError, match="3 members of the rollout pool were lost with the same piece of work"):
        pool.map("square", [(value, 0.0, value == 1) for value in range(3)])
    assert done(tmp_path)[1] == 3


def test_a_stopped_pool_does_not_wait_for_work(make_pool):
    pool = make_pool(1, 1, Room(1))
    pool.wait_ready()
    threading.Timer(0.5, pool.stop).start()
    start = time.monotonic()
    with pytest.raises(RoleError, match="the rollout pool was stopped with 1 pieces of work left"):
        pool.map("square", [(1, 300.0)])
    assert time.monotonic() - start < 20


# -- members ----------------------------------------------------------------------------------------------------------------


def test_too_few_members_for_too_long_end_the_run_by_name(make_pool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(actors.members, "GRACE_S", 1.0)
    pool = make_pool(3, 2, Room(1))
    with pytest.raises(
        RoleError, match="the rollout pool has 1 of at least 2 members, and for 1 s the cluster had no room"
    ):
        pool.wait_ready()


def test_a_constructor_that_raises_is_told_at_once(make_pool):
    pool = make_pool(2, 2, Room(2), "raises")
    with pytest.raises(RoleError, match=r"the rollout-\d role did not start: ValueError: no such model: tiny"):
        pool.wait_ready()


def test_a_process_that_dies_as_it_starts_is_tried_three_times(make_pool):
    pool = make_pool(1, 1, Room(1), "dies")
    with pytest.raises(RoleError, match=r"the rollout-0\.3 role did not start"):
        pool.wait_ready()
    assert events(pool) == {"died": 3}


def test_a_place_where_nothing_starts_is_paused_while_there_are_members_enough(
    make_pool, monkeypatch: pytest.MonkeyPatch
):
    pool = make_pool(2, 1, Room(2), "1 dies")
    pool.wait_ready()

    def tend_for(seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and events(pool)["died"] < 4:
            pool.tend()
            time.sleep(0.05)
        return events(pool)["died"]

    deadline = time.monotonic() + 60
    while events(pool)["died"] < 3 and time.monotonic() < deadline:
        pool.tend()
        time.sleep(0.05)
    assert set(pool.handles()) == {"rollout-0"}
    assert tend_for(3) == 3  # a start takes half a second
    pool._not_before[1] = 0.0  # three minutes later
    assert tend_for(60) == 4
    assert pool._not_before[1] - time.monotonic() > 3 * actors.members.PAUSE_S


def test_members_beyond_the_least_give_way_and_come_back(make_pool):
    pool = make_pool(3, 1, Room(3))
    pool.least = 3
    pool.wait_ready()
    pool.least = 1
    for size in (2, 1, 1):
        pool.give_way()
        pool.tend()
        assert len(pool.handles()) == size
    assert events(pool)["retired"] == 2
    pool.resume()
    pool.least = 3
    pool.wait_ready()
    assert pool.size() == 3
