"""The workers of a group: policy and reference behind verl's single controller, one Ray actor a rank.

Importing this module imports verl: :mod:`actors.groups` does so when it starts a group.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch.distributed as dist
from verl.protocol import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, Execute, register
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.single_controller.ray.base import SubRayResourcePool

from actors.device import place
from actors.policy import Policy
from actors.reference import Reference
from actors.transport import scores_proto, sequences_of, share_of
from actors.weight_sync import WeightPublisher, WeightUpdate, device_id
from configs.parallel import resolve_strategy
from configs.schema import GrpoConfig, ParallelConfig
from models.views import View
from objectives.rollout_correction import engine_temperature

if TYPE_CHECKING:
    from cluster.placement import Slots

COLLECTIVE_S = 2 * 3600.0
"""Seconds that the workers wait for each other: rank 0 writes checkpoints and exports of gigabytes while the others are in the
next collective, and NCCL ends a process after ten minutes by default. A process that dies is noticed by the driver at once."""

# Calls return references at once: the driver waits for all workers together, and so notices one that has died.
_MODES: Any = Dispatch  # verl fills both at import
_WHERE: Any = Execute
on_all = register(dispatch_mode=_MODES.ONE_TO_ALL, blocking=False)
on_first = register(dispatch_mode=_MODES.ALL_TO_ALL, execute_mode=_WHERE.RANK_ZERO, blocking=False)
on_shares = register(dispatch_mode=_MODES.DP_COMPUTE_METRIC, blocking=False)


def launch(worker: type[GroupWorker], name: str, config: GrpoConfig, slots: Slots) -> RayWorkerGroup:
    """Create a group's actors, one a bundle; they are empty until their ``setup`` is called."""
    pool = SubRayResourcePool(
        placement_groups=[slots.placement_group],
        start_bundle_index=slots.first,
        subgroup_world_size=slots.count,
        process_on_nodes=[slots.placement_group.bundle_count],
        use_gpu=False,  # verl's way to reserve one GPU a worker; our share of one is among the options below
        max_colocate_count=1,
    )
    member = RayClassWithInitArgs(ray.remote(worker), name, config)
    member.update_options({"num_cpus": slots.cpus, "num_gpus": slots.gpus})
    # without it Ray gives a worker of less than one CPU a single OpenMP thread, and others as many as it has CPUs
    threads = {"OMP_NUM_THREADS": str(config.resources.threads)} if config.resources.threads else {}
    return _Workers(
        resource_pool=pool,
        ray_cls_with_init=member,
        name_prefix=f"{name}-{uuid.uuid4().hex[:8]}-",  # actors' names are unique in a cluster, a restarted group's too
        worker_env=threads,
    )


class _Workers(RayWorkerGroup):
    def _get_master_addr_port(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to find out: the group meets at its first worker's store (:meth:`GroupWorker.listen`).

        verl runs a task of one CPU in the first bundle for this, which never starts where the bundle holds less, and picks a port
        that another process may take before it is used.
        """
        self._master_addr, self._master_port = "unset", "0"


class GroupWorker(Worker):
    """One rank of a group: joins the others, then builds what it works with."""

    def __init__(self, name: str, config: GrpoConfig):
        super().__init__()
        self.name = name
        self.config = config
        self._store: dist.TCPStore | None = None

    @on_first
    def listen(self) -> tuple[str, int]:
        """Serve the store through which the group's workers find each other (rank 0): its host and port."""
        self._store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        return ray.util.get_node_ip_address(), self._store.port

    @on_all
    def pid(self) -> int:
        return os.getpid()

    def join(self, address: tuple[str, int], parallel: ParallelConfig) -> None:
        """Become a member of the group's ``torch.distributed``: nccl on GPUs, else gloo. Nothing for a single process."""
        if resolve_strategy(parallel, "fsdp2") == "single":
            return
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address[0], str(address[1])
        store = self._store or dist.TCPStore(*address, is_master=False)
        on_gpu = place(self.config.run.device, self.config.resources.threads) == "cuda"
        if on_gpu:  # the current one: the only one that this process sees, or verl's choice where Ray hides none
            self._refuse_shared_gpu(store)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=COLLECTIVE_S),
        )

    def _refuse_shared_gpu(self, store: dist.TCPStore) -> None:
        """NCCL cannot run two ranks on one GPU, and says so less plainly."""
        store.set(f"gpu/{self.rank}", device_id())
        owners = [store.get(f"gpu/{rank}").decode() for rank in range(self.world_size)]
        first = owners.index(owners[self.rank])
        if first != self.rank:
            raise ValueError(
                f"workers {first} and {self.rank} of the {self.name} have the same GPU; let resources.{self.name}_gpus give each "
                "its own, or set resources.colocate=true"
            )


class PolicyWorker(GroupWorker):
    """One rank of the policy."""

    @on_all
    def setup(self, address: tuple[str, int]) -> int:
        """Join the group and load the model; returns its parameters."""
        config = self.config
        self.join(address, config.actor.parallel)
        self.policy = Policy(
            config.model,
            config.actor,
            temperature=config.rollout.temperature,
            threads=config.resources.threads,
            device=config.run.device,
            seed=config.run.seed,
            engine_temperature=engine_temperature(config),
            correction=config.rollout_correction,
            release=config.resources.colocate,
        )
        self.publisher = WeightPublisher(
            self.policy.engine.full_parameters,
            rank=self.rank,
            bucket_mb=config.rollout.weight_bucket_mb,
            device=self.policy.engine.device,
        )
        return self.policy.ready()

    @on_shares
    def update(self, proto: DataProto) -> dict[str, float]:
        return self.policy.update_share(share_of(proto))

    @on_all
    def encode(self, views: Sequence[View], max_length: int) -> np.ndarray | None:
        embeddings = self.policy.encode(views, max_length)
        return embeddings if self.rank == 0 else None

    @on_all
    def save(self, folder: str, step: int, progress: dict[str, Any], keep: int) -> str:
        return self.policy.save(folder, step, progress, keep)

    @on_all
    def restore(self, path: str) -> dict[str, Any]:
        return self.policy.restore(path)

    @on_all
    def export(self, retriever: str, causal_lm: str, max_length: int) -> None:
        self.policy.export(retriever, causal_lm, max_length)

    @on_first
    def version(self) -> int:
        return self.policy.version

    @on_all
    def publish_weights(self, dtype: str) -> WeightUpdate | None:
        update = self.publisher.publish(self.policy.version, dtype)
        self.policy.rest()  # before the engines wake up
        return update

    @on_first
    def open_weight_group(self) -> tuple[str, int]:
        return self.publisher.open_group()

    @on_first
    def weight_device(self) -> str:
        return self.publisher.device()

    @on_first
    def join_weight_group(self, size: int, backend: str) -> None:
        self.publisher.join_group(size, backend)

    @on_all
    def broadcast_weights(self, dtype: str) -> int:
        self.publisher.broadcast(self.policy.version, dtype)
        self.policy.rest()
        return self.policy.version


class ReferenceWorker(GroupWorker):
    """One rank of the reference."""

    @on_all
    def setup(self, address: tuple[str, int]) -> int:
        """Join the group and load the model; returns its parameters."""
        config = self.config
        self.join(address, config.ref.parallel)
        self.reference = Reference(
            config.model,
            temperature=config.rollout.temperature,
            token_budget=config.ref.log_prob_max_token_len or config.actor.ppo_max_token_len,
            threads=config.resources.threads,
            device=config.run.device,
            parallel=config.ref.parallel,
            release=config.resources.colocate,
        )
        return self.reference.ready()

    @on_shares
    def log_probs(self, proto: DataProto) -> DataProto:
        values, seconds = self.reference.log_probs(*sequences_of(proto))
        return scores_proto(values, proto, seconds)
