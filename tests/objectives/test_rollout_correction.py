"""The mismatch between sampling engine and policy: measured like with like, and corrected by truncated importance sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from configs import ConfigError, GrpoConfig, load_config
from configs.schema import RolloutCorrectionConfig
from models.backbone import Backbone
from models.generation import Rollout, SamplingParams, sample_rollouts
from objectives.rollout_correction import Mismatch, engine_temperature, importance_weights

MEAN, MAX = "rollout_corr/log_prob_diff_mean", "rollout_corr/log_prob_diff_max"


def logs(*rows: tuple[float, ...]) -> torch.Tensor:
    """Log-probabilities of the given probabilities."""
    return torch.tensor(rows).log()


OLD = logs((0.5, 0.4, 0.9), (0.6, 0.2, 1.0))
SAMPLED = logs((0.25, 0.4, 0.3), (0.3, 0.4, 1.0))
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
"""Ratios: 2, 1, 3 and 2, 0.5; the last token of the second rollout is padding."""


# -- importance weights ------------------------------------------------------------------------------------------------------


def correction(level: str, threshold: float) -> RolloutCorrectionConfig:
    return RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=threshold)


@pytest.mark.parametrize(
    ("level", "threshold", "expected"),
    [
        ("token", 10.0, [[2, 1, 3], [2, 0.5, 0]]),
        ("token", 2.5, [[2, 1, 2.5], [2, 0.5, 0]]),
        ("token", 0.8, [[0.8, 0.8, 0.8], [0.8, 0.5, 0]]),
        ("sequence", 10.0, [[6, 6, 6], [1, 1, 0]]),
        ("sequence", 4.0, [[4, 4, 4], [1, 1, 0]]),
    ],
)
def test_weights_are_the_cut_ratios_by_token_or_by_rollout(
    level: str, threshold: float, expected: list[list[float]]
) -> None:
    weights = importance_weights(OLD, SAMPLED, MASK, correction(level, threshold))
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_weights_are_verls(level: str) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    generator = torch.Generator().manual_seed(0)
    old, sampled = (-torch.rand(6, 9, generator=generator) * 4 for _ in range(2))
    mask = (torch.arange(9) < torch.tensor([9, 1, 4, 7, 2, 5])[:, None]).float()
    old[0, 0] = -50.0  # beyond the bound of the exponent
    expected, _ = compute_rollout_correction_weights(old - sampled, mask, level, 2.0)
    weights = importance_weights(old, sampled, mask, correction(level, 2.0))
    assert weights is not None
    torch.testing.assert_close(weights, expected)


def test_weights_pass_no_gradient() -> None:
    old = OLD.clone().requires_grad_()
    weights = importance_weights(old, SAMPLED, MASK, correction("token", 10.0))
    assert weights is not None
    assert not weights.requires_grad


def test_there_are_no_weights_where_it_is_off() -> None:
    assert importance_weights(OLD, SAMPLED, MASK, RolloutCorrectionConfig()) is None


def test_weighted_samples_of_another_distribution_have_the_policys_mean() -> None:
    """Importance sampling's purpose: E_rollout[w f] = E_policy[f], exactly, summed over a distribution of three tokens."""
    policy, engine = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.5, 0.3, 0.2])
    values = torch.tensor([1.0, -2.0, 4.0])
    weights = importance_weights(
        policy.log()[:, None], engine.log()[:, None], torch.ones(3, 1), correction("token", 9.0)
    )
    assert weights is not None
    assert float((engine * weights[:, 0] * values).sum()) == pytest.approx(float((policy * values).sum()))


# -- the temperature at which they are compared ------------------------------------------------------------------------------

FILES = ["run.name=a", "model.path=m", "data.train_file=t.jsonl", "reward.terms.margin.weight=1.0"]


def test_engine_and_policy_are_compared_at_temperature_one() -> None:
    assert engine_temperature(load_config(GrpoConfig, None, [*FILES, "rollout.temperature=0.7"])) == 1.0


def test_importance_sampling_compares_at_the_sampling_temperature() -> None:
    keys = ["rollout_correction.rollout_is=token", "rollout.top_p=1.0", "rollout.temperature=0.7"]
    assert engine_temperature(load_config(GrpoConfig, None, [*FILES, *keys])) == 0.7


def test_importance_sampling_within_a_nucleus_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"rollout_correction\.rollout_is is 'token'.*rollout\.top_p is 0\.95.*top_p 1"
    ):
        load_config(GrpoConfig, None, [*FILES, "rollout_correction.rollout_is=token"])


# -- curves ------------------------------------------------------------------------------------------------------------------


def test_curves_are_mean_and_maximum_over_response_tokens() -> None:
    mismatch = Mismatch()
    mismatch.add(OLD, SAMPLED, MASK)
    log2, log3 = math.log(2), math.log(3)
    assert mismatch.curves() == pytest.approx({MEAN: (log2 + 0 + log3 + log2 + log2) / 5, MAX: log3}, rel=1e-6)


def test_padding_does_not_count() -> None:
    padded = SAMPLED.clone()
    padded[1, 2] = -100.0
    mismatch = Mismatch()
    mismatch.add(OLD, padded, MASK)
    assert mismatch.curves()[MAX] == pytest.approx(math.log(3), rel=1e-6)


def test_micro_batches_and_workers_add_up_to_the_batch() -> None:
    weights = importance_weights(OLD, SAMPLED, MASK, correction("token", 2.5))
    assert weights is not None
    whole, first, second, empty = Mismatch(), Mismatch(), Mismatch(), Mismatch()
    whole.add(OLD, SAMPLED, MASK, weights, 2.5)
    first.add(OLD[:1], SAMPLED[:1], MASK[:1], weights[:1], 2.5)
    second.add(OLD[1:], SAMPLED[1:], MASK[1:], weights[1:], 2.5)
    empty.add(OLD[:1], SAMPLED[:1], torch.zeros(1, 3), torch.zeros(1, 3), 2.5)  # a dummy pass
    assert Mismatch.merged([first, empty, second]).curves() == pytest.approx(whole.curves())


def test_importance_weights_have_curves_of_their_own() -> None:
    weights = importance_weights(OLD, SAMPLED, MASK, correction("token", 2.0))
    assert weights is not None
    mismatch = Mismatch()
    mismatch.add(OLD, SAMPLED, MASK, weights, 2.0)
    curves = mismatch.curves()
    assert curves["rollout_corr/rollout_is_mean"] == pytest.approx((2 + 1 + 2 + 2 + 0.5) / 5)
    assert curves["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(3 / 5)


# -- with a model ------------------------------------------------------------------------------------------------------------

PROMPTS = [[5, 6, 7, 8], [40, 41], [9] * 20]


@pytest.fixture
def load(tiny_folder: Path) -> Callable[[], Backbone]:
    return lambda: Backbone.load(tiny_folder).eval()


def compared(policy: Backbone, groups: list[list[Rollout]], temperature: float, other: float) -> Mismatch:
    """The mismatch as the policy measures it, in one forward pass at its own temperature."""
    mismatch = Mismatch()
    for prompt, group in zip(PROMPTS, groups, strict=True):
        sampled = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.log_probs) for r in group], batch_first=True)
        with torch.no_grad():
            _, _, mask, log_probs = policy.response_log_probs_compared(
                [prompt] * len(group), [r.tokens for r in group], temperature, other
            )
        mismatch.add(log_probs, sampled, mask)
    return mismatch


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=4, temperature=0.8, top_p=0.9, max_tokens=8, stop_token_ids=(0, 1)),
        SamplingParams(n=4, temperature=0.8, top_p=1.0, max_tokens=8, stop_token_ids=(0, 1), log_prob_temperature=0.8),
    ],
    ids=["raw", "at the sampling temperature"],
)
def test_an_engine_with_the_policys_weights_does_not_differ(load, params: SamplingParams) -> None:
    groups = sample_rollouts(load(), PROMPTS, params, [1, 2, 3])
    curves = compared(load(), groups, params.temperature, params.log_prob_temperature).curves()
    assert curves[MAX] < 1e-4


def test_a_stale_engine_shows(load) -> None:
    """Its weights were not pushed: the policy has gone on by what one update of 1e-2 moves."""
    params = SamplingParams(n=4, temperature=0.8, top_p=0.9, max_tokens=8, stop_token_ids=(0, 1))
    groups = sample_rollouts(load(), PROMPTS, params, [1, 2, 3])
    policy = load()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).sign() * 1e-2)
    curves = compared(policy, groups, params.temperature, 1.0).curves()
    assert curves[MEAN] > 1e-2
    assert curves[MAX] > curves[MEAN]


def test_a_comparison_of_unlike_temperatures_would_show_a_mismatch_that_is_not_there(load) -> None:
    params = SamplingParams(n=4, temperature=0.8, top_p=0.9, max_tokens=8, stop_token_ids=(0, 1))
    groups = sample_rollouts(load(), PROMPTS, params, [1, 2, 3])
    assert compared(load(), groups, 0.8, 0.8).curves()[MEAN] > 1e-2


def test_both_temperatures_come_from_one_forward_pass(load, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = load()
    prompts, responses = [[5, 6, 7], [8]], [[20, 21, 1], [30, 31, 32, 1]]
    expected = backbone.response_log_probs(prompts, responses, 0.8)
    at_one = backbone.response_log_probs(prompts, responses, 1.0)[0].detach()
    passes: list[int] = []
    token_states = backbone.token_states
    monkeypatch.setattr(backbone, "token_states", lambda *args: (passes.append(1), token_states(*args))[1])

    log_probs, entropy, mask, other = backbone.response_log_probs_compared(prompts, responses, 0.8, 1.0)

    assert len(passes) == 1
    for got, want in zip((log_probs, entropy, mask, other), (*expected, at_one), strict=True):
        torch.testing.assert_close(got, want)
    assert log_probs.requires_grad
    assert not other.requires_grad
