"""Reservations on a real one-node Ray cluster of four CPUs: what is refused, what is waited for, what is given back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

import cluster.placement
from cluster.placement import Placement, cluster_room
from cluster.roles import Bundle, PlacementPlan, RolePlan
from configs import ConfigError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def make_plan(
    policy: float = 1.0, workers: int = 1, rollout: float = 0.5, most: int = 2, least: int = 1
) -> PlacementPlan:
    """CPUs of a policy worker and of a rollout worker; reference and retriever reserve nothing."""

    def role(name: str, members: int, least: int, cpus: float) -> RolePlan:
        return RolePlan(name, members, least, Bundle(cpus, 0.0), Bundle(cpus, 0.0))

    roles = (
        role("policy", workers, workers, policy),
        role("reference", 1, 1, 0.0),
        role("rollout", most, least, rollout),
        role("retriever", 1, 1, 0.0),
    )
    return PlacementPlan(roles, colocated=False)


@pytest.fixture(autouse=True)
def _everything_is_given_back() -> Iterator[None]:
    yield
    assert wait_for_free_cpus(4.0) == 4.0


def free_cpus() -> float:
    return sum(node.cpus for node in cluster_room())


def wait_for_free_cpus(amount: float) -> float:
    deadline = time.monotonic() + 20
    while free_cpus() != amount and time.monotonic() < deadline:
        time.sleep(0.1)
    return free_cpus()


def node_of(options: dict) -> str:
    probe = ray.remote(lambda: ray.get_runtime_context().get_node_id())
    options = {key: options[key] for key in ("num_cpus", "scheduling_strategy")}
    return ray.get(probe.options(**options).remote(), timeout=60)


def test_what_is_reserved_is_taken_and_can_be_used_and_comes_back():
    placement = Placement.reserve(make_plan(policy=1.0, workers=2), wait_s=0.0, may_grow=False)
    try:
        assert wait_for_free_cpus(1.5) == 1.5  # two policy workers and the least of the pool
        assert node_of(placement.slots("policy").options(1)) == node_of(placement.seat("rollout", 0).options())
        assert node_of(placement.slots("reference").options(0))  # a bundle that reserves no CPU is one, too
    finally:
        placement.release()


def test_what_never_fits_is_refused_at_once():
    start = time.monotonic()
    with pytest.raises(ConfigError, match=r"needs 9\.5 CPUs in bundles of 9 and 0\.5 .*; the cluster has 4 of 4 free"):
        Placement.reserve(make_plan(policy=9.0), wait_s=1800.0, may_grow=False)
    with pytest.raises(ConfigError, match=r"needs 9\.5 CPUs"):
        Placement.reserve(make_plan(policy=9.0), wait_s=0.0, may_grow=True)
    assert time.monotonic() - start < 5


def test_where_nodes_may_come_it_says_what_it_waits_for_and_gives_up_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(cluster.placement, "TICK_S", 0.3)
    monkeypatch.setattr(cluster.placement, "GRACE_S", 0.5)
    with caplog.at_level(logging.INFO), pytest.raises(ConfigError, match=r"needs 10 CPUs .* waited 2 s"):
        Placement.reserve(make_plan(policy=4.5, workers=2, rollout=1.0), wait_s=1.5, may_grow=True)
    said = [record.getMessage() for record in caplog.records if "waiting for room" in record.getMessage()]
    assert len(said) >= 3
    assert "2 of 5 bundles missing (policy 2); free: 0 GPUs and 3 CPUs on 1 nodes" in said[-1]


def test_room_that_another_program_holds_is_waited_for():
    other = placement_group([{"CPU": 4}])
    ray.get(other.ready(), timeout=30)
    threading.Timer(1.5, remove_placement_group, (other,)).start()
    placement = Placement.reserve(make_plan(), wait_s=0.0, may_grow=False)
    placement.release()


def test_a_seat_without_room_is_ready_when_there_is_some():
    placement = Placement.reserve(make_plan(policy=3.0, rollout=1.0), wait_s=0.0, may_grow=False)
    try:
        extra = placement.seat("rollout", 1)
        assert placement.seat("rollout", 1) is extra
        time.sleep(0.5)
        assert not extra.ready()
        placement.leave("rollout", 0)
        deadline = time.monotonic() + 20
        while not extra.ready() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert extra.ready()
        assert extra.node() == ray.get_runtime_context().get_node_id()
    finally:
        placement.release()


def test_a_group_keeps_its_places_while_their_node_answers():
    placement = Placement.reserve(make_plan(), wait_s=0.0, may_grow=False)
    try:
        before = placement.slots("policy").placement_group
        assert not placement.renew("policy")
        assert placement.slots("policy").placement_group is before
    finally:
        placement.release()


def test_places_that_are_gone_are_found_anew_and_the_pools_are_asked_for_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster.placement, "TICK_S", 0.3)
    placement = Placement.reserve(make_plan(policy=2.0, rollout=2.0), wait_s=30.0, may_grow=False)
    try:
        before = placement.slots("policy").placement_group
        remove_placement_group(before)  # as if its node were gone, and no other had room but the pool's
        other = placement_group([{"CPU": 2}])
        ray.get(other.ready(), timeout=30)
        assert placement.renew("policy", make_room=lambda: placement.leave("rollout", 0))
        after = placement.slots("policy")
        assert after.placement_group is not before
        assert node_of(after.options(0)) == ray.get_runtime_context().get_node_id()
    finally:
        remove_placement_group(other)
        placement.release()


def test_colocated_guests_sit_in_the_policys_bundles():
    roles = (
        RolePlan("policy", 2, 2, Bundle(0.5, 0.0), Bundle(2.0, 0.0)),
        RolePlan("reference", 2, 2, Bundle(0.5, 0.0), None),
        RolePlan("rollout", 3, 3, Bundle(0.5, 0.0), None),
        RolePlan("retriever", 1, 1, Bundle(0.5, 0.0), None),
    )
    placement = Placement.reserve(PlacementPlan(roles, colocated=True), wait_s=0.0, may_grow=False)
    try:
        policy = placement.slots("policy")
        assert wait_for_free_cpus(0.0) == 0.0  # all is reserved by the policy
        assert placement.slots("reference").placement_group is policy.placement_group
        seats = [placement.seat("rollout", number) for number in range(3)]
        assert [seat.slots.first for seat in seats] == [0, 1, 0]
        assert all(seat.ready() for seat in seats)
        assert node_of(seats[2].options())
        placement.leave("rollout", 2)  # nothing of the policy's is given back by that
        assert node_of(policy.options(0))
    finally:
        placement.release()
