"""Retrieve, then rerank: the first results of any retriever in the order of a cross-encoder's scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tqdm import tqdm

from retrieval.ranking import Ranking, check_k
from retrieval.retriever import Retriever

RERANK_DEPTH = 20
"""Results that the paper's rerankers reorder (Table 4)."""


class PairScorer(Protocol):
    """What reranking needs of a model; :class:`models.reranker.Reranker` is one."""

    def score(self, query: str, documents: Sequence[str]) -> np.ndarray:
        """One number for each document; more is better."""
        ...


@dataclass(frozen=True)
class RerankedRetriever:
    """A retriever whose ``depth`` first results are reordered.

    Attributes:
        first: the retriever.
        scorer: the cross-encoder.
        document_of: a document as the cross-encoder reads it, by its id.
        depth: how many results are scored; what comes after them keeps its order.
    """

    first: Retriever
    scorer: PairScorer
    document_of: Callable[[str], str]
    depth: int = RERANK_DEPTH
    progress: bool = False

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"rerank depth is {self.depth}; expected a positive number of results")

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """The ``k`` best of each request: scores are the cross-encoder's, equal ones in the retriever's order.

        Results below ``depth`` get the lowest score of those above, less one for each place: their order is the retriever's.
        """
        check_k(k)
        found = self.first.search(queries, max(k, self.depth))
        rows: list[tuple[list[str], np.ndarray]] = []
        shown = tqdm(
            zip(queries, found.ids, strict=True),
            total=len(queries),
            desc="Reranking",
            unit="request",
            disable=not self.progress,
        )
        for query, ids in shown:
            top = ids[: self.depth]
            scores = self.scorer.score(query, [self.document_of(s) for s in top]) if top else np.empty(0)
            ranked, values = rerank_row(ids, scores)
            rows.append((ranked[:k], values[:k]))
        return Ranking.from_rows(rows)


def rerank_row(ids: Sequence[str], scores: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Order the first ``len(scores)`` ids by score, best first and equals as they were; the others follow as they were.

    Returns:
        All ids, and descending scores as :meth:`RerankedRetriever.search` gives them, float64.

    Raises:
        ValueError: a score that is not finite.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(scores).all():
        bad = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(f"the reranker scores document {ids[bad]!r} with {scores[bad]}; expected finite scores")
    order = np.argsort(-scores, kind="stable")
    rest = len(ids) - len(scores)
    below = (scores.min() if len(scores) else 0.0) - np.arange(1, rest + 1)
    names = list(ids)
    return [names[i] for i in order.tolist()] + names[len(scores) :], np.concatenate([scores[order], below])
