"""What is said and settled before a vLLM engine starts."""

from __future__ import annotations

import sys

import pytest

from actors.launch import engine_config
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
