"""The mismatch between the engine that samples and the policy that learns: its curves, and importance sampling against it.

Both compute the same distribution from the same weights, but with other kernels, batch shapes and roundings, so their
log-probabilities differ a little. They are compared at one temperature, over the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from configs.schema import GrpoConfig, RolloutCorrectionConfig

MAX_LOG_RATIO = 20.0
"""Logarithms of ratios are cut here before exponentiation, as in verl; far beyond any sensible threshold."""


def engine_temperature(config: GrpoConfig) -> float:
    """The temperature of the log-probabilities that engines return, and at which the policy is compared with them.

    1 as a rule: vLLM's log-probabilities of a nucleus are renormalized within it, and no match for the policy's. Importance
    sampling needs those of the distribution that was sampled; it asks for ``rollout.top_p=1``, where they are over the whole
    vocabulary.
    """
    return config.rollout.temperature if config.rollout_correction.rollout_is else 1.0


def importance_weights(
    old_log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor, config: RolloutCorrectionConfig
) -> torch.Tensor | None:
    """min(π_old / π_rollout, C), per token or, as the product of its tokens' ratios, per rollout.

    π_old is the policy before the batch's first update, π_rollout the engine, both at the sampling temperature; C is
    ``rollout_is_threshold``. The policy loss of each token is multiplied by its weight.

    Args:
        old_log_probs, rollout_log_probs: ``[B, T]``, nats.
        mask: ``[B, T]``, 1 on response tokens.

    Returns:
        ``[B, T]`` without gradients, 0 on padding; None where ``rollout_is`` is off.
    """
    if not config.rollout_is:
        return None
    log_ratio = (old_log_probs.detach() - rollout_log_probs) * mask
    if config.rollout_is == "sequence":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio.clamp(max=config.rollout_is_threshold) * mask


@dataclass
class Mismatch:
    """What a step's curves are made of: sums over response tokens that add up over micro-batches and workers.

    Attributes:
        tokens: compared so far.
        difference: sum of |log π_policy − log π_engine| (nats).
        largest: the greatest of them.
        weight: sum of importance weights.
        cut: tokens whose importance weight was cut at the threshold.
        weighted: whether there were importance weights at all.
    """

    tokens: int = 0
    difference: float = 0.0
    largest: float = 0.0
    weight: float = 0.0
    cut: int = 0
    weighted: bool = False

    def add(
        self,
        policy_log_probs: torch.Tensor,
        rollout_log_probs: torch.Tensor,
        mask: torch.Tensor,
        weights: torch.Tensor | None = None,
        threshold: float = 0.0,
    ) -> None:
        """Count one micro-batch: ``[B, T]`` log-probabilities of both at :func:`engine_temperature`, and importance weights."""
        kept = mask.bool()
        tokens = int(kept.sum())
        if not tokens:
            return
        difference = (policy_log_probs.detach() - rollout_log_probs).abs()[kept].double()
        self.tokens += tokens
        self.difference += float(difference.sum())
        self.largest = max(self.largest, float(difference.max()))
        if weights is not None:
            self.weighted = True
            self.weight += float(weights[kept].double().sum())
            self.cut += int((weights[kept] >= threshold).sum())

    @classmethod
    def merged(cls, parts: Iterable[Mismatch]) -> Mismatch:
        """That of all workers together."""
        total = cls()
        for part in parts:
            total.tokens += part.tokens
            total.difference += part.difference
            total.largest = max(total.largest, part.largest)
            total.weight += part.weight
            total.cut += part.cut
            total.weighted |= part.weighted
        return total

    def curves(self) -> dict[str, float]:
        """Mean and maximum difference; with importance weights also their mean and the share that was cut, by verl's names."""
        tokens = max(self.tokens, 1)
        curves = {
            "rollout_corr/log_prob_diff_mean": self.difference / tokens,
            "rollout_corr/log_prob_diff_max": self.largest,
        }
        if self.weighted:
            curves["rollout_corr/rollout_is_mean"] = self.weight / tokens
            curves["rollout_corr/rollout_is_ratio_fraction_high"] = self.cut / tokens
        return curves
