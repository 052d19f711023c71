"""Recall on held-out requests during training, and the fusion weight chosen on them at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from configs.schema import ValidationConfig
from data_pipeline.corpus import SkillCorpus
from data_pipeline.heldout import is_heldout
from data_pipeline.records import SELF_PREFIX, Stage1Record, Stage2Record
from evaluation.fusion_weight import choose_fusion_weight
from evaluation.metrics import evaluate_ranking
from models.views import View, document_view, format_of_document, raw_view
from retrieval import BM25Index, DenseIndex, Ranking

EncodeViews = Callable[[Sequence[View], int], np.ndarray]
R = TypeVar("R", bound=Stage1Record)


@dataclass(frozen=True)
class HeldOutSet:
    """Requests that no update sees, and the documents they are retrieved from.

    Attributes:
        query_ids, queries, targets: ``[Q]``.
        document_ids, documents: ``[D]``, every target among them.
        original_queries: ``[Q]``, the explicit wordings of implicit requests; empty in Stage I.
    """

    query_ids: list[str]
    queries: list[str]
    targets: list[str]
    document_ids: list[str]
    documents: list[str]
    original_queries: list[str] = field(default_factory=list)

    @property
    def qrels(self) -> dict[str, dict[str, int]]:
        return {q: {t: 1} for q, t in zip(self.query_ids, self.targets, strict=True)}

    def dense_ranking(self, encode: EncodeViews, max_length: int, document_max_length: int, depth: int) -> Ranking:
        """Rank with the current policy: documents are encoded anew, never taken from the reward's cache."""
        documents = encode([document_view(d) for d in self.documents], document_max_length)
        queries = encode([raw_view(q) for q in self.queries], max_length)
        return DenseIndex(self.document_ids, documents).search(queries, depth)

    def recall(self, encode: EncodeViews, max_length: int, document_max_length: int) -> dict[str, float]:
        """``val/recall@1``, ``@5``, ``@10`` and ``val/ndcg@10``."""
        ranking = self.dense_ranking(encode, max_length, document_max_length, depth=10)
        metrics = evaluate_ranking(ranking, self.query_ids, self.qrels)
        return {f"val/{name}": metrics[name] for name in ("recall@1", "recall@5", "recall@10", "ndcg@10")}

    def fusion_weight(self, encode: EncodeViews, max_length: int) -> float:
        """The weight of the dense ranking in the BM25 fusion that is best on these requests (recall@10), in both wordings.

        BM25 finds explicit requests by their words and is weak on implicit ones: a weight chosen on the rewrites alone would
        give up more on the former than it gains on the latter. ``max_length`` is the exported retriever's, so that the
        weight fits what will be searched.
        """
        asked = self._in_both_wordings()
        dense = asked.dense_ranking(encode, max_length, max_length, depth=100)
        bm25 = BM25Index(asked.document_ids, asked.documents).search(asked.queries, 100, matched_only=True)
        return choose_fusion_weight(dense, bm25, asked.qrels, asked.query_ids).weight

    def _in_both_wordings(self) -> HeldOutSet:
        if not self.original_queries:
            return self
        return replace(
            self,
            query_ids=[*self.query_ids, *(f"{query_id}/original" for query_id in self.query_ids)],
            queries=[*self.queries, *self.original_queries],
            targets=[*self.targets, *self.targets],
        )


def split_heldout(records: Sequence[R], fraction: float) -> tuple[list[R], list[R]]:
    """(training, held-out) records; all records of a skill fall on one side, by the hash of its id."""
    if fraction <= 0:
        return list(records), []
    training = [r for r in records if not is_heldout(r.positive_id, fraction)]
    return training, [r for r in records if is_heldout(r.positive_id, fraction)]


def build_heldout_set(
    heldout: Sequence[Stage1Record], training: Sequence[Stage1Record], config: ValidationConfig
) -> HeldOutSet | None:
    """The held-out requests with their candidate documents; None when nothing is held out."""
    if not heldout:
        return None
    written = [r for r in heldout if not r.record_id.startswith(SELF_PREFIX)]  # a document's own words would flatter
    chosen = sorted(written or heldout, key=lambda r: _hash(r.record_id))[: config.max_queries]
    if config.corpus_file:
        corpus = SkillCorpus.from_jsonl(Path(config.corpus_file))
        documents = dict(zip(corpus.ids, corpus.documents(format_of_document(chosen[0].positive)), strict=True))
    else:
        documents = {}
        for record in [*heldout, *training]:
            documents.setdefault(record.positive_id, record.positive)
            for skill_id, text in zip(record.negative_ids, record.negatives, strict=True):
                documents.setdefault(skill_id, text)
    targets = {r.positive_id for r in chosen}
    for record in chosen:
        documents.setdefault(record.positive_id, record.positive)
    others = sorted((s for s in documents if s not in targets), key=_hash)
    kept = targets | set(others[: max(0, config.max_documents - len(targets))])
    ids = [s for s in documents if s in kept]
    return HeldOutSet(
        [r.record_id for r in chosen],
        [r.query for r in chosen],
        [r.positive_id for r in chosen],
        ids,
        [documents[s] for s in ids],
        [r.original_query for r in chosen if isinstance(r, Stage2Record)],
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
