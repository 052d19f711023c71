"""The planned sizes against a real tiny model, hand-made sums, and the constants of the code that they stand for."""

from __future__ import annotations

import weakref
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from cluster import memory
from cluster.memory import (
    frozen,
    kv_tokens,
    logits,
    policy_worker,
    reranker_worker,
    rollout_worker,
    saved_activations,
    stage1_worker,
    trained,
)
from cluster.shapes import KNOWN, ModelShape
from configs import GrpoConfig, RerankerConfig, Stage1Config, load_config
from models import token_log_probs
from models.backbone import Backbone

SHAPE = ModelShape(vocab=500, hidden=64, intermediate=192, layers=4, heads=4, kv_heads=2, head_dim=16)
LARGE = KNOWN["Qwen/Qwen3-Embedding-4B"]
P = LARGE.parameters
REQUIRED = ["run.name=x", "model.path=x", "data.train_file=x"]


def build() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=SHAPE.vocab,
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.intermediate,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


# -- against a real model -----------------------------------------------------------------------------------------------


def test_weights_gradients_and_adamw_are_the_real_bytes():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    planned = trained(SHAPE, "adamw", "float32", "single", 0, 1)
    assert planned.weights == sum(p.nbytes for p in model.parameters())
    assert planned.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert planned.optimizer == sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_peak_of_an_update_is_within_a_twentieth_of_a_measured_one(dtype: str):
    """Two micro-batches and an update, measured as the live tensors of a real run on the CPU."""
    rows, length, written = 8, 96, 12
    with LiveBytes() as live:
        model = Backbone(build(), SimpleNamespace(pad_id=0), compute_dtype=getattr(torch, dtype))  # type: ignore[arg-type]
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):  # the first update creates the optimizer's state
            live.peak = live.now
            for _ in range(2):
                prompts = [[1] * (length - written)] * rows
                log_probs, _, _ = model.response_log_probs(prompts, [[2] * written] * rows)
                log_probs.sum().backward()
                del log_probs
            optimizer.step()
            optimizer.zero_grad()
    base = trained(SHAPE, "adamw", dtype, "single", 0, 1)
    activations = saved_activations(SHAPE, rows * length, dtype) + logits(SHAPE, rows * written, dtype, backward=True)
    planned = replace(base, activations=activations, process=0)
    assert planned.peak == pytest.approx(live.peak, rel=0.05)


# -- sharding, by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "stage", "weights", "gradients", "optimizer"),
    [
        ("single", 2, 4.0, 4.0, 8.0),
        ("deepspeed", 0, 4.0, 4.0, 8.0),
        ("deepspeed", 1, 4.5, 4.0, 1.0),
        ("deepspeed", 2, 4.5, 0.5, 1.0),
        ("deepspeed", 3, 1.0, 0.5, 1.0),
        ("fsdp2", 2, 0.5, 0.5, 1.0),
    ],
)
def test_eight_workers_shard_what_their_strategy_shards(
    strategy: str, stage: int, weights: float, gradients: float, optimizer: float
):
    """Bytes a parameter; ZeRO's float32 masters count as weights."""
    planned = trained(LARGE, "adamw", "bfloat16", strategy, stage, 8)
    assert (planned.weights / P, planned.gradients / P, planned.optimizer / P) == (weights, gradients, optimizer)


@pytest.mark.parametrize(
    ("strategy", "stage", "weights"),
    [("single", 2, 4.0), ("deepspeed", 2, 4.0), ("deepspeed", 3, 1.0), ("fsdp2", 2, 1.0)],
)
def test_a_frozen_model_holds_weights_alone(strategy: str, stage: int, weights: float):
    planned = frozen(LARGE, "bfloat16", strategy, stage, 4)
    assert (planned.weights / P, planned.gradients, planned.optimizer) == (weights, 0, 0)


def test_the_peak_is_that_of_computing_or_of_updating_whichever_is_larger():
    few = memory.Memory(weights=10, gradients=10, optimizer=20, activations=1, update=10, process=0)
    many = replace(few, activations=100)
    assert (few.peak, many.peak) == (50, 140)


# -- the roles ----------------------------------------------------------------------------------------------------------


def test_without_a_gradient_cache_a_worker_keeps_its_whole_share_of_the_batch():
    cached = load_config(Stage1Config, "stage1_0.6b")
    uncached = load_config(Stage1Config, "stage1_0.6b", ["loss.gradient_cache=false", "loss.lambda_lm=0"])
    shape = KNOWN["Qwen/Qwen3-Embedding-0.6B"]
    # 256 / 8 records, each with two trained views of 2,048 tokens and eleven documents of 2,048
    tokens = 32 * 13 * 2048
    assert stage1_worker(uncached, shape).activations == saved_activations(shape, tokens, "bfloat16")
    assert stage1_worker(cached, shape).activations < stage1_worker(uncached, shape).activations / 10


def test_a_reranker_without_a_cache_keeps_its_window_of_pairs():
    shape, keys = KNOWN["Qwen/Qwen3-Embedding-0.6B"], ["loss.lambda_lm=0"]
    cached = load_config(RerankerConfig, "reranker_0.6b", keys)
    uncached = load_config(
        RerankerConfig, "reranker_0.6b", [*keys, "loss.gradient_cache=false", "loss.window_groups=2"]
    )
    # two groups of twenty pairs of 4,096 tokens; with a cache the budget of 16,384
    assert reranker_worker(uncached, shape).activations == saved_activations(shape, 2 * 20 * 4096, "bfloat16")
    assert reranker_worker(cached, shape).activations == saved_activations(shape, 16384, "bfloat16")


def test_a_sequence_longer_than_the_budget_is_a_micro_batch_of_its_own():
    config = load_config(GrpoConfig, "grpo_4b", ["actor.ppo_max_token_len=100"])
    head = logits(LARGE, 1216, "bfloat16", backward=True)
    assert policy_worker(config, LARGE).activations == saved_activations(LARGE, 1024 + 192, "bfloat16") + head


def test_vllm_takes_its_share_of_the_gpu_and_fills_it_with_keys_and_values():
    config = load_config(GrpoConfig, "grpo_4b", ["rollout.gpu_memory_utilization=0.5", "rollout.weight_bucket_mb=1"])
    planned = rollout_worker(config, LARGE, 80e9)
    assert planned.peak == pytest.approx(40e9 + 2**20)
    assert planned.weights == 2 * P
    # 36 layers, 8 heads of 128 numbers, keys and values, two bytes each
    assert kv_tokens(planned, config, LARGE) == int(planned.kv_cache // (36 * 8 * 128 * 2 * 2))


def test_the_transformers_engine_holds_float32_weights_and_a_batch_of_keys_and_values():
    config = load_config(
        GrpoConfig,
        "grpo_4b",
        ["rollout.name=hf", "rollout.max_batch_tokens=16384", "rollout.n=8", "data.max_prompt_length=1024"],
    )
    planned = rollout_worker(config, LARGE, 80e9)
    assert planned.weights == 4 * P
    # 16,384 prompt tokens are two groups of eight prompts of 1,024, each growing by 192
    assert planned.kv_cache == 16 * (1024 + 192) * LARGE.kv_bytes("bfloat16")


def test_the_constants_are_those_of_the_code_they_stand_for():
    from objectives import engine_deepspeed

    assert memory.LOGIT_CHUNK == token_log_probs.LOGIT_CHUNK
    assert 4 * engine_deepspeed.REDUCE_BUCKET == memory.REDUCE_BUCKET
