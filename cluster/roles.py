"""What each role of Stage II reserves of a cluster, as a plan that needs no cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from configs import ConfigError
from configs.schema import GrpoConfig

GROUPS = ("policy", "reference")
"""Roles whose members train or compute one model together: all of them, or none."""

POOLS = ("rollout", "retriever")
"""Roles whose members work on their own: between a least and a most."""


@dataclass(frozen=True)
class Bundle:
    """CPUs and GPUs of one node that are reserved together."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class RolePlan:
    """One role.

    Attributes:
        role: policy, reference, rollout or retriever.
        members: how many there are to be.
        least: how many there must be before the first update; for a group, all.
        share: what one member's process takes.
        bundle: what is reserved for one member; None for a guest in the policy's bundles (``resources.colocate``).
    """

    role: str
    members: int
    least: int
    share: Bundle
    bundle: Bundle | None


@dataclass(frozen=True)
class PlacementPlan:
    """Where the members of all roles go: bundles of their own, or with ``colocated`` the policy's.

    With ``colocated``, policy worker i, reference worker i and every pool member k with k mod policy workers = i share bundle i.
    The reward actor reserves nothing and is in no plan; it runs on the driver's node.
    """

    roles: tuple[RolePlan, ...]
    colocated: bool

    def role(self, name: str) -> RolePlan:
        """The role called ``name``."""
        return next(r for r in self.roles if r.role == name)

    def needed(self) -> list[tuple[str, Bundle]]:
        """Role and bundle of everything that must be there before the first update: pools count at their least."""
        return [(r.role, r.bundle) for r in self.roles if r.bundle is not None for _ in range(r.least)]


@dataclass(frozen=True)
class NodeRoom:
    """CPUs and GPUs of one node: all of them, or those that are free."""

    name: str
    cpus: float
    gpus: float


def plan_placement(config: GrpoConfig) -> PlacementPlan:
    """The plan that a configuration asks for.

    Raises:
        ConfigError: GPUs that Ray cannot reserve, or roles that cannot share the policy's GPUs.
    """
    res, reward, rollout = config.resources, config.reward, config.rollout
    policies, references = config.actor.parallel.workers, config.ref.parallel.workers
    members = {
        "policy": (policies, policies, Bundle(res.policy_cpus, res.policy_gpus)),
        "reference": (references, references, Bundle(res.reference_cpus, res.reference_gpus)),
        "rollout": (
            rollout.workers,
            rollout.min_workers or rollout.workers,
            Bundle(res.rollout_cpus, res.rollout_gpus),
        ),
        "retriever": (
            reward.retriever_workers,
            reward.min_retriever_workers or reward.retriever_workers,
            Bundle(res.retriever_cpus, res.retriever_gpus),
        ),
    }
    for role, (_, _, bundle) in members.items():
        if bundle.gpus > 1 and not float(bundle.gpus).is_integer():
            raise ConfigError(
                f"resources.{role}_gpus is {bundle.gpus:g}; expected a whole number, or a part of one GPU below 1"
            )
    if not res.colocate:
        if (
            rollout.name == "vllm"
            and res.rollout_gpus == 0
            and any(bundle.gpus > 0 for _, _, bundle in members.values())
        ):
            raise ConfigError(
                "rollout.name is 'vllm' and resources.rollout_gpus is 0, in a run whose other roles reserve GPUs; expected GPUs, "
                "or rollout.name=hf, which samples on the CPU"
            )
        roles = (RolePlan(role, most, least, bundle, bundle) for role, (most, least, bundle) in members.items())
        return PlacementPlan(tuple(roles), colocated=False)

    if res.policy_gpus > 1:
        raise ConfigError(
            f"resources.colocate is true and resources.policy_gpus is {res.policy_gpus:g}; expected at most 1: the roles share "
            "one GPU a policy worker"
        )
    if references > policies:
        raise ConfigError(
            f"resources.colocate is true and ref.parallel.workers is {references}; expected at most actor.parallel.workers, "
            f"{policies}: each takes a part of a policy worker's GPU"
        )
    residents = 2 + sum(math.ceil(members[pool][0] / policies) for pool in POOLS)
    share = Bundle(_part(res.policy_cpus, residents), _part(res.policy_gpus, residents))
    shared = (
        RolePlan(role, most, least, share, members["policy"][2] if role == "policy" else None)
        for role, (most, least, _) in members.items()
    )
    return PlacementPlan(tuple(shared), colocated=True)


def role_device(device: str, plan: PlacementPlan, role: str) -> str:
    """``run.device`` as it holds for one role: a role that reserves no GPU in a run that reserves some computes on the CPU.

    Ray shows a process without GPUs all those of its node, and it would take the first: another role's, or another job's. Where
    no role reserves one, as in a run on one machine, all take what ``run.device`` says.
    """
    without = plan.role(role).share.gpus == 0
    return "cpu" if without and any(r.share.gpus > 0 for r in plan.roles) else device


def _part(amount: float, residents: int) -> float:
    """An equal part, rounded down to the ten-thousandths that Ray counts in."""
    return math.floor(amount / residents * 10_000) / 10_000


def shortfall(
    needed: Sequence[tuple[str, Bundle]], free: Sequence[NodeRoom], total: Sequence[NodeRoom] | None = None
) -> str:
    """Why these bundles do not go onto these nodes, in one sentence; empty where they do.

    Large bundles are placed first, each on the node that it leaves the least room on.

    Args:
        needed: role and bundle, see :meth:`PlacementPlan.needed`.
        free: room for them on each node.
        total: the nodes' whole size, only for the message.
    """
    room = [[node.cpus, node.gpus] for node in free]
    for role, bundle in sorted(needed, key=lambda n: (n[1].gpus, n[1].cpus), reverse=True):
        fitting = [r for r in room if r[0] >= bundle.cpus - 1e-6 and r[1] >= bundle.gpus - 1e-6]
        if not fitting:
            return _lack(role, bundle, needed, free, total)
        best = min(fitting, key=lambda r: (r[1] - bundle.gpus, r[0] - bundle.cpus))
        best[0] -= bundle.cpus
        best[1] -= bundle.gpus
    return ""


def _lack(
    role: str,
    bundle: Bundle,
    needed: Sequence[tuple[str, Bundle]],
    free: Sequence[NodeRoom],
    total: Sequence[NodeRoom] | None,
) -> str:
    for kind in ("gpus", "cpus"):
        amounts = [(name, getattr(each, kind)) for name, each in needed if getattr(each, kind) > 0]
        there = sum(getattr(node, kind) for node in free)
        if sum(amount for _, amount in amounts) > there + 1e-6:
            whole = f" of {sum(getattr(node, kind) for node in total):g}" if total is not None else ""
            return f"the run needs {_sizes(amounts, kind)}; the cluster has {there:g}{whole} free"
    size = " and ".join(
        f"{amount:g} {kind}" for amount, kind in ((bundle.gpus, "GPUs"), (bundle.cpus, "CPUs")) if amount
    )
    most = max(free, key=lambda node: (node.gpus, node.cpus), default=NodeRoom("", 0, 0))
    return (
        f"the run needs a bundle of {size} on one node for {role}; the {len(free)} nodes have room enough together, but not one "
        f"of them beside the other bundles (the largest has {most.gpus:g} GPUs and {most.cpus:g} CPUs free)"
    )


def _sizes(amounts: Sequence[tuple[str, float]], kind: str) -> str:
    """``8 GPUs in bundles of 1 (policy 1, rollout 5, ...)``."""
    sizes = sorted({amount for _, amount in amounts}, reverse=True)
    text = f"{sum(amount for _, amount in amounts):g} {kind[:-1].upper()}s in bundles of " + " and ".join(
        f"{size:g}" for size in sizes
    )
    counts = [
        f"{role} {sum(name == role for name, _ in amounts)}" for role in dict.fromkeys(name for name, _ in amounts)
    ]
    return f"{text} ({', '.join(counts)})"
