"""Retrieval rewards: the candidate pool, the terms and their weighted sum (eqs. 8-15)."""

from __future__ import annotations

from rewards.batch import RewardBatch
from rewards.pool import CandidatePool, build_pool
from rewards.terms import RewardError, RewardTerm, gain, length, load_terms, margin, total_reward

__all__ = [
    "CandidatePool",
    "RewardBatch",
    "RewardError",
    "RewardTerm",
    "build_pool",
    "gain",
    "length",
    "load_terms",
    "margin",
    "total_reward",
]
