"""The GRPO objective of Stage II on verl's core algorithms: advantages, clipped loss, reference KL, aggregation.

Importing this module imports verl, which takes seconds to tens of seconds and brings Ray with it: it is imported at the first
update alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import (
    agg_loss,
    compute_grpo_outcome_advantage,
    compute_policy_loss_vanilla,
    kl_penalty,
)
from verl.workers.config import ActorConfig as VerlActorConfig

from configs.schema import ActorConfig

ADVANTAGE_EPSILON = 1e-6


def group_relative_advantages(rewards: torch.Tensor, query_ids: Sequence[str]) -> torch.Tensor:
    """Eq. 14: (R - mean) / (std + 1e-6) within the rollouts of one query, by id, whatever their order or number.

    A group whose rewards are all equal gets exactly zero: rounding in the mean over a tiny ε would otherwise turn equal
    rewards into a signal.

    Args:
        rewards: ``[R]``, one per rollout.
        query_ids: ``[R]``, the query each rollout belongs to.
    """
    index = np.asarray(list(query_ids), dtype=object)
    ones = torch.ones(len(rewards), 1, dtype=torch.float64)
    scores, _ = compute_grpo_outcome_advantage(
        rewards.double()[:, None].clone(), ones, index, epsilon=ADVANTAGE_EPSILON
    )
    advantages = scores.squeeze(1).float()
    for query_id in dict.fromkeys(index):
        rows = torch.from_numpy(np.flatnonzero(index == query_id))
        if rewards[rows].max() == rewards[rows].min():
            advantages[rows] = 0.0
    return advantages


@dataclass(frozen=True)
class BatchInfo:
    """What makes the losses of micro-batches, on whatever worker, add up to the loss of the whole batch."""

    num_tokens: int
    num_sequences: int
    rollout_n: int


def policy_objective(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    config: ActorConfig,
    info: BatchInfo,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Clipped and dual-clipped policy loss plus reference KL of one micro-batch, normalized for the whole batch.

    Args:
        log_probs: ``[B, T]`` of the policy at the sampling temperature, with gradients.
        old_log_probs: ``[B, T]`` of the policy that sampled, detached.
        ref_log_probs: ``[B, T]`` of the frozen Stage-I reference at the same temperature.
        advantages: ``[B]``, eq. 14.
        mask: ``[B, T]``, 1 on response tokens.
        rollout_is_weights: ``[B, T]``, what each token's policy loss is multiplied by; not the KL's.

    Returns:
        The loss, whose sum over micro-batches is the batch loss, and verl's metrics as sums over this micro-batch's tokens
        divided by the batch's tokens (they add up as well).
    """
    options: dict[str, Any] = {
        "strategy": "fsdp",
        "rollout_n": info.rollout_n,
        "use_dynamic_bsz": True,
        "clip_ratio": config.clip_ratio,
        "clip_ratio_low": config.clip_ratio,
        "clip_ratio_high": config.clip_ratio,
        "clip_ratio_c": config.clip_ratio_c,
        "loss_agg_mode": config.loss_agg_mode,
        "global_batch_info": {
            "dp_size": 1,  # verl's factor against the mean over workers that its wrappers take; our engines take the sum
            "batch_num_tokens": info.num_tokens,
            "global_batch_size": info.num_sequences,
        },
    }
    verl_config = VerlActorConfig(**options)
    per_token = advantages[:, None] * mask
    loss, metrics = compute_policy_loss_vanilla(
        old_log_probs,
        log_probs,
        per_token,
        mask,
        loss_agg_mode=config.loss_agg_mode,  # pyright: ignore[reportCallIssue]
        config=verl_config,
        rollout_is_weights=rollout_is_weights,
    )
    kl = kl_penalty(log_probs, ref_log_probs, config.kl_loss_type)  # pyright: ignore[reportArgumentType]
    kl_loss = agg_loss(loss_mat=kl, loss_mask=mask, loss_agg_mode=config.loss_agg_mode, **options["global_batch_info"])
    share = float(mask.sum()) / max(info.num_tokens, 1)
    reported = {
        "actor/pg_loss": float(loss.detach()),
        "actor/kl_loss": float(kl_loss.detach()),
        "actor/pg_clipfrac": metrics["actor/pg_clipfrac"] * share,
        "actor/pg_clipfrac_lower": metrics["actor/pg_clipfrac_lower"] * share,
        "actor/ppo_kl": metrics["actor/ppo_kl"] * share,
    }
    return loss + config.kl_loss_coef * kl_loss, reported
