"""Starting the five roles as Ray actors, each with resources of its own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError

from actors.policy import Policy
from actors.reference import Reference
from actors.retriever import RewardRetriever
from actors.reward import RewardScorer
from actors.rollout import RolloutBatch, RolloutWorker
from cluster.placement import check_resources
from configs.schema import GrpoConfig, ModelConfig, RolloutConfig
from models.generation import Rollout, SamplingParams
from models.views import View

logger = logging.getLogger(__name__)


class RoleError(ValueError):
    """A role that could not be started; the message names it and what its process said."""


@dataclass
class Roles:
    """Handles of the running roles."""

    policy: Any
    reference: Any
    retriever: Any
    reward: Any
    rollouts: list[Any] = field(default_factory=list)

    def all(self) -> dict[str, Any]:
        """Every actor by the name shown while waiting and in errors."""
        named = {f"rollout-{i}": handle for i, handle in enumerate(self.rollouts)}
        return {
            "policy": self.policy,
            "reference": self.reference,
            "retriever": self.retriever,
            "reward": self.reward,
            **named,
        }

    def wait_ready(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """Block until every role has loaded its model, saying which ones are still awaited.

        Raises:
            RoleError: a role's constructor raised, or its process died.
            TimeoutError: naming the roles that did not come up and the cluster's free resources.
        """
        pending = {handle.ready.remote(): name for name, handle in self.all().items()}
        results: dict[str, Any] = {}
        deadline = time.monotonic() + timeout_s
        while pending:
            done, _ = ray.wait(list(pending), num_returns=1, timeout=15.0)
            for reference in done:
                name = pending.pop(reference)
                try:
                    results[name] = ray.get(reference)
                except RayActorError as error:
                    raise RoleError(f"the {name} role did not start: {last_line(error)}") from error
            if not done and pending:
                waiting = ", ".join(pending.values())
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"roles not ready after {timeout_s:.0f} s: {waiting}; free resources: {ray.available_resources()}"
                    )
                logger.info("waiting for %s; free: %s", waiting, ray.available_resources())
        return results

    def stop(self) -> None:
        """Kill the actors and give their resources back."""
        for handle in self.all().values():
            ray.kill(handle)


def last_line(error: BaseException) -> str:
    """What was raised, without the remote traceback before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


class RemoteRetriever:
    """The retriever's ``encode`` behind a Ray handle, as the reward scorer calls it."""

    def __init__(self, handle: Any):
        self.handle = handle

    def __call__(self, views: list[View], max_length: int) -> np.ndarray:
        return ray.get(self.handle.encode.remote(views, max_length))


def launch_roles(config: GrpoConfig, exclusions: Mapping[str, Set[str]] | None = None) -> Roles:
    """Start policy, reference, retriever, reward and rollout actors (E.3: distinct roles, distinct copies of the weights)."""
    check_resources(config)
    res, run, model = config.resources, config.run, config.model
    frozen = ModelConfig(path=config.reward.retriever_path or model.path, dtype=model.dtype)
    policy = (
        ray.remote(Policy)
        .options(num_cpus=res.policy_cpus, num_gpus=res.policy_gpus)
        .remote(
            model,
            config.actor,
            temperature=config.rollout.temperature,
            threads=res.threads,
            device=run.device,
            seed=run.seed,
        )
    )
    reference = (
        ray.remote(Reference)
        .options(num_cpus=res.reference_cpus, num_gpus=res.reference_gpus)
        .remote(
            model,
            temperature=config.rollout.temperature,
            token_budget=config.actor.ppo_max_token_len,
            threads=res.threads,
            device=run.device,
        )
    )
    retriever = (
        ray.remote(RewardRetriever)
        .options(num_cpus=res.retriever_cpus, num_gpus=res.retriever_gpus)
        .remote(frozen, token_budget=config.reward.micro_batch_tokens, threads=res.threads, device=run.device)
    )
    reward = (
        ray.remote(RewardScorer)
        .options(num_cpus=0)
        .remote(
            config.reward,
            RemoteRetriever(retriever),
            max_query_length=config.data.max_query_length,
            document_max_length=config.data.document_max_length,
            exclusions=exclusions,
        )
    )
    params = sampling_params(config)
    rollout = engine_config(config)
    rollouts = [
        ray.remote(RolloutWorker)
        .options(num_cpus=res.rollout_cpus, num_gpus=res.rollout_gpus)
        .remote(model, rollout, params, threads=res.threads, device=run.device)
        for _ in range(config.rollout.workers)
    ]
    return Roles(policy, reference, retriever, reward, rollouts)


def engine_config(config: GrpoConfig) -> RolloutConfig:
    """The rollout keys with ``max_model_len`` filled in: an engine must hold the longest prompt with the longest response."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    return replace(config.rollout, max_model_len=config.rollout.max_model_len or longest)


def sampling_params(config: GrpoConfig) -> SamplingParams:
    """The rollouts' sampling parameters with the model's explicit stop ids."""
    from models.tokenization import ModelTokenizer

    return SamplingParams(
        n=config.rollout.n,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        max_tokens=config.data.max_response_length,
        stop_token_ids=ModelTokenizer.load(config.model.path).stop_token_ids,
    )


def push_weights(roles: Roles) -> tuple[int, float]:
    """Give every rollout worker the policy's weights through the object store; returns the version and the seconds."""
    start = time.perf_counter()
    version, weights = ray.get(roles.policy.weights.remote())
    shared = ray.put(weights)
    ray.get([worker.load_weights.remote(version, shared) for worker in roles.rollouts])
    return version, time.perf_counter() - start


def generate(
    roles: Roles, prompts: Sequence[Sequence[int]], seeds: Sequence[int], version: int
) -> tuple[list[list[Rollout]], float]:
    """Sample all prompts on all rollout workers; groups come back in the order of the prompts."""
    start = time.perf_counter()
    share = math.ceil(len(prompts) / len(roles.rollouts))
    parts = [range(i, min(i + share, len(prompts))) for i in range(0, len(prompts), share)]
    futures = [
        worker.generate.remote([prompts[i] for i in part], [seeds[i] for i in part], version)
        for worker, part in zip(roles.rollouts, parts, strict=False)
    ]
    batches: list[RolloutBatch] = ray.get(futures)
    return [group for batch in batches for group in batch.groups], time.perf_counter() - start
