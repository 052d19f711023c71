"""A reward term of one's own: prefer rationales that follow the sentence pattern they were taught.

Use it with

    skillreason train grpo grpo_tiny \
        reward.terms.pattern.function=examples.custom_reward:follows_pattern \
        reward.terms.pattern.weight=0.2 \
        reward.terms.pattern.params.longest=32

Nothing else changes: the term gets the whole batch, returns one float a rollout, and has a curve of its own,
``reward/pattern/mean``. What a batch offers (requests, rationales, token lengths, embeddings, similarities to the candidate
pool, margins) is listed in :class:`rewards.RewardBatch`.
"""

from __future__ import annotations

from rewards import RewardBatch

OPENING = "The user needs skills for "


def follows_pattern(batch: RewardBatch, *, longest: int = 32) -> list[float]:
    """1 for one sentence "The user needs skills for ... ." of fewer than ``longest`` words, else 0 (the rules of G.3)."""
    return [
        float(text.startswith(OPENING) and text.endswith(".") and text.count(". ") == 0 and len(text.split()) < longest)
        for text in batch.rationales
    ]
