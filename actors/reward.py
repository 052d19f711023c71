"""The reward actor: scores a whole batch of rollouts against its candidate pool (E.4, eqs. 8-15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch

from configs.schema import RewardConfig
from models.views import View, document_view, privileged_view, raw_view
from rewards import RewardBatch, build_pool, load_terms, total_reward

Encode = Callable[[list[View], int], np.ndarray]
"""``(views, max_length) -> [N, d]``: the frozen retriever, in this process or behind a Ray handle."""


@dataclass(frozen=True)
class RewardRequest:
    """One batch to score: Q queries with their candidates, R rollouts.

    Attributes:
        query_ids, queries, positive_ids: ``[Q]``.
        negative_ids: ``[Q]`` lists of explicit negatives.
        documents: serialized text of every skill id that is named, or only of those the actor has not seen yet.
        rationales, lengths, group: ``[R]``, see :class:`rewards.RewardBatch`.
    """

    query_ids: list[str]
    queries: list[str]
    positive_ids: list[str]
    negative_ids: list[list[str]]
    documents: dict[str, str]
    rationales: list[str]
    lengths: list[int]
    group: list[int]


@dataclass(frozen=True)
class RewardResult:
    """``total[R]`` and every term's values by name, margins, and what to log."""

    total: torch.Tensor
    terms: dict[str, torch.Tensor]
    metrics: dict[str, float]


class RewardScorer:
    """Scores batches; document embeddings are kept by skill id for the whole run, since the retriever is frozen."""

    def __init__(
        self,
        config: RewardConfig,
        encode: Encode,
        *,
        max_query_length: int,
        document_max_length: int,
        exclusions: Mapping[str, Set[str]] | None = None,
    ):
        self.config = config
        self.encode = encode
        self.max_query_length = max_query_length
        self.document_max_length = document_max_length
        self.exclusions = exclusions if config.mask_exclusions else None
        self.terms = load_terms(config.terms)
        self._documents: dict[str, np.ndarray] = {}

    def ready(self) -> list[str]:
        """The names of the terms, once they are resolved."""
        return [term.name for term in self.terms]

    def score(self, request: RewardRequest) -> RewardResult:
        """Rewards of all rollouts of a batch.

        Raises:
            RewardError: a term raised or gave a value that is not finite.
            KeyError: a candidate without a document.
        """
        start = time.perf_counter()
        pool = build_pool(
            request.positive_ids,
            request.negative_ids,
            mask_positive=self.config.mask_positive,
            exclusions=self.exclusions,
        )
        encoded = self._encode_documents(pool.ids, request.documents)
        queries = [raw_view(q) for q in request.queries]
        augmented = [
            privileged_view(request.queries[g], c) for g, c in zip(request.group, request.rationales, strict=True)
        ]
        embeddings = torch.tensor(self.encode([*queries, *augmented], self.max_query_length))
        batch = RewardBatch(
            query_ids=request.query_ids,
            queries=request.queries,
            rationales=request.rationales,
            lengths=torch.tensor(request.lengths, dtype=torch.long),
            group=torch.tensor(request.group, dtype=torch.long),
            document_ids=pool.ids,
            query_embeddings=embeddings[: len(queries)],
            rollout_embeddings=embeddings[len(queries) :],
            document_embeddings=torch.from_numpy(np.stack([self._documents[s] for s in pool.ids])),
            positive=pool.positive,
            negatives=pool.negatives,
        )
        total, values = total_reward(batch, self.terms)
        metrics = {
            "reward/total/mean": total.mean().item(),
            "reward/total/std": total.std(unbiased=False).item(),
            "retrieval/margin": batch.margin.mean().item(),
            "retrieval/baseline_margin": batch.baseline_margin.mean().item(),
            "retrieval/pool_documents": float(len(pool.ids)),
            "retrieval/documents_encoded": float(encoded),
            "response/length_mean": batch.lengths.float().mean().item(),
            "response/length_max": float(batch.lengths.max()),
        }
        for name, value in values.items():
            metrics[f"reward/{name}/mean"] = value.mean().item()
            metrics[f"reward/{name}/std"] = value.std(unbiased=False).item()
        metrics["time/reward"] = time.perf_counter() - start
        return RewardResult(total, values, metrics)

    def _encode_documents(self, ids: Sequence[str], documents: Mapping[str, str]) -> int:
        """Embed the documents not seen before; returns how many."""
        new = [s for s in ids if s not in self._documents]
        absent = [s for s in new if s not in documents]
        if absent:
            raise KeyError(f"no document for candidate skill {absent[0]!r} ({len(absent)} missing)")
        if new:
            embedded = self.encode([document_view(documents[s]) for s in new], self.document_max_length)
            self._documents.update(zip(new, embedded, strict=True))
        return len(new)
