"""Rollout workers sample from exactly the weights that were pushed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from actors.rollout import RolloutWorker
from configs.schema import ModelConfig, RolloutConfig
from models.generation import SamplingParams

PROMPTS = [[5, 6, 7, 8], [40, 41]]
GREEDY = SamplingParams(n=1, temperature=0.0, max_tokens=10)


@pytest.fixture
def make_worker(model_config: ModelConfig) -> Callable[..., RolloutWorker]:
    def make(params: SamplingParams = GREEDY, model: ModelConfig = model_config) -> RolloutWorker:
        return RolloutWorker(model, RolloutConfig(name="hf"), params, threads=0, device="cpu")

    return make


def tokens(worker: RolloutWorker, version: int) -> list[list[list[int]]]:
    return [[rollout.tokens for rollout in group] for group in worker.generate(PROMPTS, [1, 2], version).groups]


def read_only(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As arrays come out of Ray's object store."""
    for array in weights.values():
        array.flags.writeable = False
    return weights


@pytest.mark.filterwarnings("error:.*not writable")
def test_after_a_push_it_generates_as_an_engine_freshly_loaded_from_those_weights(
    make_worker, make_policy, make_batch, tmp_path
):
    policy, worker = make_policy(lr=0.05), make_worker()
    before = tokens(worker, 0)
    policy.update(make_batch(policy))
    version, weights = policy.weights()
    worker.load_weights(version, read_only(weights))
    after = tokens(worker, 1)
    policy.export(str(tmp_path / "export"), str(tmp_path / "causal_lm"), 256)
    fresh = make_worker(model=ModelConfig(path=str(tmp_path / "causal_lm"), dtype="float32"))
    assert after != before
    assert after == tokens(fresh, 0)


def test_pushing_old_weights_back_gives_the_old_rollouts(make_worker, make_policy, make_batch):
    policy, worker = make_policy(lr=0.05), make_worker()
    before = tokens(worker, 0)
    _, first = policy.weights()
    policy.update(make_batch(policy))
    worker.load_weights(*policy.weights())
    tokens(worker, 1)
    worker.load_weights(2, first)
    assert tokens(worker, 2) == before


@pytest.mark.parametrize("wanted", [0, 2])
def test_weights_of_another_version_are_refused(make_worker, make_policy, make_batch, wanted: int):
    policy, worker = make_policy(), make_worker()
    policy.update(make_batch(policy))
    worker.load_weights(*policy.weights())
    with pytest.raises(RuntimeError, match=f"holds weights of version 1, the policy is at {wanted}"):
        worker.generate(PROMPTS, [1, 2], wanted)


def test_its_version_is_that_of_the_last_push(make_worker, make_policy):
    worker = make_worker()
    assert worker.ready() == 0
    worker.load_weights(7, make_policy().weights()[1])
    assert worker.ready() == 7
    assert worker.generate(PROMPTS, [1, 2], 7).version == 7


def test_a_push_is_a_copy(make_worker, make_policy):
    worker = make_worker()
    _, weights = make_policy().weights()
    worker.load_weights(1, weights)
    before = tokens(worker, 1)
    for array in weights.values():
        array[...] = 0.0
    assert tokens(worker, 1) == before


def test_prompts_spread_over_workers_give_the_rollouts_of_one_worker(make_worker):
    params = SamplingParams(n=3, temperature=0.8, top_p=0.95, max_tokens=8, stop_token_ids=(0, 1))
    whole = make_worker(params).generate(PROMPTS, [11, 12], 0).groups
    parts = [make_worker(params).generate([p], [s], 0).groups[0] for p, s in zip(PROMPTS, [11, 12], strict=True)]
    assert [[r.tokens for r in group] for group in whole] == [[r.tokens for r in group] for group in parts]


def test_the_engines_log_probs_are_the_policys_at_temperature_one(make_worker, make_policy):
    params = SamplingParams(n=2, temperature=0.8, top_p=0.95, max_tokens=6, stop_token_ids=(0, 1))
    policy = make_policy()
    for prompt, group in zip(PROMPTS, make_worker(params).generate(PROMPTS, [1, 2], 0).groups, strict=True):
        with torch.no_grad():
            expected, _, mask = policy.backbone.response_log_probs([prompt] * 2, [r.tokens for r in group], 1.0)
        for rollout, row, kept in zip(group, expected, mask.bool(), strict=True):
            assert rollout.log_probs == pytest.approx(row[kept].tolist(), abs=1e-4)
