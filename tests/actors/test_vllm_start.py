"""What is said and settled before a vLLM engine starts, and how it sleeps where vLLM can: on a GPU, here a vLLM of straw."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from actors.rollout import engine_config
from actors.vllm_engine import VllmEngine
from configs import GrpoConfig, load_config
from configs.schema import ModelConfig, RolloutConfig
from models.generation import SamplingParams

FILES = ["run.name=a", "model.path=m", "data.train_file=t.jsonl"]


def test_a_missing_vllm_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    with pytest.raises(ImportError, match=r"pip install skillreason\[gpu\].*make setup.*rollout\.name=hf"):
        VllmEngine(ModelConfig(path="anything"), RolloutConfig(), SamplingParams())


def test_an_engine_holds_the_longest_prompt_with_the_longest_response() -> None:
    config = load_config(
        GrpoConfig,
        None,
        [*FILES, "reward.terms.margin.weight=1.0", "data.max_prompt_length=1024", "data.max_response_length=192"],
    )
    assert engine_config(config).max_model_len == 1216


def test_a_given_capacity_stays() -> None:
    config = load_config(GrpoConfig, None, [*FILES, "reward.terms.margin.weight=1.0", "rollout.max_model_len=2048"])
    assert engine_config(config).max_model_len == 2048


class StrawModel:
    """Takes one parameter, or raises what it is told to."""

    fails: Exception | None = None

    def __init__(self, calls: list[str]):
        self.calls = calls

    def load_weights(self, weights: Any) -> set[str]:
        self.calls.append("load")
        if self.fails is not None:
            raise self.fails
        return {name for name, _ in weights}

    def named_parameters(self) -> dict[str, None]:
        return {"w": None}


class StrawLLM:
    """vLLM's interface as the engine uses it; notes what is called."""

    calls: list[str]
    options: dict[str, Any]

    def __init__(self, **options: Any):
        type(self).options = options
        self.model_config = SimpleNamespace(max_model_len=64, dtype=torch.bfloat16)

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags}")

    def apply_model(self, function: Any) -> list[Any]:
        return [function(StrawModel(self.calls))]

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return True


@pytest.fixture
def straw_vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A platform that can sleep; the tests change it."""
    platform = SimpleNamespace(is_sleep_mode_available=lambda: True, is_cpu=lambda: False)
    vllm: Any = ModuleType("vllm")
    vllm.SamplingParams, vllm.LLM = SimpleNamespace, StrawLLM
    platforms: Any = ModuleType("vllm.platforms")
    platforms.current_platform = platform
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    StrawLLM.calls = []
    return platform


def engine(sleep: bool = True, params: SamplingParams | None = None) -> VllmEngine:
    return VllmEngine(ModelConfig(path="m"), RolloutConfig(sleep=sleep), params or SamplingParams())


def test_sleep_is_refused_where_vllm_cannot(straw_vllm: SimpleNamespace) -> None:
    straw_vllm.is_sleep_mode_available = lambda: False
    with pytest.raises(
        ValueError, match=r"rollout\.sleep is true; vLLM cannot free its memory.*expected false, or a GPU"
    ):
        engine()


def test_an_engine_started_without_sleep_does_not_sleep(straw_vllm: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match=r"rollout\.sleep is false; expected true before it starts"):
        engine(sleep=False).sleep()
    assert StrawLLM.options["enable_sleep_mode"] is False


def test_a_sleeping_engine_holds_no_version_until_a_push_wakes_it(straw_vllm: SimpleNamespace) -> None:
    sleeper = engine()
    sleeper.sleep()
    assert (sleeper.version, StrawLLM.calls) == (-1, ["sleep 2"])
    sleeper.load_weights(4, [("w", torch.zeros(1))])
    assert sleeper.version == 4
    assert StrawLLM.calls[1:] == ["wake ['weights']", "load", "wake ['kv_cache']", "reset"]


def test_an_engine_that_is_awake_is_not_woken_again(straw_vllm: SimpleNamespace) -> None:
    engine().load_weights(1, [("w", torch.zeros(1))])
    assert StrawLLM.calls == ["load", "reset"]


@pytest.mark.parametrize(
    ("params", "mode"),
    [
        (SamplingParams(), "raw_logprobs"),
        (SamplingParams(top_p=1.0, log_prob_temperature=0.8), "processed_logprobs"),
    ],
)
def test_log_probs_are_vllms_raw_ones_unless_those_of_the_samples_are_asked_for(
    straw_vllm: SimpleNamespace, params: SamplingParams, mode: str
) -> None:
    engine(params=params)
    assert StrawLLM.options["logprobs_mode"] == mode


def test_a_folder_with_a_pooling_modules_json_is_still_one_that_writes(straw_vllm: SimpleNamespace) -> None:
    engine()
    assert StrawLLM.options["runner"] == "generate"


def test_an_engine_alone_on_its_gpu_lets_vllm_find_out_its_room(straw_vllm: SimpleNamespace) -> None:
    engine()
    assert StrawLLM.options["kv_cache_memory_bytes"] is None


def test_an_engine_on_a_shared_gpu_gets_a_fixed_room_for_keys_and_values(
    straw_vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 80 * 10**9))  # what is free does not count
    config = RolloutConfig(gpu_memory_utilization=0.3)
    VllmEngine(ModelConfig(path="m"), config, SamplingParams(), beside_cache=9e9)
    assert StrawLLM.options["kv_cache_memory_bytes"] == 15 * 10**9
    with pytest.raises(ValueError, match=r"rollout\.gpu_memory_utilization is 0\.3 of 80 GB.*need 24\.0 GB.*raise it"):
        VllmEngine(ModelConfig(path="m"), config, SamplingParams(), beside_cache=24e9)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
    ],
)
def test_a_gpu_that_fails_in_a_push_is_no_weight_that_does_not_fit(
    straw_vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    straw = engine()
    monkeypatch.setattr(StrawModel, "fails", error)
    with pytest.raises(type(error), match=str(error)):
        straw.load_weights(1, [("w", torch.zeros(1))])
    assert straw.version == -1
    monkeypatch.setattr(StrawModel, "fails", RuntimeError("size mismatch"))
    with pytest.raises(ValueError, match="does not fit the model that vLLM loaded"):
        straw.load_weights(1, [("w", torch.zeros(1))])


def test_weights_travel_in_what_vllm_holds(straw_vllm: SimpleNamespace) -> None:
    assert engine().weight_dtype == "bfloat16"
