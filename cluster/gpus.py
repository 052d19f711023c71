"""The GPUs of a plan: which process goes where, and what those on one GPU take together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.roles import PlacementPlan
from configs import ConfigError

if TYPE_CHECKING:
    from cluster.plan import Role

PHASES = (("rollout",), ("reference", "retriever"), ("policy",))
"""Which roles of Stage II compute at the same time."""


@dataclass
class Gpu:
    """A GPU and the processes on it, by name with their peak in bytes.

    Attributes:
        resting: what each process keeps while roles of another phase compute; empty where none gives memory back.
    """

    node: int
    index: int
    free: float = 1.0
    processes: dict[str, float] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)

    @property
    def peak(self) -> float:
        """All processes' peaks together, or the worst phase, the others at rest: PyTorch's allocator keeps what it once took
        unless it is told to give it back."""
        if not self.resting:
            return sum(self.processes.values())
        return max(sum(self._taken(name, phase) for name in self.processes) for phase in PHASES)

    def _taken(self, process: str, computing: Sequence[str]) -> float:
        return (self.processes if process.rsplit("-", 1)[0] in computing else self.resting)[process]


def place_roles(roles: Sequence[Role], plan: PlacementPlan, per_node: int) -> list[Gpu]:
    """GPUs in the order they fill up: colocated roles with their policy worker, others each where the least stays free."""
    gpus: list[Gpu] = []
    homes: list[Gpu] = []
    for role in roles:
        if role.share.gpus <= 0:
            continue
        bundle = plan.role(role.name).bundle
        for member in range(role.members):
            if bundle is None:
                home = homes[member % len(homes)]
            else:
                home = _reserve(gpus, bundle.gpus, per_node)
                homes += [home] if role.name == "policy" else []
            home.processes[f"{role.name}-{member}"] = role.memory.peak
    return gpus


def _reserve(gpus: list[Gpu], amount: float, per_node: int) -> Gpu:
    whole = math.ceil(amount) if amount > 1 else 1
    if whole > per_node:
        raise ConfigError(f"resources: {amount:g} GPUs for one process; a node has {per_node}")
    nodes = {gpu.node for gpu in gpus}
    for node in [*sorted(nodes), max(nodes, default=0) + 1]:
        if node not in nodes:
            gpus += [Gpu(node, index) for index in range(per_node)]
        room = [g for g in gpus if g.node == node and g.free >= min(amount, 1.0) - 1e-9]
        if len(room) >= whole:
            chosen = sorted(room, key=lambda g: (g.free, g.index))[:whole]
            for gpu in chosen:
                gpu.free -= min(amount, 1.0)
            return chosen[0]
    raise AssertionError("a new node has room for what a node can hold")
