"""Sampling with vLLM: continuous batching, the prompt's keys and values shared by a group, weights replaced in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from cluster.errors import is_device_failure
from configs.schema import ModelConfig, RolloutConfig
from models.generation import Rollout, SamplingParams

MIN_TEMPERATURE = 0.01
"""vLLM raises a positive temperature below this to it, without an error."""


class VllmEngine:
    """A vLLM engine inside the calling process; one process holds one at a time.

    Inside, and not in vLLM's own child processes, because requests are then scheduled in the same order in every run, arrays
    reach the model without a copy, and a killed rollout worker leaves no engine behind. vLLM sets process-wide state
    (environment variables, torch's thread functions), so the process should be the engine's own: a rollout worker's.

    Sampling is vLLM's. The returned log-probabilities are over the whole vocabulary: vLLM's ``raw_logprobs`` at temperature 1,
    whatever the sampling temperature and nucleus, or its ``processed_logprobs`` at the sampling temperature where there is no
    nucleus; see ``SamplingParams.log_prob_temperature``.

    Attributes:
        params: how rationales are drawn.
        version: version of the weights the engine holds; -1 while it sleeps and after a push that failed half-way.
        weight_dtype: what vLLM holds them in.
    """

    def __init__(
        self, model: ModelConfig, config: RolloutConfig, params: SamplingParams, beside_cache: float | None = None
    ):
        """Start the engine on the weights of ``model.path``.

        ``config.gpu_memory_utilization`` and ``enforce_eager`` count on a GPU; vLLM's CPU build takes ``config.kv_cache_gb`` and
        always runs eagerly, because its compiled graphs cost minutes at every start and a C++ compiler.

        Args:
            beside_cache: bytes that all but keys and values will take, where other processes use the GPU too. Keys and values
                get what this leaves of ``config.gpu_memory_utilization``; vLLM would give them what is free at that moment.

        Raises:
            ImportError: vLLM is not installed.
            ValueError: sampling parameters that vLLM would change or refuse; ``rollout.sleep`` where vLLM cannot sleep;
                no room for keys and values.
        """
        vllm = _import_vllm()
        self._request_params = vllm.SamplingParams
        self.params = params
        self.version = 0
        self._log_prob_temperature = params.log_prob_temperature
        _ = self._request(params, seed=0)  # vLLM's own checks, before minutes of loading
        on_cpu = _platform().is_cpu()
        self._can_sleep = config.sleep
        if config.sleep and not _platform().is_sleep_mode_available():
            raise ValueError(
                "rollout.sleep is true; vLLM cannot free its memory on this device; expected false, or a GPU"
            )
        if on_cpu:
            _prepare_cpu_build()
        self._llm: Any = vllm.LLM(
            model=model.path,
            runner="generate",  # a SentenceTransformer's modules.json in the folder would make it a pooling model
            dtype=model.dtype,
            max_model_len=config.max_model_len or None,
            gpu_memory_utilization=config.gpu_memory_utilization,
            kv_cache_memory_bytes=int(config.kv_cache_gb * 2**30) if on_cpu else _fixed_cache(config, beside_cache),
            enforce_eager=config.enforce_eager or on_cpu,
            enable_prefix_caching=True,
            # with a prompt prefilled in parts, vLLM rewinds the request's random generator, which a CPU generator cannot do
            enable_chunked_prefill=False if on_cpu else None,
            logprobs_mode="raw_logprobs" if params.log_prob_temperature == 1 else "processed_logprobs",
            enable_sleep_mode=config.sleep,
            generation_config="vllm",  # the checkpoint's own sampling defaults stay out
            trust_remote_code=False,
        )
        self.max_model_len = int(self._llm.model_config.max_model_len)
        self.weight_dtype = str(self._llm.model_config.dtype).removeprefix("torch.")
        self._asleep: set[str] = set()

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], params: SamplingParams | None = None
    ) -> list[list[Rollout]]:
        """Draw ``n`` rationales for each prompt; groups come back in the order of the prompts.

        A sample's random numbers depend on its group's seed and its place in the group alone, so the result is the same whatever
        else is in the batch (to the rounding of batched matrix products).

        Args:
            prompts: token ids of each prompt, ``[Q]``.
            seeds: one a prompt.
            params: other sampling parameters than the engine's, such as greedy ones.

        Returns:
            ``[Q][n]`` rollouts; the stop token is a rollout's last token unless the length limit cut it.

        Raises:
            ValueError: a prompt and its response do not fit into ``rollout.max_model_len``.
        """
        params = params or self.params
        for row, prompt in enumerate(prompts):
            if len(prompt) + params.max_tokens > self.max_model_len:  # vLLM would cut the response silently
                raise ValueError(
                    f"prompt {row} has {len(prompt)} tokens; with {params.max_tokens} of response that is more than "
                    f"rollout.max_model_len, {self.max_model_len}"
                )
        requests = [self._request(params, seed) for seed in seeds]
        outputs = self._llm.generate([{"prompt_token_ids": list(p)} for p in prompts], requests, use_tqdm=False)
        copies = params.n if params.temperature == 0 else 1
        return [[_rollout(sample) for sample in output.outputs for _ in range(copies)] for output in outputs]

    def load_weights(self, version: int, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace all parameters in place and forget every cached key and value; an engine that sleeps wakes up.

        Args:
            version: the policy's version of them.
            weights: the policy's parameters by transformers' names, tied ones once; vLLM's own loader fuses and casts them.

        Raises:
            ValueError: a tensor that no parameter takes, or parameters that no tensor was given for.
            RuntimeError: requests are still running, so that old keys and values would survive; or the GPU failed or has no room.
        """
        self.version = -1
        current = ""

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal current
            for name, tensor in weights:
                current = name
                yield name, tensor

        def replace(model: Any) -> set[str]:
            with torch.no_grad():
                loaded = model.load_weights(tensors())
            return set(dict(model.named_parameters())) - set(loaded)

        self._wake("weights")  # keys and values later: a push needs the room of a bucket
        try:
            missing = self._llm.apply_model(replace)[0]
        except (AssertionError, AttributeError, KeyError, RuntimeError, ValueError) as error:
            if is_device_failure(error, memory=True):
                raise
            raise ValueError(f"pushed weight {current} does not fit the model that vLLM loaded: {error!r}") from error
        if missing:
            raise ValueError(f"the pushed weights leave {len(missing)} parameters as they were: {sorted(missing)[:3]}")
        self._wake("kv_cache")
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                "vLLM kept keys and values of the old weights: requests were still running at a weight push"
            )
        self.version = version

    def sleep(self) -> None:
        """Give the GPU memory of weights, keys and values to others; the weights are gone until the next push.

        Raises:
            ValueError: the engine was started without ``rollout.sleep``.
        """
        if not self._can_sleep:
            raise ValueError("the engine cannot sleep: rollout.sleep is false; expected true before it starts")
        self.version = -1
        self._llm.sleep(level=2)  # level 1 would keep a copy of weights that the next push replaces anyway
        self._asleep = {"weights", "kv_cache"}

    def _wake(self, part: str) -> None:
        if part in self._asleep:
            self._llm.wake_up(tags=[part])
            self._asleep.remove(part)

    def _request(self, params: SamplingParams, seed: int) -> Any:
        greedy = params.temperature == 0
        if params.log_prob_temperature != self._log_prob_temperature:
            raise ValueError(
                f"log-probabilities at temperature {params.log_prob_temperature}; the engine was started to give them at "
                f"{self._log_prob_temperature}"
            )
        if 0 < params.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"rollout.temperature is {params.temperature}; vLLM samples at 0 (greedy) or at {MIN_TEMPERATURE} and more"
            )
        return self._request_params(
            n=1 if greedy else params.n,  # vLLM refuses several greedy samples; they are all the same
            temperature=params.temperature,
            top_p=params.top_p,
            max_tokens=params.max_tokens,
            stop_token_ids=list(params.stop_token_ids),
            ignore_eos=True,  # the checkpoint's own end tokens do not count: the stop ids are explicit
            seed=_spread(seed),
            logprobs=0,  # the sampled token's alone
            detokenize=False,
        )


def _fixed_cache(config: RolloutConfig, beside_cache: float | None) -> int | None:
    """Bytes of keys and values on a GPU; None leaves it to vLLM."""
    if beside_cache is None:
        return None
    _, total = torch.cuda.mem_get_info()
    room = int(config.gpu_memory_utilization * total - beside_cache)
    if room <= 0:
        raise ValueError(
            f"rollout.gpu_memory_utilization is {config.gpu_memory_utilization:g} of {total / 1e9:.0f} GB; the model and vLLM's "
            f"buffers need {beside_cache / 1e9:.1f} GB, which leaves nothing for keys and values; raise it"
        )
    return room


def _import_vllm() -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise ImportError(
            "rollout.name asks for vLLM, which is not installed: pip install skillreason[gpu] on a machine with a GPU, make "
            "setup for its CPU build, or rollout.name=hf"
        ) from error
    return vllm


def _platform() -> Any:
    from vllm.platforms import current_platform

    return current_platform


def _prepare_cpu_build() -> None:
    """What vLLM's CPU build needs in this process before an engine starts."""
    import torch._dynamo
    from vllm.model_executor.layers import utils

    def use_own_weight(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # By default a layer multiplies with a copy of its weight packed at load, which later pushes would not reach.
    utils.dispatch_cpu_unquantized_gemm = use_own_weight
    # The sampler would compile one small function: half a minute at the first request, and a C++ compiler on the machine.
    torch._dynamo.config.disable = True


def _spread(seed: int) -> int:
    """A 62-bit number far from those of neighbouring seeds: vLLM gives the samples of a group consecutive seeds."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little") >> 2


def _rollout(sample: Any) -> Rollout:
    tokens = list(sample.token_ids)
    return Rollout(tokens, [float(at[token].logprob) for at, token in zip(sample.logprobs, tokens, strict=True)])
