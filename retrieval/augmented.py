"""Inference-time augmentation: requests are searched together with a rationale, written beforehand (Tables 3 and 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from retrieval.bm25 import BM25Index
from retrieval.fusion import fuse, fuse_lists
from retrieval.ranking import Ranking, check_k
from retrieval.retriever import FUSION_DEPTH, DenseRetriever, HybridRetriever, Retriever


@runtime_checkable
class AugmentingEncoder(Protocol):
    """An encoder with an input of its own for a request and its rationale."""

    def encode_augmented(
        self, requests: Sequence[str], rationales: Sequence[str], batch_size: int = 32, progress: bool = False
    ) -> np.ndarray: ...


@dataclass(frozen=True)
class AugmentedRetriever:
    """A retriever whose requests carry their rationales: [q; c] of the paper.

    A dense retriever encodes its model's augmented input. BM25, and any other retriever, gets the rationale appended to the
    request. A hybrid does both and fuses. A request with several rationales is searched with each, and the lists are fused
    (Σ 1/(60 + rank)). A request without one is searched as it is.

    Attributes:
        retriever: what is searched.
        rationales: by request; an empty text is a rationale like any other.
    """

    retriever: Retriever
    rationales: Mapping[str, Sequence[str]]

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """The ``k`` best of each request; scores are the retriever's, or fused ones where a request has several rationales."""
        check_k(k)
        several = any(len(self.rationales.get(query, ())) > 1 for query in queries)
        depth = max(k, FUSION_DEPTH) if several else k
        plain = [place for place, query in enumerate(queries) if not self.rationales.get(query)]
        pairs = [
            (place, query, rationale)
            for place, query in enumerate(queries)
            for rationale in self.rationales.get(query, ())
        ]
        lists: list[list[tuple[list[str], np.ndarray]]] = [[] for _ in queries]
        for place, row in zip(plain, _rows(self.retriever.search([queries[p] for p in plain], depth)), strict=True):
            lists[place].append(row)
        asked, rationales = [pair[1] for pair in pairs], [pair[2] for pair in pairs]
        found = search_augmented(self.retriever, asked, rationales, depth, matched_only=several)
        for (place, *_), row in zip(pairs, _rows(found), strict=True):
            lists[place].append(row)
        rows = [own[0] if len(own) == 1 else fuse_lists([ids for ids, _ in own], k) for own in lists]
        return Ranking.from_rows([(ids[:k], scores[:k]) for ids, scores in rows])


def search_augmented(
    retriever: Retriever, requests: Sequence[str], rationales: Sequence[str], k: int, matched_only: bool = False
) -> Ranking:
    """The ``k`` best of requests with one rationale each; ``matched_only`` as in :meth:`retrieval.bm25.BM25Index.search`."""
    if not requests:
        return Ranking([], np.zeros((0, k)))
    if isinstance(retriever, HybridRetriever):
        depth = max(k, FUSION_DEPTH)
        lexical = retriever.bm25.search(appended(requests, rationales), depth, matched_only=True)
        return fuse(search_augmented(retriever.dense, requests, rationales, depth), lexical, retriever.weight, k)
    if isinstance(retriever, DenseRetriever) and isinstance(retriever.encoder, AugmentingEncoder):
        embeddings = retriever.encoder.encode_augmented(
            requests, rationales, batch_size=retriever.batch_size, progress=retriever.progress
        )
        return retriever.index.search(embeddings, k)
    texts = appended(requests, rationales)
    if isinstance(retriever, BM25Index):
        return retriever.search(texts, k, matched_only=matched_only)
    return retriever.search(texts, k)


def appended(requests: Sequence[str], rationales: Sequence[str]) -> list[str]:
    """Each rationale on a line after its request."""
    return [f"{request}\n{rationale}" for request, rationale in zip(requests, rationales, strict=True)]


def _rows(ranking: Ranking) -> list[tuple[list[str], np.ndarray]]:
    return [(ids, np.asarray(scores[: len(ids)])) for ids, scores in zip(ranking.ids, ranking.scores, strict=True)]
