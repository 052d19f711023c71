"""Connecting to a Ray cluster, and reserving there what the roles of Stage II need."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.state import available_resources_per_node, total_resources_per_node
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.roles import Bundle, NodeRoom, PlacementPlan, shortfall
from configs import ConfigError

logger = logging.getLogger(__name__)

TICK_S = 5.0
"""Seconds between two lines that say what is being waited for."""

GRACE_S = 10.0
"""Seconds that a reservation may take at least: Ray returns what a process held a moment after its end."""

PROBE_S = 30.0
"""Seconds in which a live node starts a process."""


@contextlib.contextmanager
def ray_session() -> Iterator[bool]:
    """Use the cluster this process is connected to, or that of ``RAY_ADDRESS`` (a Ray job has it), or one on this machine.

    Without an address Ray would join whatever cluster was once started on the machine, whose processes run in another
    folder; a run that nobody pointed at a cluster gets one of its own, and it ends with the run.

    Yields:
        whether nodes may join: not where the cluster is the run's own.
    """
    if ray.is_initialized():
        yield True
        return
    ray.init(
        address=os.environ.get("RAY_ADDRESS", "local"),
        include_dashboard=False if "RAY_ADDRESS" not in os.environ else None,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    try:
        yield "RAY_ADDRESS" in os.environ
    finally:
        ray.shutdown()


def cluster_room(free: bool = True) -> list[NodeRoom]:
    """What every live node of the connected cluster has free, or has at all."""
    nodes = available_resources_per_node() if free else total_resources_per_node()
    return [NodeRoom(name, room.get("CPU", 0.0), room.get("GPU", 0.0)) for name, room in sorted(nodes.items())]


@dataclass(frozen=True)
class Slots:
    """Where a group's workers go: worker i into bundle ``first + i`` of one placement group, taking ``cpus`` and ``gpus``."""

    placement_group: PlacementGroup
    first: int
    count: int
    cpus: float
    gpus: float

    def options(self, worker: int) -> dict[str, Any]:
        """Ray's options for that worker's actor. Ray itself starts nothing again: what a loss means is decided here."""
        strategy = PlacementGroupSchedulingStrategy(self.placement_group, self.first + worker)
        return {
            "num_cpus": self.cpus,
            "num_gpus": self.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": strategy,
        }


class Seat:
    """A place for one member of a pool: a reservation of its own, or a share of one of the policy's bundles."""

    def __init__(self, slots: Slots, owned: bool):
        self.slots = slots
        self._owned = owned

    def ready(self) -> bool:
        """Whether a member may be started: Ray has found room. Until then the reservation waits, and an autoscaler sees it."""
        return placement_group_table(self.slots.placement_group).get("state") == "CREATED"

    def node(self) -> str:
        """Id of the node, empty where there is none yet."""
        return _nodes(self.slots.placement_group).get(self.slots.first, "")

    def options(self) -> dict[str, Any]:
        """Ray's options for the member's actor."""
        return self.slots.options(0)

    def free(self) -> None:
        """Give the reservation back; a process in it is killed. A share of the policy's bundle stays reserved."""
        if self._owned:
            remove_placement_group(self.slots.placement_group)


class Placement:
    """The reservations of a run. Ray drops them when the driver ends, however it ends."""

    def __init__(self, plan: PlacementPlan, wait_s: float):
        self.plan = plan
        self.wait_s = wait_s
        self._groups: dict[str, PlacementGroup] = {}
        self._seats: dict[tuple[str, int], Seat] = {}

    @classmethod
    def reserve(cls, plan: PlacementPlan, *, wait_s: float, may_grow: bool) -> Placement:
        """Reserve everything that must be there before the first update; the largest bundles first.

        Waits up to ``wait_s`` for nodes to come and for other programs to end, saying every few seconds for what. What does not
        fit onto the nodes at all is refused at once where none can come.

        Raises:
            ConfigError: naming what is needed and what is free.
        """
        placement, needed = cls(plan, wait_s), plan.needed()
        if (not may_grow or wait_s <= 0) and shortfall(needed, cluster_room(free=False)):
            raise ConfigError(_refusal(needed, cluster_room()))
        free = cluster_room()
        largest = sorted(plan.roles, key=lambda r: (r.share.gpus, r.share.cpus), reverse=True)
        try:
            for role in largest:
                if role.role in ("policy", "reference"):
                    placement._reserve_group(role.role)
                else:
                    for number in range(role.least):
                        placement.seat(role.role, number)
            placement._await(placement._pending, needed, free)
        except BaseException:
            placement.release()
            raise
        return placement

    def slots(self, role: str) -> Slots:
        """Where the workers of policy or reference go."""
        plan = self.plan.role(role)
        group = self._groups.get(role) or self._groups["policy"]
        return Slots(group, 0, plan.members, plan.share.cpus, plan.share.gpus)

    def seat(self, role: str, number: int) -> Seat:
        """The place of one member of a pool, reserved now unless it already is."""
        seat = self._seats.get((role, number))
        if seat is None:
            plan = self.plan.role(role)
            if plan.bundle is None:
                bundle = number % self.plan.role("policy").members
                seat = Seat(Slots(self._groups["policy"], bundle, 1, plan.share.cpus, plan.share.gpus), owned=False)
            else:
                group = _reserve([plan.bundle], f"{role}-{number}")
                seat = Seat(Slots(group, 0, 1, plan.share.cpus, plan.share.gpus), owned=True)
            self._seats[role, number] = seat
        return seat

    def leave(self, role: str, number: int) -> None:
        """Give a member's place up; :meth:`seat` reserves another."""
        seat = self._seats.pop((role, number), None)
        if seat is not None:
            seat.free()

    def renew(self, role: str, make_room: Callable[[], object] = lambda: None) -> bool:
        """Places for a group that lost a process: the same ones if their nodes answer, else others, waited for as at the start.

        With ``resources.colocate`` the guests of the policy's bundles go with them.

        Args:
            make_room: called every few seconds while there is no room; may end something that the run can do without.

        Returns:
            whether the places are other ones.

        Raises:
            ConfigError: no room within ``resources.wait_s``.
        """
        role = role if role in self._groups else "policy"
        if _answers(self._groups[role]):
            return False
        remove_placement_group(self._groups.pop(role))
        self._reserve_group(role)
        if self.plan.colocated:
            self._seats.clear()
        plan = self.plan.role(role)
        assert plan.bundle is not None
        needed = [(role, plan.bundle)] * plan.members
        self._await(lambda: [] if _is_ready(self._groups[role]) else needed, needed, cluster_room(), make_room)
        return True

    def release(self) -> None:
        """Give everything back; processes in it are killed."""
        for seat in self._seats.values():
            seat.free()
        for group in self._groups.values():
            remove_placement_group(group)
        self._seats, self._groups = {}, {}

    def _reserve_group(self, role: str) -> None:
        plan = self.plan.role(role)
        if plan.bundle is not None:
            self._groups[role] = _reserve([plan.bundle] * plan.members, role)

    def _pending(self) -> list[tuple[str, Bundle]]:
        out = []
        for role in self.plan.roles:
            if role.bundle is not None:
                if role.role in self._groups:
                    missing = 0 if _is_ready(self._groups[role.role]) else role.members
                else:
                    missing = sum(name == role.role and not seat.ready() for (name, _), seat in self._seats.items())
                out += [(role.role, role.bundle)] * missing
        return out

    def _await(
        self,
        pending: Callable[[], list[tuple[str, Bundle]]],
        needed: Sequence[tuple[str, Bundle]],
        free: Sequence[NodeRoom],
        make_room: Callable[[], object] = lambda: None,
    ) -> None:
        start = said = time.monotonic()
        while missing := pending():
            now = time.monotonic()
            if now - start > max(self.wait_s, GRACE_S):
                raise ConfigError(f"{_refusal(needed, free)}; waited {now - start:.0f} s")
            if now - said > TICK_S:
                said = now
                roles = [name for name, _ in missing]
                counts = ", ".join(f"{name} {roles.count(name)}" for name in dict.fromkeys(roles))
                room = cluster_room()
                logger.info(
                    "waiting for room: %d of %d bundles missing (%s); free: %g GPUs and %g CPUs on %d nodes; %.0f s left",
                    len(missing),
                    len(needed),
                    counts,
                    sum(node.gpus for node in room),
                    sum(node.cpus for node in room),
                    len(room),
                    self.wait_s - (now - start),
                )
                make_room()
            time.sleep(0.1)


def _refusal(needed: Sequence[tuple[str, Bundle]], free: Sequence[NodeRoom]) -> str:
    reason = shortfall(needed, free, cluster_room(free=False))
    if not reason:
        reason = "Ray found no nodes for the run's bundles, though there seemed to be room: others may have taken it"
    return f"{reason}; lower resources.* or the number of workers, add nodes, or wait for some with resources.wait_s"


def _reserve(bundles: Sequence[Bundle], name: str) -> PlacementGroup:
    resources = []
    for bundle in bundles:
        amounts = {"CPU": bundle.cpus, "GPU": bundle.gpus}
        # Ray refuses empty bundles; a byte of memory is on every node
        resources.append({kind: amount for kind, amount in amounts.items() if amount > 0} or {"memory": 1})
    return placement_group(resources, strategy="PACK", name=f"skillreason-{name}")


def _is_ready(group: PlacementGroup) -> bool:
    return placement_group_table(group).get("state") == "CREATED"


def _nodes(group: PlacementGroup) -> dict[int, str]:
    return placement_group_table(group).get("bundles_to_node_id", {})


def _answers(group: PlacementGroup) -> bool:
    """Whether a process starts in every bundle. Ray itself takes half a minute to see that a node is gone."""
    if not _is_ready(group):
        return False
    probes = [
        _probe.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
        for bundle in range(group.bundle_count)
    ]
    done, late = ray.wait(probes, num_returns=len(probes), timeout=PROBE_S)
    for reference in late:
        ray.cancel(reference, force=True)
    try:
        ray.get(done)
    except RayError:
        return False
    return not late


@ray.remote(num_cpus=0, max_retries=0)
def _probe() -> None:
    """Nothing: that it ran is the answer."""
