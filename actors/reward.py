"""The reward actor: scores a whole batch of rollouts against its candidate pool (E.4, eqs. 8-15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

import numpy as np
import torch

from configs.schema import RewardConfig
from models.views import View, document_view, privileged_view, raw_view
from rewards import RewardBatch, build_pool, load_terms, total_reward

Encode = Callable[[list[View], int], np.ndarray]
"""``(views, max_length) -> [N, d]``: the frozen retriever, in this process or a pool of them."""


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


@dataclass(frozen=True)
class Embeddings:
    """What the frozen retriever says of a request.

    Attributes:
        documents: of every candidate, by skill id.
        views: ``[Q + R, d]``: the raw view of each query, then the privileged view of each rollout.
        encoded: how many of the documents were new.
    """

    documents: dict[str, np.ndarray]
    views: np.ndarray
    encoded: int


class RequestEmbedder:
    """Encodes requests; documents are encoded once and kept by skill id for the whole run, since the retriever is frozen."""

    def __init__(self, encode: Encode, *, max_query_length: int, document_max_length: int):
        self.encode = encode
        self.max_query_length = max_query_length
        self.document_max_length = document_max_length
        self._documents: dict[str, np.ndarray] = {}
        self._texts: dict[str, str] = {}

    def embed(self, request: RewardRequest) -> Embeddings:
        """Embeddings of the request's candidates and views.

        Raises:
            KeyError: a candidate that has not been seen yet and comes without a document.
            ValueError: a skill id that had another document before: records of two versions of a library.
        """
        for skill_id, text in request.documents.items():
            if self._texts.setdefault(skill_id, text) != text:
                raise ValueError(
                    f"skill {skill_id!r} has two documents among the training records, {self._texts[skill_id][:60]!r}… and "
                    f"{text[:60]!r}…; expected one document a skill"
                )
        candidates = zip(request.positive_ids, request.negative_ids, strict=True)
        ids = list(dict.fromkeys(s for positive, negatives in candidates for s in (positive, *negatives)))
        new = [s for s in ids if s not in self._documents]
        absent = [s for s in new if s not in request.documents]
        if absent:
            raise KeyError(f"no document for candidate skill {absent[0]!r} ({len(absent)} missing)")
        if new:
            embedded = self.encode([document_view(request.documents[s]) for s in new], self.document_max_length)
            self._documents.update(zip(new, embedded, strict=True))
        views = [raw_view(q) for q in request.queries]
        views += [
            privileged_view(request.queries[g], c) for g, c in zip(request.group, request.rationales, strict=True)
        ]
        documents = {s: self._documents[s] for s in ids}
        return Embeddings(documents, self.encode(views, self.max_query_length), len(new))


class EmbeddedScorer:
    """Scores batches from embeddings; keeps nothing between them."""

    def __init__(self, config: RewardConfig, exclusions: Mapping[str, Set[str]] | None = None):
        self.config = config
        self.exclusions = exclusions if config.mask_exclusions else None
        self.terms = load_terms(config.terms)

    def ready(self) -> list[str]:
        """The names of the terms, once they are resolved."""
        return [term.name for term in self.terms]

    def score_embedded(self, request: RewardRequest, embeddings: Embeddings) -> RewardResult:
        """Rewards of all rollouts of a batch.

        Args:
            request: its documents are not needed.
            embeddings: of :meth:`RequestEmbedder.embed`.

        Raises:
            RewardError: a term raised or gave a value that is not finite.
        """
        pool = build_pool(
            request.positive_ids,
            request.negative_ids,
            mask_positive=self.config.mask_positive,
            exclusions=self.exclusions,
        )
        views = torch.tensor(embeddings.views)
        batch = RewardBatch(
            query_ids=request.query_ids,
            queries=request.queries,
            rationales=request.rationales,
            lengths=torch.tensor(request.lengths, dtype=torch.long),
            group=torch.tensor(request.group, dtype=torch.long),
            document_ids=pool.ids,
            query_embeddings=views[: len(request.queries)],
            rollout_embeddings=views[len(request.queries) :],
            document_embeddings=torch.from_numpy(np.stack([embeddings.documents[s] for s in pool.ids])),
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
            "retrieval/documents_encoded": float(embeddings.encoded),
            "response/length_mean": batch.lengths.float().mean().item(),
            "response/length_max": float(batch.lengths.max()),
        }
        for name, value in values.items():
            metrics[f"reward/{name}/mean"] = value.mean().item()
            metrics[f"reward/{name}/std"] = value.std(unbiased=False).item()
        return RewardResult(total, values, metrics)
