"""The GRPO objective against its formulas in float64: advantages, clipping, reference KL, micro-batches."""

from __future__ import annotations

import math

import pytest
import torch

from configs.schema import ActorConfig
from objectives.policy_gradient import BatchInfo, group_relative_advantages, policy_objective

# -- eq. 14 -------------------------------------------------------------------------------------------------------------


def eq_14(rewards: list[float], query_ids: list[str]) -> list[float]:
    out = []
    for reward, query in zip(rewards, query_ids, strict=True):
        group = [r for r, q in zip(rewards, query_ids, strict=True) if q == query]
        mean = math.fsum(group) / len(group)
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / (len(group) - 1))
        out.append((reward - mean) / (std + 1e-6))
    return out


def test_advantages_are_normalized_within_the_group_of_a_query():
    # rewards 1, 2, 3: mean 2, unbiased standard deviation 1
    advantages = group_relative_advantages(torch.tensor([1.0, 2.0, 3.0]), ["a", "a", "a"])
    assert advantages.tolist() == pytest.approx([-1 / (1 + 1e-6), 0, 1 / (1 + 1e-6)], rel=1e-6)


def test_groups_go_by_query_id_whatever_their_order_and_size():
    ids = ["b", "a", "c", "b", "a", "b", "c", "b", "c", "a", "b"]
    rewards = torch.randn(11, generator=torch.Generator().manual_seed(1))
    expected = eq_14(rewards.double().tolist(), ids)
    assert group_relative_advantages(rewards, ids).tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_small_differences_on_a_large_mean_keep_their_digits():
    rewards = torch.tensor([1000.0, 1000.0 + 2**-10, 1000.0, 1000.0])
    expected = eq_14(rewards.double().tolist(), ["a"] * 4)
    assert group_relative_advantages(rewards, ["a"] * 4).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [0.1, -0.3, 0.7, 1e-8, 1234.567])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_group_of_equal_rewards_gets_exactly_zero(value: float, size: int):
    rewards = torch.tensor([value] * size + [0.0, 1.0])
    advantages = group_relative_advantages(rewards, ["equal"] * size + ["other"] * 2)
    assert advantages[:size].tolist() == [0.0] * size
    assert advantages[size:].abs().min() > 0.5


def test_the_rewards_are_left_as_they_are():
    rewards = torch.tensor([1.0, 2.0, 4.0])
    group_relative_advantages(rewards, ["a", "a", "a"])
    assert rewards.tolist() == [1.0, 2.0, 4.0]


# -- the clipped loss ---------------------------------------------------------------------------------------------------

NO_KL = ActorConfig(kl_loss_coef=0.0)


def single(ratio: float, advantage: float, config: ActorConfig = NO_KL) -> float:
    old = torch.tensor([[-1.0]])
    loss, _ = policy_objective(
        old + math.log(ratio), old, old, torch.tensor([advantage]), torch.ones(1, 1), config, BatchInfo(1, 1, 2)
    )
    return loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.1, 1.0, -1.1),
        (1.5, 1.0, -1.2),  # clipped at 1 + 0.2
        (0.5, 1.0, -0.5),
        (0.5, -1.0, 0.8),  # clipped at 1 - 0.2
        (1.5, -1.0, 1.5),
        (5.0, -1.0, 3.0),  # dual clip at 3
        (5.0, 1.0, -1.2),
    ],
)
def test_the_clipped_loss_of_one_token_by_hand(ratio: float, advantage: float, expected: float):
    assert single(ratio, advantage) == pytest.approx(expected, rel=1e-6)


def test_clip_ratio_and_dual_clip_come_from_the_config():
    config = ActorConfig(clip_ratio=0.5, clip_ratio_c=2.0, kl_loss_coef=0.0)
    assert single(1.4, 1.0, config) == pytest.approx(-1.4, rel=1e-6)
    assert single(1.6, 1.0, config) == pytest.approx(-1.5, rel=1e-6)
    assert single(5.0, -1.0, config) == pytest.approx(2.0, rel=1e-6)


def test_the_reference_kl_is_the_low_variance_estimator():
    # log-ratio of reference to policy is ln 2: exp(ln 2) - ln 2 - 1 = 1 - ln 2
    log_probs = torch.tensor([[-1.0]])
    loss, metrics = policy_objective(
        log_probs,
        log_probs,
        log_probs + math.log(2),
        torch.zeros(1),
        torch.ones(1, 1),
        ActorConfig(kl_loss_coef=0.5),
        BatchInfo(1, 1, 2),
    )
    assert loss.item() == pytest.approx(0.5 * (1 - math.log(2)), rel=1e-5)
    assert metrics["actor/kl_loss"] == pytest.approx(1 - math.log(2), rel=1e-5)


def sample(seed: int = 0) -> dict[str, torch.Tensor]:
    """Five responses of uneven length whose ratios cross every clip border; garbage under the padding."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([6, 1, 4, 2, 5])
    mask = (torch.arange(6) < lengths[:, None]).float()
    old = -torch.rand(5, 6, generator=generator) * 3
    out = {
        "log_probs": old + torch.randn(5, 6, generator=generator) * 0.8,
        "old_log_probs": old,
        "ref_log_probs": old + torch.randn(5, 6, generator=generator) * 0.3,
        "advantages": torch.tensor([1.2, -0.7, -1.5, 0.4, -2.0]),
        "mask": mask,
    }
    for key in ("log_probs", "old_log_probs", "ref_log_probs"):
        out[key] = torch.where(mask.bool(), out[key], torch.full_like(mask, -7.0))
    return out


def by_formula(batch: dict[str, torch.Tensor], kl_coef: float) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch["mask"])):
        advantage = batch["advantages"][row].double()
        for column in range(int(batch["mask"][row].sum())):
            new, old, ref = (batch[k][row, column].double() for k in ("log_probs", "old_log_probs", "ref_log_probs"))
            ratio = (new - old).exp()
            loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
            if advantage < 0:
                loss = torch.minimum(loss, -advantage * 3.0)
            total = total + loss + kl_coef * ((ref - new).exp() - (ref - new) - 1)
    return total / batch["mask"].sum().double()


@pytest.mark.parametrize("kl_coef", [0.0, 0.001, 1.0])
def test_loss_and_gradient_of_a_batch_equal_the_formula(kl_coef: float):
    ours, theirs = sample(), sample()
    ours["log_probs"].requires_grad_()
    theirs["log_probs"].requires_grad_()
    loss, _ = policy_objective(**ours, config=ActorConfig(kl_loss_coef=kl_coef), info=BatchInfo(18, 5, 2))
    expected = by_formula(theirs, kl_coef)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours["log_probs"].grad, theirs["log_probs"].grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
@pytest.mark.parametrize("split", [[[0], [1, 2, 3, 4]], [[1, 3], [0, 2], [4]], [[4], [3], [2], [1], [0]]], ids=str)
def test_losses_gradients_and_metrics_of_uneven_micro_batches_add_up(split: list[list[int]], mode: str):
    config, info = ActorConfig(kl_loss_coef=0.1, loss_agg_mode=mode), BatchInfo(18, 5, 2)
    whole = sample()
    whole["log_probs"].requires_grad_()
    loss, metrics = policy_objective(**whole, config=config, info=info)
    loss.backward()
    parts = sample()
    parts["log_probs"].requires_grad_()
    total, summed = 0.0, dict.fromkeys(metrics, 0.0)
    for rows in split:
        width = int(parts["mask"][rows].sum(1).max())  # a micro-batch is padded to its own longest row
        cut = {k: v[rows] if v.dim() == 1 else v[rows][:, :width] for k, v in parts.items()}
        part, reported = policy_objective(**cut, config=config, info=info)
        part.backward()
        total += part.item()
        summed = {key: summed[key] + reported[key] for key in summed}
    assert total == pytest.approx(loss.item(), rel=1e-5)
    assert summed == pytest.approx(metrics, rel=1e-5, abs=1e-7)
    torch.testing.assert_close(parts["log_probs"].grad, whole["log_probs"].grad, rtol=1e-5, atol=1e-8)


def test_clip_fractions_are_shares_of_response_tokens():
    old = torch.zeros(2, 2)
    log_probs = torch.tensor([[math.log(1.5), 0.0], [math.log(5.0), 5.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    _, metrics = policy_objective(log_probs, old, old, torch.tensor([1.0, -1.0]), mask, NO_KL, BatchInfo(3, 2, 2))
    assert metrics["actor/pg_clipfrac"] == pytest.approx(1 / 3)  # the token at ratio 1.5
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(1 / 3)  # the token at ratio 5


def test_padding_gets_no_gradient():
    batch = sample()
    batch["log_probs"].requires_grad_()
    policy_objective(**batch, config=ActorConfig(kl_loss_coef=1.0), info=BatchInfo(18, 5, 2))[0].backward()
    assert batch["log_probs"].grad is not None
    assert batch["log_probs"].grad[batch["mask"] == 0].abs().sum() == 0
