"""What the policy learns from: the rollouts of a whole batch, and one worker's share of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from objectives.policy_gradient import BatchInfo


@dataclass(frozen=True)
class PolicyBatch:
    """R rollouts to learn from, in any order.

    Attributes:
        query_ids: ``[R]``, the group of each rollout; groups may differ in size.
        prompts, responses: ``[R]`` token ids; a response includes its end token.
        rewards: float32 ``[R]``.
        ref_log_probs: ``[R]`` arrays, one float a response token, from the frozen reference at the sampling temperature.
        rollout_log_probs: ``[R]`` arrays of the engine that sampled, at its own temperature; None: no mismatch is measured.
        sft_prompts, sft_rationales: teacher rationales for the auxiliary SFT loss of E.3, empty where it is off.
    """

    query_ids: list[str]
    prompts: list[list[int]]
    responses: list[list[int]]
    rewards: torch.Tensor
    ref_log_probs: list[np.ndarray]
    rollout_log_probs: list[np.ndarray] | None = None
    sft_prompts: list[list[int]] = field(default_factory=list)
    sft_rationales: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class PolicyShare:
    """The r rollouts that one worker learns from, and what makes its losses a part of the whole batch's.

    Attributes:
        advantages: float32 ``[r]``, eq. 14 over the whole batch.
        info: tokens and sequences of the whole batch.
        sft_tokens: rationale tokens of the whole batch.
    """

    prompts: list[list[int]]
    responses: list[list[int]]
    advantages: torch.Tensor
    ref_log_probs: list[np.ndarray]
    rollout_log_probs: list[np.ndarray] | None
    sft_prompts: list[list[int]]
    sft_rationales: list[list[int]]
    info: BatchInfo
    sft_tokens: int


def whole_share(batch: PolicyBatch) -> PolicyShare:
    """The batch as one worker's share: its advantages, and the counts that normalize every worker's losses."""
    from objectives.policy_gradient import BatchInfo, group_relative_advantages

    return PolicyShare(
        prompts=batch.prompts,
        responses=batch.responses,
        advantages=group_relative_advantages(batch.rewards, batch.query_ids),
        ref_log_probs=batch.ref_log_probs,
        rollout_log_probs=batch.rollout_log_probs,
        sft_prompts=batch.sft_prompts,
        sft_rationales=batch.sft_rationales,
        info=BatchInfo(
            num_tokens=sum(len(r) for r in batch.responses),
            num_sequences=len(batch.responses),
            rollout_n=max(2, len(batch.responses) // max(1, len(set(batch.query_ids)))),
        ),
        sft_tokens=sum(len(r) for r in batch.sft_rationales),
    )
