"""A whole policy update against an independent one: gradients, weights, temperature, micro-batches, refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.policy import Policy, equal_passes
from actors.policy_batch import PolicyBatch, whole_share
from configs.schema import ModelConfig, RolloutCorrectionConfig
from models.backbone import Backbone
from models.views import raw_view
from objectives.checkpoint import CheckpointError


def advantages(batch: PolicyBatch) -> list[float]:
    """Eq. 14 in float64, by query id."""
    rewards = batch.rewards.double().tolist()
    out = []
    for reward, query in zip(rewards, batch.query_ids, strict=True):
        group = [r for r, q in zip(rewards, batch.query_ids, strict=True) if q == query]
        mean = sum(group) / len(group)
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / (len(group) - 1))
        out.append((reward - mean) / (std + 1e-6))
    return out


def log_probs(model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float) -> torch.Tensor:
    """float64 log-probabilities of a response, one unpadded sequence through transformers."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double()
    return torch.log_softmax(logits / temperature, dim=-1)[range(len(response)), response]


def objective(model, batch: PolicyBatch, temperature: float, old: list[torch.Tensor] | None, kl_coef: float):
    """The clipped loss with dual clip and reference KL, averaged over the batch's tokens, token by token."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for i, advantage in enumerate(advantages(batch)):
        new = log_probs(model, batch.prompts[i], batch.responses[i], temperature)
        ratio = (new - (new.detach() if old is None else old[i])).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
        if advantage < 0:
            loss = loss.clamp(max=-advantage * 3.0)
        reference = torch.from_numpy(batch.ref_log_probs[i]).double() - new
        total = total + (loss + kl_coef * (reference.exp() - reference - 1)).sum()
        tokens += len(new)
    return total / tokens


def gradients_of_update(policy: Policy, batch: PolicyBatch, monkeypatch) -> dict[str, torch.Tensor]:
    return gradients(lambda: policy.update(batch), policy, monkeypatch)


def gradients(update: Callable[[], Any], policy: Policy, monkeypatch) -> dict[str, torch.Tensor]:
    """The gradients that an update has accumulated when it comes to its step."""
    caught: dict[str, torch.Tensor] = {}

    def catch(clip_grad: float) -> float:
        caught.update({n: p.grad.clone() for n, p in policy.backbone.model.named_parameters() if p.grad is not None})
        policy.engine.zero_grad()
        return 0.0

    with monkeypatch.context() as patch:
        patch.setattr(policy.engine, "step", catch)
        update()
    return caught


def independent_gradients(policy: Policy, batch: PolicyBatch, temperature: float, kl_coef: float):
    model = policy.backbone.model
    objective(model, batch, temperature, None, kl_coef).backward()
    out = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return out


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.backbone.state().items()}


# -- the gradient -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl_coef", [0.0, 0.001, 0.5])
def test_the_gradient_is_that_of_the_objective_at_the_sampling_temperature(
    make_policy, make_batch, monkeypatch, kl_coef
):
    policy = make_policy(kl_loss_coef=kl_coef)
    batch = make_batch(policy)
    ours = gradients_of_update(policy, batch, monkeypatch)
    torch.testing.assert_close(ours, independent_gradients(policy, batch, 0.8, kl_coef), rtol=1e-4, atol=1e-5)


def test_the_gradient_is_not_that_of_temperature_one(make_policy, make_batch, monkeypatch):
    policy = make_policy()
    batch = make_batch(policy)
    ours = gradients_of_update(policy, batch, monkeypatch)
    wrong = independent_gradients(policy, batch, 1.0, 0.001)
    assert max((ours[name] - wrong[name]).abs().max().item() for name in ours) > 1e-2


@pytest.mark.parametrize("budget", [1, 12, 30])
def test_micro_batches_change_neither_gradients_nor_metrics(make_policy, make_batch, monkeypatch, budget: int):
    whole, cut = make_policy(ppo_max_token_len=0), make_policy(ppo_max_token_len=budget)
    batch = make_batch(whole)
    expected = gradients_of_update(whole, batch, monkeypatch)
    torch.testing.assert_close(gradients_of_update(cut, batch, monkeypatch), expected, rtol=1e-4, atol=1e-6)
    first, second = whole.update(batch), cut.update(batch)
    for metrics in (first, second):
        del metrics["time/update"]
    assert second == pytest.approx(first, rel=1e-4, abs=1e-6)


def test_micro_batches_do_not_change_the_resulting_weights(make_policy, make_batch):
    whole, cut = make_policy(lr=2e-6, ppo_max_token_len=0), make_policy(lr=2e-6, ppo_max_token_len=20)
    batch = make_batch(whole)
    whole.update(batch)
    cut.update(batch)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=1e-6)


def test_the_order_of_rollouts_does_not_matter(make_policy, make_batch, monkeypatch):
    policy = make_policy()
    expected = gradients_of_update(policy, make_batch(policy), monkeypatch)
    shuffled = gradients_of_update(policy, make_batch(policy, [5, 0, 7, 3, 1, 6, 2, 4]), monkeypatch)
    torch.testing.assert_close(shuffled, expected, rtol=1e-4, atol=1e-6)


# -- shared prompts -----------------------------------------------------------------------------------------------------

LONG_PROMPTS = {"one": list(range(20, 50)), "other": list(range(20, 35)) + list(range(300, 312))}


def long_batch(policy: Policy, make_batch) -> PolicyBatch:
    """The rollouts of :func:`make_batch` to prompts long enough to be shared, two of which begin alike."""
    batch = make_batch(policy)
    prompts = [[*LONG_PROMPTS["one" if row % 2 else "other"], *prompt] for row, prompt in enumerate(batch.prompts)]
    with torch.no_grad():
        own = [log_probs(policy.backbone.model, p, r, 0.8) for p, r in zip(prompts, batch.responses, strict=True)]
    return dataclasses.replace(batch, prompts=prompts, ref_log_probs=[values.float().numpy() + 0.1 for values in own])


def computed_tokens(backbone: Backbone, call: Callable[[], Any]) -> int:
    """Tokens that go through the transformer during a call."""
    counts: list[int] = []
    hook = backbone.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: counts.append(args[0].numel())
    )
    call()
    hook.remove()
    return sum(counts)


@pytest.mark.parametrize("budget", [0, 60])
def test_the_gradient_with_shared_prompts_is_that_of_the_objective(make_policy, make_batch, monkeypatch, budget: int):
    policy = make_policy(ppo_max_token_len=budget)
    batch = long_batch(policy, make_batch)
    assert policy.backbone.packs
    ours = gradients_of_update(policy, batch, monkeypatch)
    torch.testing.assert_close(ours, independent_gradients(policy, batch, 0.8, 0.001), rtol=1e-4, atol=1e-5)
    policy.backbone.share_prefixes = False
    torch.testing.assert_close(gradients_of_update(policy, batch, monkeypatch), ours, rtol=1e-5, atol=1e-5)


def test_an_update_computes_the_prompt_of_a_group_once(make_policy):
    policy = make_policy(ppo_max_token_len=1000)
    prompts = [LONG_PROMPTS["one"]] * 3 + [list(range(200, 240))] * 2
    responses = [[7, 8, 1], [9, 1], [10, 11, 12, 1], [13, 1], [14, 15, 1]]
    batch = PolicyBatch(
        query_ids=["a", "a", "a", "b", "b"],
        prompts=prompts,
        responses=responses,
        rewards=torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]),
        ref_log_probs=[np.zeros(len(r), dtype=np.float32) for r in responses],
    )
    # the last token of a response predicts nothing
    assert computed_tokens(policy.backbone, lambda: policy.update(batch)) == 30 + 40 + 2 + 1 + 3 + 1 + 2
    policy.backbone.share_prefixes = False
    assert computed_tokens(policy.backbone, lambda: policy.update(batch)) >= 3 * 30 + 2 * 40 + 9


@pytest.mark.parametrize("budget", [50, 70, 90])
def test_rollouts_of_a_group_are_in_one_micro_batch_where_it_fits(make_policy, budget: int):
    engine = make_policy().engine
    prompts = [list(range(20, 50)), list(range(200, 230))] * 4
    plan = equal_passes(engine, prompts, [[10 + row, 8, 9, 7, 1] for row in range(8)], budget)
    assert sorted(sorted(rows) for rows in plan) == [[0, 2, 4, 6], [1, 3, 5, 7]]


# -- the step -----------------------------------------------------------------------------------------------------------


def test_every_epoch_clips_against_the_policy_that_sampled(
    make_policy, make_batch, model_config: ModelConfig, monkeypatch
):
    # a learning rate at which ratios leave the clip range after the first epoch
    policy = make_policy(lr=5e-4, ppo_epochs=3, kl_loss_coef=0.1, ppo_max_token_len=30)
    batch = make_batch(policy)
    model = Backbone.load(model_config.path).model
    with torch.no_grad():
        old = [log_probs(model, p, r, 0.8) for p, r in zip(batch.prompts, batch.responses, strict=True)]
    epochs: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    step = policy.engine.step

    def observed(clip_grad: float) -> float:
        gradients = {n: p.grad.clone() for n, p in policy.backbone.model.named_parameters() if p.grad is not None}
        epochs.append((weights(policy), gradients))
        return step(clip_grad)

    monkeypatch.setattr(policy.engine, "step", observed)
    metrics = policy.update(batch)
    assert len(epochs) == 3
    assert metrics["actor/pg_clipfrac"] > 0
    for at, gradients in epochs:
        model.load_state_dict(at, strict=False)
        objective(model, batch, 0.8, old, 0.1).backward()
        expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


def test_several_epochs_are_one_version(make_policy, make_batch):
    policy = make_policy(ppo_epochs=2)
    policy.update(make_batch(policy))
    assert policy.version == 1


def test_one_update_makes_a_favoured_response_more_likely_and_the_others_less(make_policy, make_batch):
    policy = make_policy(kl_loss_coef=0.0)
    batch = make_batch(policy, rewards=torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))

    def mean_log_probs() -> list[float]:
        with torch.no_grad():
            return [
                log_probs(policy.backbone.model, p, r, 0.8).mean().item()
                for p, r in zip(batch.prompts, batch.responses, strict=True)
            ]

    before = mean_log_probs()
    for _ in range(3):
        policy.update(batch)
    after = mean_log_probs()
    assert after[0] > before[0]
    assert after[0] - before[0] > max(after[i] - before[i] for i in (1, 2))


def test_equal_rewards_and_an_equal_reference_leave_the_weights(make_policy, make_batch):
    policy = make_policy()
    before = weights(policy)
    batch = make_batch(policy, shift=0.0, rewards=torch.full((8,), 0.1))
    metrics = policy.update(batch)
    assert metrics["actor/nonzero_advantages"] == 0.0
    assert metrics["actor/grad_norm"] == pytest.approx(0.0, abs=1e-7)
    # AdamW divides by the gradient's own size: rounding may move a weight, by far less than a step of 1e-3
    torch.testing.assert_close(weights(policy), before, rtol=0, atol=1e-3)


def test_the_gradient_norm_is_clipped_and_the_norm_before_reported(make_policy, make_batch, monkeypatch):
    policy = make_policy(clip_grad=0.01)
    batch = make_batch(policy)
    expected = independent_gradients(policy, batch, 0.8, 0.001)
    norm = math.sqrt(sum(g.double().square().sum().item() for g in expected.values()))
    seen: list[float] = []
    step = policy.engine.optimizer.step

    def observed() -> None:
        seen.append(math.sqrt(sum(p.grad.double().square().sum().item() for p in policy.backbone.parameters())))
        step()

    monkeypatch.setattr(policy.engine.optimizer, "step", observed)
    assert policy.update(batch)["actor/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert seen == [pytest.approx(0.01, rel=1e-4)]


def test_a_reward_that_is_not_a_number_leaves_weights_and_gradients(make_policy, make_batch):
    policy = make_policy()
    before = weights(policy)
    rewards = torch.tensor([float("nan"), *[0.1 * i for i in range(7)]])
    with pytest.raises(FloatingPointError, match="the gradient norm is nan"):
        policy.update(make_batch(policy, rewards=rewards))
    torch.testing.assert_close(weights(policy), before, rtol=0, atol=0)
    assert all(p.grad is None for p in policy.backbone.parameters())
    assert policy.version == 0


def test_the_metrics_are_those_of_the_batch(make_policy, make_batch):
    policy = make_policy()
    batch = make_batch(policy, rewards=torch.tensor([1.0, 0.0, 0.5, 0.3, 0.3, 0.3, 0.3, 0.3]))
    with torch.no_grad():
        entropies, kls = [], []
        for prompt, response, reference in zip(batch.prompts, batch.responses, batch.ref_log_probs, strict=True):
            logits = (
                policy.backbone.model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double()
            )
            distribution = torch.log_softmax(logits / 0.8, dim=-1)
            entropies.extend((-(distribution.exp() * distribution).sum(-1)).tolist())
            difference = torch.from_numpy(reference).double() - distribution[range(len(response)), response]
            kls.extend((difference.exp() - difference - 1).tolist())
    metrics = policy.update(batch)
    assert metrics["actor/entropy"] == pytest.approx(np.mean(entropies), rel=1e-4)
    assert metrics["actor/kl_loss"] == pytest.approx(np.mean(kls), rel=1e-3)
    assert metrics["actor/nonzero_advantages"] == pytest.approx(2 / 8)  # 0.5 is its group's mean, the others are equal
    assert metrics["actor/pg_clipfrac"] == 0.0  # with one update a batch the ratio is 1


# -- the auxiliary SFT loss ---------------------------------------------------------------------------------------------


def test_the_sft_loss_adds_the_rationales_cross_entropy_at_temperature_one(make_policy, make_batch, monkeypatch):
    sft = {"sft_prompts": [[5, 6, 7], [50]], "sft_rationales": [[70, 71, 72, 1], [73, 1]]}
    plain, policy = make_policy(), make_policy(sft_coef=0.3, ppo_max_token_len=8)
    batch = make_batch(policy, **sft)
    model = policy.backbone.model
    pairs = list(zip(batch.sft_prompts, batch.sft_rationales, strict=True))
    loss = -torch.cat([log_probs(model, p, r, 1.0) for p, r in pairs]).mean()
    (0.3 * loss).backward()
    extra = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    without = gradients_of_update(plain, batch, monkeypatch)
    with_sft = gradients_of_update(policy, batch, monkeypatch)
    torch.testing.assert_close(with_sft, {n: without[n] + extra[n] for n in without}, rtol=1e-4, atol=1e-5)
    assert policy.update(batch)["actor/sft_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_sft_loss_is_off_by_default(make_policy, make_batch):
    policy = make_policy()
    batch = make_batch(policy, sft_prompts=[[5]], sft_rationales=[[70, 1]])
    assert "actor/sft_loss" not in policy.update(batch)


# -- what others ask of it ----------------------------------------------------------------------------------------------


def test_a_restored_policy_goes_on_as_the_unbroken_one(make_policy, make_batch, tmp_path: Path):
    policy = make_policy()
    batch = make_batch(policy)
    policy.update(batch)
    folder = policy.save(str(tmp_path), 1, {"epoch": 0}, 2)
    policy.update(batch)
    resumed = make_policy()
    assert resumed.restore(folder) == {"epoch": 0, "step": 1}
    assert resumed.version == 1
    resumed.update(batch)
    torch.testing.assert_close(weights(resumed), weights(policy), rtol=0, atol=0)


def test_a_folder_that_is_no_checkpoint_is_refused(make_policy, tmp_path: Path):
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        make_policy().restore(str(tmp_path))


def test_encoding_uses_the_current_weights(make_policy, make_batch):
    policy = make_policy()
    view = raw_view("Draw a chart")
    before = policy.encode([view], 512)
    policy.update(make_batch(policy))
    after = policy.encode([view], 512)
    tokens = policy.backbone.tokenizer.encode_views([view], 512)
    np.testing.assert_array_equal(after, policy.backbone.encode(tokens, 0).numpy())
    assert np.abs(after - before).max() > 1e-4


def test_an_updated_policy_is_exported_with_its_weights(make_policy, make_batch, tmp_path: Path):
    from sentence_transformers import SentenceTransformer

    policy = make_policy()
    policy.update(make_batch(policy))
    policy.export(str(tmp_path / "export"), str(tmp_path / "export" / "causal_lm"), 256)
    torch.testing.assert_close(
        Backbone.load(tmp_path / "export" / "causal_lm").state(), weights(policy), rtol=0, atol=0
    )
    model = SentenceTransformer(str(tmp_path / "export"), device="cpu")
    np.testing.assert_allclose(
        model.encode_query(["Draw a chart"]), policy.encode([raw_view("Draw a chart")], 256), atol=1e-5
    )


# -- shares of a batch --------------------------------------------------------------------------------------------------


def test_a_share_is_normalized_by_the_tokens_of_the_whole_batch(make_policy, make_batch, monkeypatch):
    policy = make_policy(kl_loss_coef=0.5)
    batch = make_batch(policy)
    rows = [0, 4, 7]
    whole = whole_share(batch)
    share = dataclasses.replace(
        whole,
        prompts=[whole.prompts[r] for r in rows],
        responses=[whole.responses[r] for r in rows],
        advantages=whole.advantages[rows],
        ref_log_probs=[whole.ref_log_probs[r] for r in rows],
    )
    model, total = policy.backbone.model, torch.zeros((), dtype=torch.float64)
    for row in rows:
        new = log_probs(model, batch.prompts[row], batch.responses[row], 0.8)
        reference = torch.from_numpy(batch.ref_log_probs[row]).double() - new
        # the ratio of a first update is 1, its gradient that of the log-probability
        total = total + (-advantages(batch)[row] * (new - new.detach()).exp()).sum()
        total = total + 0.5 * (reference.exp() - reference - 1).sum()
    (total / 27).backward()  # 12 tokens of query a, 8 of b and 7 of c; the share has 12 of them
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    ours = gradients(lambda: policy.update_share(share), policy, monkeypatch)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_advantages_of_a_share_are_those_of_the_whole_group(make_policy, make_batch):
    # rewards of query b: 0.1 and 0.7, mean 0.4, unbiased deviation 0.3 * sqrt(2)
    batch = make_batch(make_policy(), [3, 0, 4])
    expected = [-0.3 / (0.3 * math.sqrt(2)), 0.0, 0.3 / (0.3 * math.sqrt(2))]
    assert whole_share(batch).advantages.tolist() == pytest.approx(expected, rel=1e-4)


# -- the rollout engine's own log-probabilities ---------------------------------------------------------------------------


def test_the_mismatch_is_measured_at_the_engines_temperature_before_the_first_update(make_policy, make_batch):
    policy = make_policy(ppo_epochs=2, ppo_max_token_len=20)
    batch = make_batch(policy)
    with torch.no_grad():
        at_one = [
            log_probs(policy.backbone.model, p, r, 1.0).float().numpy()
            for p, r in zip(batch.prompts, batch.responses, strict=True)
        ]
    sampled = [values.copy() for values in at_one]
    sampled[2][3] += 0.27
    sampled[5][0] -= 0.54
    metrics = policy.update(dataclasses.replace(batch, rollout_log_probs=sampled))
    assert metrics["rollout_corr/log_prob_diff_mean"] == pytest.approx((0.27 + 0.54) / 27, abs=1e-5)
    assert metrics["rollout_corr/log_prob_diff_max"] == pytest.approx(0.54, abs=1e-4)
    assert "rollout_corr/rollout_is_mean" not in metrics


def test_importance_weights_multiply_the_policy_loss_of_their_tokens(make_policy, make_batch, monkeypatch):
    policy = make_policy(kl_loss_coef=0.0)
    policy.engine_temperature = 0.8
    policy.correction = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.5)
    batch = make_batch(policy, shift=0.0)  # the reference is the policy's own: log-probabilities at 0.8
    # the engine made the first rollout's tokens half as likely (weight 2, cut at 1.5), all others as likely as the policy does
    sampled = [batch.ref_log_probs[0] - math.log(2), *batch.ref_log_probs[1:]]
    batch = dataclasses.replace(batch, rollout_log_probs=sampled)
    model, total = policy.backbone.model, torch.zeros((), dtype=torch.float64)
    for row, advantage in enumerate(advantages(batch)):
        new = log_probs(model, batch.prompts[row], batch.responses[row], 0.8)
        total = total - (1.5 if row == 0 else 1.0) * advantage * (new - new.detach()).exp().sum() / 27
    total.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    torch.testing.assert_close(gradients_of_update(policy, batch, monkeypatch), expected, rtol=1e-4, atol=1e-5)
    assert policy.update(batch)["rollout_corr/rollout_is_mean"] == pytest.approx((4 * 1.5 + 23) / 27, rel=1e-5)


def test_importance_sampling_without_the_engines_log_probabilities_is_refused(make_policy, make_batch):
    policy = make_policy()
    policy.correction = RolloutCorrectionConfig(rollout_is="token")
    with pytest.raises(ValueError, match=r"rollout_correction\.rollout_is"):
        policy.update(make_batch(policy))
