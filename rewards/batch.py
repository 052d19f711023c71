"""What a reward term sees: one batch of rollouts with everything the frozen retriever says about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class RewardBatch:
    """One Stage-II batch: Q queries, R rollouts (Q x n, grouped or not), P pool documents, d embedding dimensions.

    Attributes:
        query_ids: ``[Q]`` record ids.
        queries: ``[Q]`` implicit requests.
        rationales: ``[R]`` decoded rationales, special tokens removed.
        lengths: int64 ``[R]``, |c| of eq. 11: response tokens, end token included, prompt and padding not.
        group: int64 ``[R]``, the query each rollout belongs to.
        document_ids: ``[P]``.
        query_embeddings: ``[Q, d]``, raw views.
        rollout_embeddings: ``[R, d]``, privileged views [q; c].
        document_embeddings: ``[P, d]``.
        positive: int64 ``[Q]``, column of each query's target.
        negatives: bool ``[Q, P]``, N_q of eq. 15.
    All embeddings are float32 and unit length, from the frozen Stage-I retriever h_φ.
    """

    query_ids: list[str]
    queries: list[str]
    rationales: list[str]
    lengths: torch.Tensor
    group: torch.Tensor
    document_ids: list[str]
    query_embeddings: torch.Tensor
    rollout_embeddings: torch.Tensor
    document_embeddings: torch.Tensor
    positive: torch.Tensor
    negatives: torch.Tensor

    @cached_property
    def similarity(self) -> torch.Tensor:
        """h_φ([q; c], s): ``[R, P]``."""
        return self.rollout_embeddings @ self.document_embeddings.T

    @cached_property
    def margin(self) -> torch.Tensor:
        """m([q; c]) of eq. 8 over the pool of eq. 15: ``[R]``."""
        return _margin(self.similarity, self.positive[self.group], self.negatives[self.group])

    @cached_property
    def baseline_margin(self) -> torch.Tensor:
        """m(q) of the raw query, computed once per query: ``[Q]``."""
        return _margin(self.query_embeddings @ self.document_embeddings.T, self.positive, self.negatives)


def _margin(similarity: torch.Tensor, positive: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
    target = similarity.gather(1, positive[:, None]).squeeze(1)
    hardest = similarity.masked_fill(~negatives, float("-inf")).amax(dim=1)
    return target - hardest
