"""Rollout workers sample from exactly the weights that were pushed, and the same samples for the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.rollout import RolloutWorker, sampling_params
from configs import GrpoConfig, load_config
from configs.schema import ModelConfig, RolloutConfig
from models.backbone import Backbone
from models.generation import Rollout, SamplingParams

PROMPTS = [[5, 6, 7, 8], [40, 41], [9] * 30, [77, 3, 12], [60], [21, 22, 23, 24, 25, 26]]
SEEDS = [11, 12, 13, 14, 15, 16]
GREEDY = SamplingParams(n=1, temperature=0.0, max_tokens=10)
SAMPLED = SamplingParams(n=3, temperature=0.8, top_p=0.95, max_tokens=8, stop_token_ids=(0, 1))


@dataclass
class Update:
    """What a worker takes from a weight update, without an object store in between."""

    version: int
    weights: dict[str, torch.Tensor]

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.weights.items()


@pytest.fixture
def make_worker(model_config: ModelConfig) -> Callable[..., RolloutWorker]:
    def make(params: SamplingParams = GREEDY, model: ModelConfig = model_config, **keys: Any) -> RolloutWorker:
        return RolloutWorker(model, RolloutConfig(name="hf", **keys), params, threads=0, device="cpu")

    return make


@pytest.fixture
def trained(model_config: ModelConfig) -> Backbone:
    """The tiny backbone after some change of all its weights."""
    backbone = Backbone.load(model_config.path).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return backbone


def update(version: int, backbone: Backbone, **changes: torch.Tensor) -> Any:
    return Update(version, {**{name: t.clone() for name, t in backbone.state().items()}, **changes})


def tokens(groups: list[list[Rollout]]) -> list[list[list[int]]]:
    return [[rollout.tokens for rollout in group] for group in groups]


def generate(worker: RolloutWorker, version: int) -> list[list[list[int]]]:
    return tokens(worker.generate(PROMPTS, SEEDS, version).groups)


# -- weights -----------------------------------------------------------------------------------------------------------------


def test_after_a_push_it_generates_as_an_engine_freshly_loaded_from_those_weights(
    make_worker, trained: Backbone, tmp_path: Path
):
    worker = make_worker()
    before = generate(worker, 0)
    worker.load_weights(update(1, trained))
    after = generate(worker, 1)
    trained.model.save_pretrained(tmp_path)
    trained.tokenizer.hf.save_pretrained(tmp_path)
    fresh = make_worker(model=ModelConfig(path=str(tmp_path), dtype="float32"))
    assert after != before
    assert after == generate(fresh, 0)


def test_pushing_old_weights_back_gives_the_old_rollouts(make_worker, trained: Backbone, model_config: ModelConfig):
    worker = make_worker()
    before = generate(worker, 0)
    worker.load_weights(update(1, trained))
    assert generate(worker, 1) != before
    worker.load_weights(update(2, Backbone.load(model_config.path)))
    assert generate(worker, 2) == before


@pytest.mark.parametrize("wanted", [0, 2])
def test_weights_of_another_version_are_refused(make_worker, trained: Backbone, wanted: int):
    worker = make_worker()
    worker.load_weights(update(1, trained))
    with pytest.raises(RuntimeError, match=f"holds weights of version 1, the policy is at {wanted}"):
        worker.generate(PROMPTS, SEEDS, wanted)


def test_its_version_is_that_of_the_last_push(make_worker, trained: Backbone):
    worker = make_worker()
    assert worker.ready() == 0
    worker.load_weights(update(7, trained))
    assert worker.ready() == 7
    assert worker.generate(PROMPTS, SEEDS, 7).version == 7


def test_a_push_is_a_copy(make_worker, trained: Backbone):
    worker = make_worker()
    pushed = update(1, trained)
    worker.load_weights(pushed)
    before = generate(worker, 1)
    for tensor in pushed.weights.values():
        tensor.zero_()
    assert generate(worker, 1) == before


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({NORM: torch.ones(3)}, r"pushed weight model\.norm\.weight of shape \(3,\).*expected \(32,\)"),
        (
            {"model.other": torch.ones(3)},
            r"pushed weight model\.other of shape \(3,\).*expected no weight of that name",
        ),
    ],
)
def test_weights_of_another_model_leave_no_version(make_worker, trained: Backbone, change: dict, message: str):
    worker = make_worker()
    with pytest.raises(ValueError, match=message):
        worker.load_weights(update(1, trained, **change))
    assert worker.ready() == -1


def test_a_push_that_leaves_a_parameter_out_is_refused_by_its_name(make_worker, trained: Backbone):
    worker = make_worker()
    pushed = update(1, trained)
    del pushed.weights[NORM]
    with pytest.raises(ValueError, match=r"leave 1 parameters as they were: \['model\.norm\.weight'\]"):
        worker.load_weights(pushed)
    assert worker.ready() == -1


# -- sleep -------------------------------------------------------------------------------------------------------------------


def test_a_sleeping_engine_holds_no_weights_and_refuses_to_generate(make_worker):
    worker = make_worker(sleep=True)
    worker.sleep()
    assert sum(parameter.numel() for parameter in worker.engine.backbone.parameters()) == 0
    with pytest.raises(RuntimeError, match="holds weights of version -1, the policy is at 0"):
        worker.generate(PROMPTS, SEEDS, 0)


def test_a_woken_engine_has_the_newest_weights(make_worker, trained: Backbone):
    awake, sleeper = make_worker(), make_worker(sleep=True)
    awake.load_weights(update(1, trained))
    sleeper.sleep()
    sleeper.load_weights(update(1, trained))
    assert generate(sleeper, 1) == generate(awake, 1)


def test_a_restarted_engine_refuses_until_it_has_the_newest_weights(make_worker, trained: Backbone):
    first = make_worker()
    first.load_weights(update(1, trained))
    restarted = make_worker()
    with pytest.raises(RuntimeError, match="holds weights of version 0, the policy is at 1"):
        restarted.generate(PROMPTS, SEEDS, 1)
    restarted.load_weights(update(1, trained))
    assert generate(restarted, 1) == generate(first, 1)


# -- seeds -------------------------------------------------------------------------------------------------------------------


def test_the_same_seeds_give_the_same_samples(make_worker):
    worker = make_worker(SAMPLED)
    first = worker.generate(PROMPTS, SEEDS, 0).groups
    assert worker.generate(PROMPTS, SEEDS, 0).groups == first
    assert make_worker(SAMPLED).generate(PROMPTS, SEEDS, 0).groups == first


def test_other_seeds_give_other_samples(make_worker):
    worker = make_worker(SAMPLED)
    assert tokens(worker.generate(PROMPTS, SEEDS, 0).groups) != tokens(
        worker.generate(PROMPTS, [seed + 1 for seed in SEEDS], 0).groups
    )


@pytest.mark.parametrize(
    "parts", [((0, 1, 2), (3, 4, 5)), ((5, 0), (1, 4), (2, 3)), ((0,), (1,), (2,), (3,), (4,), (5,))]
)
def test_prompts_spread_over_workers_give_the_rollouts_of_one_worker(make_worker, parts: tuple[tuple[int, ...], ...]):
    whole = tokens(make_worker(SAMPLED).generate(PROMPTS, SEEDS, 0).groups)
    spread: dict[int, Any] = {}
    for part in parts:
        worker = make_worker(SAMPLED)
        groups = worker.generate([PROMPTS[i] for i in part], [SEEDS[i] for i in part], 0).groups
        spread |= dict(zip(part, tokens(groups), strict=True))
    assert [spread[i] for i in range(len(PROMPTS))] == whole


def test_a_chunk_sent_again_to_another_worker_gives_the_same_samples(make_worker, trained: Backbone):
    """The worker that takes over has done other work before, and has just been given the weights."""
    lost, other = make_worker(SAMPLED), make_worker(SAMPLED)
    for worker in (lost, other):
        worker.load_weights(update(1, trained))
    expected = tokens(lost.generate(PROMPTS[:3], SEEDS[:3], 1).groups)
    other.generate(PROMPTS[3:], SEEDS[3:], 1)
    assert tokens(other.generate(PROMPTS[:3], SEEDS[:3], 1).groups) == expected


# -- log-probabilities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "temperature"),
    [(SAMPLED, 1.0), (replace(SAMPLED, top_p=1.0, log_prob_temperature=0.8), 0.8)],
    ids=["raw", "at the sampling temperature"],
)
def test_log_probs_are_the_backbones_over_the_whole_vocabulary(
    make_worker, model_config: ModelConfig, params: SamplingParams, temperature: float
):
    backbone = Backbone.load(model_config.path).eval()
    for prompt, group in zip(PROMPTS, make_worker(params).generate(PROMPTS, SEEDS, 0).groups, strict=True):
        for rollout in group:
            with torch.no_grad():
                logits = backbone.model(torch.tensor([prompt + rollout.tokens])).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits / temperature, dim=-1)[range(len(rollout.tokens)), rollout.tokens]
            assert rollout.log_probs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"log_prob_temperature": 0.8}, {"log_prob_temperature": 0.5, "top_p": 1.0}],
    ids=["nucleus", "temperature"],
)
def test_log_probs_that_are_not_those_of_the_samples_are_refused(changes: dict[str, float]):
    with pytest.raises(ValueError, match=r"rollout\.temperature 0\.8 and rollout\.top_p .*expected temperature 1"):
        replace(SAMPLED, **changes)


@pytest.mark.parametrize(
    ("keys", "temperature"),
    [([], 1.0), (["rollout_correction.rollout_is=sequence", "rollout.top_p=1.0"], 0.6)],
    ids=["as a rule", "for importance sampling"],
)
def test_engines_are_asked_for_the_log_probs_that_the_policy_is_compared_with(
    model_config: ModelConfig, keys: list[str], temperature: float
):
    files = [
        "run.name=a",
        f"model.path={model_config.path}",
        "data.train_file=t.jsonl",
        "reward.terms.margin.weight=1.0",
    ]
    config = load_config(GrpoConfig, None, [*files, "rollout.temperature=0.6", *keys])
    assert sampling_params(config).log_prob_temperature == temperature
