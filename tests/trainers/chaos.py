"""Runs of Stage II whose processes and nodes are killed at chosen moments; started as a program by the failure tests.

``python chaos.py PLAN.json``: runs ``{"config": FILE, "strikes": {STEP: [WHAT, ...]}}`` one after the other, on a Ray cluster of
a head with ``head`` logical CPUs and ``nodes`` further nodes of three, all real processes of this machine, and with ``late`` one
more while the first run waits for room; without ``nodes`` on the run's own cluster. A process that is to die in the middle of
something is frozen before it is asked (SIGSTOP), so that it cannot have finished.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

import cluster.placement as cluster_placement
from actors.groups import PolicyGroup, ReferenceGroup
from actors.launch import Roles
from actors.reward_role import RewardRole
from cluster.roles import NodeRoom
from configs import GrpoConfig, load_config
from trainers.grpo import GrpoLoop, train_grpo

HEAD: dict[str, Any] = {"object_store_memory": 100 * 2**20}
NODE: dict[str, Any] = {"num_cpus": 3, "object_store_memory": 100 * 2**20}


class Chaos:
    """What is struck in which step of a run."""

    def __init__(self, cluster: Cluster, strikes: dict[str, list[str]]):
        self.cluster = cluster
        self.strikes = {int(step): list(what) for step, what in strikes.items()}
        self.due: list[str] = []
        self.loop: Any = None

    def begin(self, loop: GrpoLoop, step: int) -> None:
        self.loop = loop
        self.due = self.strikes.pop(step, [])  # once: an update that is made again is left in peace
        if self.take("add_node"):
            self.cluster.add_node(**NODE)
        if self.take("await_two"):
            deadline = time.monotonic() + 120
            pools = (loop.roles.rollouts, loop.roles.retrievers)
            while any(pool.size() < 2 for pool in pools) and time.monotonic() < deadline:
                for pool in pools:
                    pool.tend()
                time.sleep(0.1)

    def take(self, what: str) -> bool:
        if what in self.due:
            self.due.remove(what)
            return True
        return False

    def freeze_and(self, pid: int, then: Callable[[], object], after: float = 0.7) -> None:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(after, then).start()

    def kill_frozen(self, pid: int) -> None:
        self.freeze_and(pid, lambda: os.kill(pid, signal.SIGKILL))

    def remove_node_of(self, pid: int, node_id: str) -> None:
        (node,) = [node for node in self.cluster.worker_nodes if node.node_id == node_id]
        self.freeze_and(pid, lambda: self.cluster.remove_node(node, allow_graceful=False))


def pid_of(handle: Any) -> int:
    return ray.get(handle.__ray_call__.remote(lambda self: os.getpid()))


def install(chaos: Chaos) -> Callable[[], None]:
    """Put the strikes before the calls they are to hit; returns what takes them away."""
    originals: list[tuple[type, str, Any]] = []

    def before(cls: type, name: str, strike: Callable[..., None]) -> None:
        original = getattr(cls, name)
        originals.append((cls, name, original))

        def struck(self: Any, *args: Any, **kwargs: Any) -> Any:
            strike(self, *args)
            return original(self, *args, **kwargs)

        setattr(cls, name, struck)

    def generate(roles: Roles, *_: Any) -> None:
        if chaos.take("rollout_node"):
            member = roles.rollouts._joined()[0]
            chaos.remove_node_of(pid_of(member.handle), member.node)
        if chaos.take("rollout"):
            chaos.kill_frozen(pid_of(next(iter(roles.rollouts.handles().values()))))

    def score(role: RewardRole, *_: Any) -> None:
        if chaos.take("reward"):
            chaos.kill_frozen(pid_of(role.handle))
        if chaos.take("retriever"):
            chaos.kill_frozen(pid_of(next(iter(role.retrievers.handles().values()))))

    def log_probs(group: ReferenceGroup, *_: Any) -> None:
        if chaos.take("reference"):
            chaos.kill_frozen(group.pids()[-1])

    def update(group: PolicyGroup, *_: Any) -> None:
        if chaos.take("policy_node"):
            slots = chaos.loop.roles.placement.slots("policy")
            nodes = placement_group_table(slots.placement_group)["bundles_to_node_id"]
            chaos.remove_node_of(group.pids()[-1], nodes[slots.first + slots.count - 1])
        if chaos.take("policy"):
            threading.Thread(target=kill_at_work, args=(group.pids()[-1],), daemon=True).start()

    def save(group: PolicyGroup, folder: str, *_: Any) -> None:
        if chaos.take("driver"):
            pid = group.pids()[0]
            threading.Thread(target=die_in_mid_write, args=(Path(folder), pid), daemon=True).start()

    before(GrpoLoop, "step", lambda loop, records, step: chaos.begin(loop, step))
    before(Roles, "generate", generate)
    before(RewardRole, "score", score)
    before(ReferenceGroup, "log_probs", log_probs)
    before(PolicyGroup, "update", update)
    before(PolicyGroup, "save", save)

    def undo() -> None:
        for cls, name, original in originals:
            setattr(cls, name, original)

    return undo


def kill_at_work(pid: int) -> None:
    """Kill a process as soon as it computes."""

    def cpu_ticks() -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])

    idle = cpu_ticks()
    while cpu_ticks() < idle + 3:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)


def die_in_mid_write(folder: Path, writer: int) -> None:
    """Freeze the writer as soon as its unfinished checkpoint holds a file, then kill this process, the driver."""
    while not any(folder.glob(".*/*.safetensors")):
        time.sleep(0.0005)
    os.kill(writer, signal.SIGSTOP)
    unfinished = [str(path.relative_to(folder)) for path in folder.glob(".*/*")]
    (folder.parent / "unfinished.json").write_text(json.dumps({"files": unfinished, "writer": writer}))
    os.kill(os.getpid(), signal.SIGKILL)


def add_node_late(cluster: Cluster) -> None:
    """Add a node while a run waits for room: at the second line that says so. Ray starts nodes from the main thread alone."""
    looks = iter(range(100))
    look = cluster_placement.cluster_room

    def room(free: bool = True) -> list[NodeRoom]:
        if next(looks) == 3:
            cluster.add_node(**NODE)
        return look(free)

    cluster_placement.cluster_room = room


def main(plan: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    cluster: Any = None
    if plan["nodes"] is not None:
        cluster = Cluster(initialize_head=True, head_node_args={**HEAD, "num_cpus": plan["head"]})
        for _ in range(plan["nodes"]):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.WARNING)
        if plan.get("late"):
            add_node_late(cluster)
    try:
        for run in plan["runs"]:
            undo = install(Chaos(cluster, run["strikes"]))
            start = time.monotonic()
            train_grpo(load_config(GrpoConfig, run["config"], []))
            print(f"{run['config']}: {time.monotonic() - start:.1f} s", flush=True)
            undo()
    finally:
        if cluster is not None:
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
