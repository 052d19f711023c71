"""Rollout workers: engines that sample rationales from the newest policy weights."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from actors.device import place
from configs.schema import ModelConfig, RolloutConfig
from models.backbone import Backbone
from models.generation import Rollout, SamplingParams, sample_rollouts


@dataclass(frozen=True)
class RolloutBatch:
    """``groups[Q][n]`` rollouts, the weights' version they were drawn from, and the seconds it took."""

    groups: list[list[Rollout]]
    version: int
    seconds: float


class RolloutEngine(Protocol):
    """What the driver asks of an engine, whichever library runs it."""

    version: int

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[list[Rollout]]:
        """``[Q][n]`` rollouts; a group depends on its prompt, its seed and the weights alone."""
        ...

    def load_weights(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Replace all parameters; nothing computed from older weights (cached keys and values) may survive."""
        ...


class TransformersEngine:
    """Sampling with transformers, the default without a GPU: one prefill for the n samples of a prompt."""

    def __init__(self, model: ModelConfig, config: RolloutConfig, params: SamplingParams, device: str):
        self.params = params
        self.token_budget = config.max_batch_tokens
        self.backbone = Backbone.load(model.path, dtype=model.dtype, device=device).eval()
        self.backbone.requires_grad_(False)
        self.version = 0

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[list[Rollout]]:
        return sample_rollouts(self.backbone, prompts, self.params, seeds, self.token_budget)

    def load_weights(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        with warnings.catch_warnings():  # arrays of the object store are read-only, and are only read
            warnings.filterwarnings("ignore", message=".*not writable.*")
            self.backbone.load_state({name: torch.from_numpy(array) for name, array in weights.items()})
        self.version = version


def build_engine(model: ModelConfig, config: RolloutConfig, params: SamplingParams, device: str) -> RolloutEngine:
    """The configured engine: ``rollout.name`` hf or vllm; auto takes vllm where there is a GPU."""
    name = config.name
    if name == "auto":
        name = "vllm" if device == "cuda" else "hf"
    if name == "vllm":
        from actors.vllm_engine import VllmEngine

        return VllmEngine(model, config, params)
    return TransformersEngine(model, config, params, device)


class RolloutWorker:
    """One engine in a process of its own."""

    def __init__(self, model: ModelConfig, config: RolloutConfig, params: SamplingParams, *, threads: int, device: str):
        self.engine = build_engine(model, config, params, place(device, threads))

    def ready(self) -> int:
        """The version of the weights, once the engine is up."""
        return self.engine.version

    def load_weights(self, version: int, weights: Mapping[str, np.ndarray]) -> float:
        """Take the policy's weights; returns the seconds it took."""
        start = time.perf_counter()
        self.engine.load_weights(version, weights)
        return time.perf_counter() - start

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], version: int) -> RolloutBatch:
        """Sample every prompt's group from weights of exactly ``version``.

        Raises:
            RuntimeError: the engine holds other weights; its samples would be off-policy without anyone noticing.
        """
        if self.engine.version != version:
            raise RuntimeError(
                f"rollout worker holds weights of version {self.engine.version}, the policy is at {version}: "
                "a weight push was lost"
            )
        start = time.perf_counter()
        groups = self.engine.generate(prompts, seeds)
        return RolloutBatch(groups, self.engine.version, time.perf_counter() - start)
