"""Starting the five roles of Stage II on a cluster, and starting one again when it is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.groups import PolicyGroup, ReferenceGroup
from actors.members import TICK_S, Note, RoleError
from actors.pool import ElasticPool, piece_sizes
from actors.retriever import RewardRetriever
from actors.reward import EmbeddedScorer
from actors.reward_role import RewardRole
from actors.rollout import RolloutBatch, RolloutWorker, engine_config, sampling_params
from actors.weight_sync import WeightSync
from cluster.errors import cause, last_line
from cluster.memory import beside_cache
from cluster.placement import Placement, Seat
from cluster.roles import PlacementPlan, plan_placement, role_device
from cluster.shapes import read_shape
from configs.schema import GrpoConfig, ModelConfig
from models.generation import Rollout

logger = logging.getLogger(__name__)


@dataclass
class Roles:
    """The running roles, as the training loop calls them."""

    config: GrpoConfig
    placement: Placement
    policy: PolicyGroup
    reference: ReferenceGroup
    rollouts: ElasticPool
    reward: RewardRole
    weights: WeightSync

    @property
    def retrievers(self) -> ElasticPool:
        """The frozen retrievers behind the reward."""
        return self.reward.retrievers

    def wait_ready(self) -> None:
        """Block until the groups, the reward actor and the least of each pool are up, saying every few seconds who is awaited.

        On shared GPUs the rollout workers come last: their engine refuses to start in less memory than it asks for, and others
        take more while they load than when they are at rest.

        Raises:
            RoleError: a constructor raised, or a pool's processes die as they start.
            GroupDied: a process of policy or reference died.
            BackboneError, ValueError: as a worker of a group raised it.
        """
        groups = {"policy": self.policy, "reference": self.reference}
        awaited = {reference: name for name, group in groups.items() for reference in group.starting}
        awaited[self.reward.handle.ready.remote()] = "reward"
        pools = (self.retrievers, self.rollouts)
        said = time.monotonic()
        loading = (self.retrievers,) if self.placement.plan.colocated else pools
        while True:
            for pool in loading:
                pool.tend()
            short = [pool for pool in pools if pool.size() < pool.least]
            if not awaited:
                break  # the pools say themselves for whom they wait
            done, _ = ray.wait(list(awaited), num_returns=1, timeout=1.0)
            for reference in done:
                name = awaited.pop(reference)
                try:
                    ray.get(reference)
                except RayActorError as error:
                    if name == "reward":
                        raise RoleError(f"the reward role did not start: {last_line(error)}") from error
                    groups[name].ready()
                except RayTaskError as error:
                    if name == "reward":
                        raise RoleError(f"the reward role did not start: {last_line(cause(error))}") from error
                    groups[name].ready()
            if time.monotonic() - said > TICK_S:
                said = time.monotonic()
                names = [*dict.fromkeys(awaited.values()), *(f"{pool.name} pool" for pool in short)]
                logger.info("waiting for %s to load", ", ".join(names))
        for pool in pools:
            pool.wait_ready()

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[list[Rollout]]:
        """Sample all prompts on whatever rollout workers there are; groups come back in the order of the prompts.

        Raises:
            GroupDied: the policy died, and a worker that has just started needs its weights.
            RoleError: see :meth:`actors.pool.ElasticPool.map`.
        """
        self.rollouts.wait_ready()
        pieces, start = [], 0
        for size in piece_sizes(len(prompts), self.rollouts.most):
            part = slice(start, start + size)
            pieces.append(([list(p) for p in prompts[part]], list(seeds[part]), self.weights.version))
            start += size
        batches: list[RolloutBatch] = self.rollouts.map("generate", pieces)
        if self.config.rollout.sleep:
            self.rollouts.call_all("sleep")
        return [group for batch in batches for group in batch.groups]

    def push_weights(self) -> int:
        """Give every rollout worker the policy's weights; returns their version.

        Raises:
            GroupDied: the policy died meanwhile.
        """
        try:
            push = self.weights.push(self.rollouts.handles())
        except RayTaskError as error:
            if isinstance(error.cause, ObjectLostError):  # weights that a worker could not fetch went with their owner
                self.policy.version()
            raise
        self.rollouts.lose(push.lost, "lost in a weight push")
        return push.version

    def welcome(self, worker: Any) -> Any:
        """Give a rollout worker that has just started the newest weights; a reference to wait for.

        Raises:
            GroupDied: the policy died.
        """
        if self.weights.version < 0:  # nothing to take yet: the first push reaches everybody who has started
            return worker.ready.remote()
        self.policy.version()
        return self.weights.deliver(worker)

    def restart(self, group: str) -> set[str]:
        """End what is left of a group and start it again where its bundles are, or elsewhere if their nodes are gone.

        Returns:
            the groups that were started: both, where the reference is a guest in lost bundles of the policy.
        """
        pools = (self.rollouts, self.retrievers)
        {"policy": self.policy, "reference": self.reference}[group].stop()
        moved = self.placement.renew(group, lambda: [pool.give_way() for pool in pools])
        for pool in pools:
            pool.resume()
        plan = self.placement.plan
        started = {"policy", "reference"} if moved and plan.colocated else {group}
        if "policy" in started:
            self.policy.stop()
            self.policy = PolicyGroup.start(_of_role(self.config, plan, "policy"), self.placement.slots("policy"))
            self.weights.reset(self.policy)
        if "reference" in started:
            self.reference.stop()
            self.reference = ReferenceGroup.start(
                _of_role(self.config, plan, "reference"), self.placement.slots("reference")
            )
        return started

    def stop(self) -> None:
        """End all processes and give their resources back."""
        for role in (self.rollouts, self.reward, self.policy, self.reference):
            role.stop()
        self.placement.release()


def launch_roles(
    config: GrpoConfig, note: Note, exclusions: Mapping[str, Set[str]] | None = None, may_grow: bool = False
) -> Roles:
    """Reserve what the roles need and start them (E.3: distinct roles, distinct copies of the weights); returns while they load.

    Args:
        note: takes the pools' events.
        may_grow: nodes may join the cluster, see :func:`cluster.placement.ray_session`.

    Raises:
        ConfigError: they do not fit the cluster.
    """
    plan = plan_placement(config)
    placement = Placement.reserve(plan, wait_s=config.resources.wait_s, may_grow=may_grow)
    try:
        policy = PolicyGroup.start(_of_role(config, plan, "policy"), placement.slots("policy"))
        reference = ReferenceGroup.start(_of_role(config, plan, "reference"), placement.slots("reference"))
        rollouts = _rollout_pool(config, placement, note, lambda worker: roles.welcome(worker))
        reward = RewardRole(
            lambda: _reward_actor(config, exclusions),
            _retriever_pool(config, placement, note),
            note,
            max_query_length=config.data.max_query_length,
            document_max_length=config.data.document_max_length,
        )
    except BaseException:
        placement.release()
        raise
    roles = Roles(config, placement, policy, reference, rollouts, reward, WeightSync(policy, config.rollout))
    return roles


def _of_role(config: GrpoConfig, plan: PlacementPlan, role: str) -> GrpoConfig:
    return replace(config, run=replace(config.run, device=role_device(config.run.device, plan, role)))


def _rollout_pool(config: GrpoConfig, placement: Placement, note: Note, welcome: Callable[[Any], Any]) -> ElasticPool:
    engine, params = engine_config(config), sampling_params(config)
    plan = placement.plan.role("rollout")
    device = role_device(config.run.device, placement.plan, "rollout")
    beside = None
    if placement.plan.colocated and plan.share.gpus > 0 and config.rollout.name != "hf":
        beside = beside_cache(read_shape(config.model.path)[0], config.model.dtype)

    def create(seat: Seat) -> Any:
        actor = ray.remote(RolloutWorker).options(**seat.options())
        threads = config.resources.threads
        return actor.remote(config.model, engine, params, threads=threads, device=device, beside_cache=beside)

    return ElasticPool(
        "rollout",
        placement,
        create,
        most=plan.members,
        least=plan.least,
        wait_s=config.resources.wait_s,
        note=note,
        welcome=welcome,
    )


def _retriever_pool(config: GrpoConfig, placement: Placement, note: Note) -> ElasticPool:
    frozen = ModelConfig(path=config.reward.retriever_path or config.model.path, dtype=config.model.dtype)
    plan = placement.plan.role("retriever")
    device = role_device(config.run.device, placement.plan, "retriever")
    budget, res = config.reward.micro_batch_tokens, config.resources

    def create(seat: Seat) -> Any:
        actor = ray.remote(RewardRetriever).options(**seat.options())
        return actor.remote(frozen, token_budget=budget, threads=res.threads, device=device, release=res.colocate)

    return ElasticPool(
        "retriever",
        placement,
        create,
        most=plan.members,
        least=plan.least,
        wait_s=config.resources.wait_s,
        note=note,
    )


def _reward_actor(config: GrpoConfig, exclusions: Mapping[str, Set[str]] | None) -> Any:
    # beside the driver: an actor that reserves nothing could be anywhere, and would go with a node it does not need
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": here}
    return ray.remote(EmbeddedScorer).options(**options).remote(config.reward, exclusions)
