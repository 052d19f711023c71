"""A rollout worker with a real vLLM engine, a Ray actor, against the backbone it must agree with."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.rollout import RolloutWorker
from actors.weight_buckets import fill_buckets
from actors.weight_group import WeightGroup, serve_store
from actors.weight_sync import WeightUpdate
from configs.schema import ModelConfig, RolloutConfig
from models.backbone import Backbone
from models.generation import Rollout, SamplingParams
from models.tiny import TinyConfig, create_tiny
from objectives.rollout_correction import Mismatch

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (make setup)"),
]

SAMPLED = SamplingParams(n=8, temperature=0.8, top_p=0.95, max_tokens=24, stop_token_ids=(0, 1))
GREEDY = SamplingParams(n=1, temperature=0.0, max_tokens=24)
CAPACITY = 512
SHAPE = TinyConfig(vocab_size=300, hidden_size=64, intermediate_size=128, num_heads=2, num_key_value_heads=1)


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(2, 250, length).tolist()


LONG, SHORT = tokens(300, 0), tokens(20, 1)
"""More than two blocks of 128 tokens, the unit in which the CPU build caches prefixes, and less than one."""


class Remote:
    """The worker's methods without Ray's plumbing, and its engine's with sampling parameters of the test's choice."""

    def __init__(self, handle: Any):
        self.handle = handle

    def generate(self, prompts: list[list[int]], seeds: list[int], params: SamplingParams) -> list[list[Rollout]]:
        import ray

        return ray.get(self.handle.__ray_call__.remote(lambda worker: worker.engine.generate(prompts, seeds, params)))

    def push(self, weights: dict[str, torch.Tensor], version: int = 1) -> None:
        import ray

        buckets = fill_buckets(weights.items(), 0, "float32")  # 0: each parameter in a bucket of its own
        update = WeightUpdate(version, tuple(ray.put(bucket.as_array()) for bucket in buckets))
        ray.get(self.handle.load_weights.remote(update))

    def version(self) -> int:
        import ray

        return ray.get(self.handle.ready.remote())


def backbone(folder: Path, seed: int) -> Backbone:
    """A tiny backbone with weights large enough that its predictions depend on the whole input."""
    loaded = Backbone.load(create_tiny(["Draw a chart.", "Fill a form."], folder, SHAPE)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.15, generator=generator)
    loaded.model.save_pretrained(folder)
    return loaded


def weights_of(source: Backbone) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in source.state().items()}


def greedy(source: Backbone, prompt: list[int], steps: int = GREEDY.max_tokens) -> list[int]:
    """The most likely continuation, from whole forward passes without a cache."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(steps):
            ids.append(int(source.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def assert_log_probs(source: Backbone, prompt: list[int], group: list[Rollout], tolerance: float = 1e-3) -> None:
    """Each rollout's log-probabilities are the backbone's at temperature 1 over the whole vocabulary."""
    with torch.inference_mode():
        expected, _, _ = source.response_log_probs([prompt] * len(group), [r.tokens for r in group], temperature=1.0)
    for row, rollout in enumerate(group):
        assert rollout.log_probs == pytest.approx(expected[row, : len(rollout.tokens)].tolist(), abs=tolerance)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return backbone(tmp_path_factory.mktemp("vllm") / "first", seed=0)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    return backbone(tmp_path_factory.mktemp("vllm") / "second", seed=1)


def start(source: Backbone, params: SamplingParams) -> Any:
    import ray

    return (
        ray.remote(RolloutWorker)
        .options(num_cpus=1)
        .remote(
            ModelConfig(path=source.source, dtype="float32"),
            RolloutConfig(name="vllm", max_model_len=CAPACITY, kv_cache_gb=0.1),
            params,
            threads=1,
            device="cpu",
        )
    )


@pytest.fixture(scope="module")
def started(first: Backbone, ray_cluster: None) -> Iterator[Remote]:
    """The one engine of this module, started on the first backbone's folder."""
    import ray

    handle = start(first, SAMPLED)
    yield Remote(handle)
    ray.kill(handle)


@pytest.fixture
def engine(started: Remote, second: Backbone) -> Remote:
    """The engine with the second backbone's weights, which no file it has read holds."""
    started.push(weights_of(second))
    return started


@pytest.mark.parametrize("prompt", [LONG, SHORT], ids=["cached-prefix", "short"])
def test_after_a_push_tokens_and_log_probs_are_the_pushed_weights(
    started: Remote, first: Backbone, second: Backbone, prompt: list[int]
) -> None:
    started.push(weights_of(first))
    before = [started.generate([prompt], [0], GREEDY)[0][0] for _ in range(2)]  # the second from the prefix cache
    assert [r.tokens for r in before] == [greedy(first, prompt)] * 2
    assert greedy(second, prompt) != greedy(first, prompt)

    started.push(weights_of(second))
    after = started.generate([prompt], [0], GREEDY)[0]

    assert after[0].tokens == greedy(second, prompt)
    assert_log_probs(second, prompt, after, tolerance=1e-4)


def test_a_broadcast_gives_the_same_weights(started: Remote, first: Backbone, second: Backbone) -> None:
    import ray

    started.push(weights_of(first))
    assert started.generate([LONG], [0], GREEDY)[0][0].tokens == greedy(first, LONG)
    store = serve_store(60.0)
    joined = started.handle.join_weight_group.remote("localhost", store.port, 1, 2, "gloo", 60.0)
    sender = WeightGroup(store, 0, 2, "gloo", 60.0)
    ray.get(joined)
    received = started.handle.receive_broadcast.remote()
    sender.send(8, fill_buckets(weights_of(second).items(), 0, "float32"))
    ray.get(received)

    assert started.version() == 8
    group = started.generate([LONG], [0], GREEDY)[0]
    assert group[0].tokens == greedy(second, LONG)
    assert_log_probs(second, LONG, group, tolerance=1e-4)


def test_an_engine_that_began_with_old_weights_refuses_until_it_has_the_newest(
    started: Remote, first: Backbone, second: Backbone
) -> None:
    """What a worker that has been started again is: it holds the weights of the model's folder."""
    import ray

    started.push(weights_of(first), version=0)
    with pytest.raises(RuntimeError, match="holds weights of version 0, the policy is at 5"):
        ray.get(started.handle.generate.remote([SHORT], [0], 5))
    started.push(weights_of(second), version=5)
    batch: Any = ray.get(started.handle.generate.remote([SHORT], [0], 5))
    assert batch.version == 5
    assert_log_probs(second, SHORT, batch.groups[0])


def test_the_mismatch_is_small_after_a_push_and_large_without_one(
    engine: Remote, first: Backbone, second: Backbone
) -> None:
    group = engine.generate([LONG], [9], SAMPLED)[0]
    sampled = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.log_probs) for r in group], batch_first=True)
    mismatch = {}
    for name, policy in (("pushed", second), ("stale", first)):
        with torch.no_grad():
            _, _, mask, compared = policy.response_log_probs_compared(
                [LONG] * len(group), [r.tokens for r in group], SAMPLED.temperature, 1.0
            )
        mismatch[name] = Mismatch()
        mismatch[name].add(compared, sampled, mask)
    assert mismatch["pushed"].curves()["rollout_corr/log_prob_diff_max"] < 1e-3
    assert mismatch["stale"].curves()["rollout_corr/log_prob_diff_mean"] > 0.1


def test_log_probs_at_the_sampling_temperature_are_the_policys_at_it(first: Backbone, ray_cluster: None) -> None:
    """What importance sampling needs; in an engine of its own: vLLM settles at its start which log-probabilities it gives."""
    import ray

    params = dataclasses.replace(SAMPLED, top_p=1.0, log_prob_temperature=SAMPLED.temperature)
    handle = start(first, params)
    batch: Any = ray.get(handle.generate.remote([LONG, SHORT], [4, 5], 0))
    with pytest.raises(ValueError, match=r"at temperature 1\.0; the engine was started to give them at 0\.8"):
        Remote(handle).generate([SHORT], [0], SAMPLED)
    ray.kill(handle)
    for prompt, group in zip([LONG, SHORT], batch.groups, strict=True):
        with torch.no_grad():
            expected, _, _ = first.response_log_probs([prompt] * len(group), [r.tokens for r in group], 0.8)
        for row, rollout in enumerate(group):
            assert rollout.log_probs == pytest.approx(expected[row, : len(rollout.tokens)].tolist(), abs=1e-3)


def test_every_parameter_is_replaced(engine: Remote, second: Backbone) -> None:
    """Norms and embeddings too, which take other paths than the fused linear layers."""
    generator = torch.Generator().manual_seed(0)
    changed = {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in weights_of(second).items()
    }
    expected = Backbone.load(second.source)
    expected.load_state(changed)

    engine.push(changed)

    assert_log_probs(expected, LONG, engine.generate([LONG], [3], SAMPLED)[0], tolerance=1e-4)


def test_samples_of_a_group_differ(engine: Remote) -> None:
    group = engine.generate([LONG], [7], SAMPLED)[0]
    assert len({tuple(r.tokens) for r in group}) == 8


def test_a_group_depends_on_its_seed_and_not_on_its_batch(engine: Remote) -> None:
    alone = engine.generate([SHORT], [7], SAMPLED)[0]
    among = engine.generate([LONG, SHORT, tokens(90, 2)], [1, 7, 2], SAMPLED)[1]
    assert [r.tokens for r in among] == [r.tokens for r in alone]


def test_neighbouring_seeds_share_no_sample(engine: Remote) -> None:
    one, next_one = engine.generate([SHORT, SHORT], [7, 8], SAMPLED)
    assert not {tuple(r.tokens) for r in one} & {tuple(r.tokens) for r in next_one}


def test_log_probs_are_untempered_and_over_the_whole_vocabulary(engine: Remote, second: Backbone) -> None:
    for prompt, group in zip([LONG, SHORT], engine.generate([LONG, SHORT], [4, 5], SAMPLED), strict=True):
        assert_log_probs(second, prompt, group)


def test_the_end_token_is_returned_once_at_the_end(engine: Remote, second: Backbone) -> None:
    continuation = greedy(second, SHORT)
    stop = continuation[3]
    group = engine.generate([SHORT], [0], dataclasses.replace(GREEDY, stop_token_ids=(stop,)))[0]
    assert group[0].tokens == continuation[: continuation.index(stop) + 1]
    assert len(group[0].log_probs) == len(group[0].tokens)


def test_only_the_given_stop_ids_end_a_rationale(engine: Remote, second: Backbone) -> None:
    hot = SamplingParams(n=64, temperature=2.0, top_p=1.0, max_tokens=24, stop_token_ids=())
    group = engine.generate([SHORT], [0], hot)[0]
    assert {len(r.tokens) for r in group} == {24}
    assert any(second.tokenizer.eos_id in r.tokens[:-1] for r in group)


def test_a_rationale_stops_at_max_tokens(engine: Remote) -> None:
    for limit in (1, 5):
        params = dataclasses.replace(SAMPLED, max_tokens=limit, stop_token_ids=())
        assert {len(r.tokens) for r in engine.generate([LONG], [0], params)[0]} == {limit}


def test_greedy_groups_have_n_equal_samples(engine: Remote, second: Backbone) -> None:
    group = engine.generate([SHORT], [0], dataclasses.replace(GREEDY, n=3))[0]
    assert [r.tokens for r in group] == [greedy(second, SHORT)] * 3


def test_groups_come_back_in_the_order_of_their_prompts(engine: Remote, second: Backbone) -> None:
    prompts = [tokens(length, length) for length in (200, 9, 130, 31, 64)]
    limits = dataclasses.replace(GREEDY, max_tokens=4)
    groups = engine.generate(prompts, [0] * 5, limits)
    assert [g[0].tokens for g in groups] == [greedy(second, p, 4) for p in prompts]


def test_more_prompt_tokens_than_one_scheduling_step_takes(engine: Remote, second: Backbone) -> None:
    """Split prefills are what a seeded request on a CPU does not survive."""
    prompts = [tokens(300, 100 + i) for i in range(40)]
    groups = engine.generate(prompts, list(range(40)), dataclasses.replace(SAMPLED, n=2, max_tokens=2))
    assert [len(g) for g in groups] == [2] * 40
    assert_log_probs(second, prompts[-1], groups[-1])


def test_a_prompt_that_leaves_no_room_for_the_response_is_refused(engine: Remote) -> None:
    with pytest.raises(ValueError, match=r"prompt 1 has 489 tokens.*rollout\.max_model_len, 512"):
        engine.generate([SHORT, tokens(489, 0)], [0, 0], SAMPLED)


def test_a_temperature_that_vllm_would_raise_is_refused(engine: Remote) -> None:
    with pytest.raises(ValueError, match=r"rollout\.temperature is 0\.001"):
        engine.generate([SHORT], [0], dataclasses.replace(SAMPLED, temperature=0.001))


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        ("unknown", "weight model.layers.9.mlp.down_proj.weight"),
        ("missing", "['model.layers.0.mlp.down_proj.weight']"),
        ("shape", "weight model.layers.0.mlp.down_proj.weight"),
    ],
)
def test_after_a_failed_push_the_engine_holds_no_version(
    engine: Remote, second: Backbone, fault: str, blamed: str
) -> None:
    good = weights_of(second)
    bad = dict(good)
    name = "model.layers.0.mlp.down_proj.weight"
    if fault == "unknown":
        bad["model.layers.9.mlp.down_proj.weight"] = bad[name]
    elif fault == "missing":
        del bad[name]
    else:
        bad[name] = bad[name][:1]
    with pytest.raises(ValueError, match=r"pushed weight") as raised:
        engine.push(bad, version=5)
    assert blamed in str(raised.value)
    assert engine.version() == -1

    engine.push(good, version=6)

    assert engine.version() == 6
    assert engine.generate([SHORT], [0], GREEDY)[0][0].tokens == greedy(second, SHORT)
