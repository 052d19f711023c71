"""Rollout workers: engines that sample rationales from the newest policy weights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from actors.device import place
from actors.weight_buckets import Bucket
from actors.weight_group import WeightGroup, connect_store
from actors.weight_sync import WeightUpdate, device_id
from configs.schema import GrpoConfig, ModelConfig, RolloutConfig
from models.backbone import Backbone
from models.generation import Rollout, SamplingParams, sample_rollouts
from models.tokenization import ModelTokenizer
from objectives.rollout_correction import engine_temperature


@dataclass(frozen=True)
class RolloutBatch:
    """``groups[Q][n]`` rollouts, the weights' version they were drawn from, and the seconds it took."""

    groups: list[list[Rollout]]
    version: int
    seconds: float


class RolloutEngine(Protocol):
    """What the driver asks of an engine, whichever library runs it.

    Attributes:
        version: version of the weights the engine holds; -1 while it holds none that can be used.
        weight_dtype: what it holds them in, ``float32`` or ``bfloat16``.
    """

    version: int
    weight_dtype: str

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[list[Rollout]]:
        """``[Q][n]`` rollouts; a group depends on its prompt, its seed and the weights alone."""
        ...

    def load_weights(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all parameters; nothing computed from older weights (cached keys and values) may survive.

        ``weights`` yields each parameter once, by transformers' names, and may reuse its memory afterwards. An engine that sleeps
        wakes up.
        """
        ...

    def sleep(self) -> None:
        """Free the memory of the weights and of all keys and values; the version is -1 until the next push, which wakes it."""
        ...


class TransformersEngine:
    """Sampling with transformers, the default without a GPU: one prefill for the n samples of a prompt."""

    weight_dtype = "float32"  # as the policy's: autocast rounds in both at the same places

    def __init__(self, model: ModelConfig, config: RolloutConfig, params: SamplingParams, device: str):
        self.params = params
        self.token_budget = config.max_batch_tokens
        self.backbone = Backbone.load(model.path, dtype=model.dtype, device=device).eval()
        self.backbone.requires_grad_(False)
        self.version = 0
        self._shapes = {name: tensor.shape for name, tensor in self.backbone.state().items()}

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[list[Rollout]]:
        return sample_rollouts(self.backbone, prompts, self.params, seeds, self.token_budget)

    def load_weights(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._take_memory()
        self.version = -1
        missing = dict(self.backbone.model.named_parameters())
        for name, tensor in weights:
            if name not in self._shapes or tensor.shape != self._shapes[name]:
                raise ValueError(
                    f"pushed weight {name} of shape {tuple(tensor.shape)} does not fit the model; expected "
                    f"{tuple(self._shapes.get(name, ())) or 'no weight of that name'}"
                )
            missing.pop(name).data.copy_(tensor)
        if missing:
            raise ValueError(f"the pushed weights leave {len(missing)} parameters as they were: {sorted(missing)[:3]}")
        self.version = version

    def sleep(self) -> None:
        self.version = -1
        for parameter in self.backbone.model.parameters():
            parameter.data = parameter.data.new_empty(0)
        if self.backbone.device.type == "cuda":
            torch.cuda.empty_cache()

    def _take_memory(self) -> None:
        for name, parameter in self.backbone.model.named_parameters():
            if parameter.shape != self._shapes[name]:
                parameter.data = parameter.data.new_empty(self._shapes[name])


def build_engine(
    model: ModelConfig, config: RolloutConfig, params: SamplingParams, device: str, beside_cache: float | None = None
) -> RolloutEngine:
    """The configured engine: ``rollout.name`` hf or vllm; auto takes vllm where there is a GPU.

    Args:
        beside_cache: see :class:`actors.vllm_engine.VllmEngine`.
    """
    name = config.name
    if name == "auto":
        name = "vllm" if device == "cuda" else "hf"
    if name == "vllm":
        from actors.vllm_engine import VllmEngine

        return VllmEngine(model, config, params, beside_cache)
    return TransformersEngine(model, config, params, device)


def engine_config(config: GrpoConfig) -> RolloutConfig:
    """The rollout keys with ``max_model_len`` filled in: an engine must hold the longest prompt with the longest response."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    return replace(config.rollout, max_model_len=config.rollout.max_model_len or longest)


def sampling_params(config: GrpoConfig) -> SamplingParams:
    """The rollouts' sampling parameters, with the model's explicit stop ids and the log-probabilities that the policy needs."""
    return SamplingParams(
        n=config.rollout.n,
        temperature=config.rollout.temperature,
        top_p=config.rollout.top_p,
        max_tokens=config.data.max_response_length,
        stop_token_ids=ModelTokenizer.load(config.model.path).stop_token_ids,
        log_prob_temperature=engine_temperature(config),
    )


class RolloutWorker:
    """One engine in a process of its own."""

    def __init__(
        self,
        model: ModelConfig,
        config: RolloutConfig,
        params: SamplingParams,
        *,
        threads: int,
        device: str,
        beside_cache: float | None = None,
    ):
        self._device = place(device, threads)
        self._group: WeightGroup | None = None
        self.engine = build_engine(model, config, params, self._device, beside_cache)

    def ready(self) -> int:
        """The version of the weights, once the engine is up."""
        return self.engine.version

    # -- weights --------------------------------------------------------------------------------------------------------

    def weight_dtype(self) -> str:
        """The dtype in which the engine holds its weights."""
        return self.engine.weight_dtype

    def weight_device(self) -> str:
        """See :func:`actors.weight_sync.device_id`; ``cpu`` where the engine runs there."""
        return device_id() if self._device == "cuda" else "cpu"

    def load_weights(self, update: WeightUpdate) -> float:
        """Take the policy's weights from the object store; returns the seconds it took."""
        start = time.perf_counter()
        self.engine.load_weights(update.version, update.parameters())
        return time.perf_counter() - start

    def join_weight_group(self, host: str, port: int, rank: int, size: int, backend: str, timeout_s: float) -> None:
        """Become a receiver of the broadcasts of the sender at ``host:port``."""
        self._group = None
        self._group = WeightGroup(connect_store(host, port, timeout_s), rank, size, backend, timeout_s)

    def receive_broadcast(self) -> float:
        """Take the weights of the next broadcast; returns the seconds it took.

        Raises:
            WeightTransferError: they did not come through; the engine holds no weights that can be used.
        """
        if self._group is None:
            raise RuntimeError("this rollout worker is in no weight group; join_weight_group comes first")
        start = time.perf_counter()
        self.engine.version = -1
        group, self._group = self._group, None
        version, buckets = group.receive()
        try:
            self.engine.load_weights(version, _parameters(buckets))
        finally:
            for _ in buckets:  # a receiver that fails must not keep the others waiting
                pass
        self._group = group  # only a group that has worked is used again
        return time.perf_counter() - start

    def sleep(self) -> None:
        """Free the engine's memory until the next push."""
        self.engine.sleep()

    # -- sampling -------------------------------------------------------------------------------------------------------

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


def _parameters(buckets: Iterator[Bucket]) -> Iterator[tuple[str, torch.Tensor]]:
    for bucket in buckets:
        yield from bucket.parameters()
