"""Exact vector search by inner product, on FAISS."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from retrieval.ranking import Ranking, check_ids, check_k

_GPU_LIMIT = 2048
"""Results per query that FAISS returns on a GPU; larger requests go to the index on the CPU."""
_GPU_LOCK = threading.Lock()
"""FAISS on a GPU takes one thread at a time; on the CPU any number may search."""
_TIE = 1e-5
"""Scores of the library this close may be ties: they come from blocked float32 products. Grows with the vectors' length."""
_QUERY_BLOCK = 4096
"""Queries searched at once: FAISS multiplies as many at a time, and smaller matrices cost it half as much again."""


class DenseIndex:
    """Exact inner-product search over all embeddings (FAISS ``IndexFlatIP``; on the GPU if FAISS has one).

    FAISS finds the candidates; their scores are then taken in float64, one dot product each. So a query is
    ranked alike alone and in a batch, equal embeddings have equal scores, and these are ranked in corpus
    order.

    Args:
        ids: document ids, in corpus order.
        embeddings: ``[n, d]``, rows of unit length if the inner product is to be the cosine.

    Raises:
        ValueError: no documents, an id twice, not a matrix, or a value that is not finite (the row and its id
            are named).
    """

    def __init__(self, ids: Sequence[str], embeddings: np.ndarray) -> None:
        self._embeddings = _matrix(embeddings, "embeddings")
        self.ids = check_ids(ids, len(self._embeddings), "embeddings")
        _check_finite(self._embeddings, "embedding", self.ids)
        self._longest = max(1.0, float(np.linalg.norm(self._embeddings, axis=1).max()))
        self._gpu_index: Any = None
        self._index: Any = self._make_index(import_faiss())

    def _make_index(self, faiss: Any) -> Any:
        index = faiss.IndexFlatIP(self.dimension)
        index.add(self._embeddings)
        if hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0:
            self._gpu_index = faiss.index_cpu_to_all_gpus(index)
        return index

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dimension(self) -> int:
        """Components of an embedding."""
        return int(self._embeddings.shape[1])

    @property
    def embeddings(self) -> np.ndarray:
        """``[n, d]`` in corpus order; not to be written to."""
        return self._embeddings

    def search(
        self, query_embeddings: np.ndarray, k: int, progress: bool = False, within: np.ndarray | None = None
    ) -> Ranking:
        """The ``k`` best documents (at most all) of each row of ``query_embeddings[n_queries, d]``.

        Args:
            within: positions of the documents to rank, ascending; None: all. The others do not exist for this search.

        Raises:
            ValueError: ``k`` is not positive, another ``d`` than the index's, or a value that is not finite.
        """
        check_k(k)
        queries = _matrix(query_embeddings, "query embeddings")
        if queries.shape[1] != self.dimension:
            raise ValueError(
                f"query embeddings have {queries.shape[1]} components, the index has {self.dimension}; "
                "expected both from one encoder"
            )
        _check_finite(queries, "query embedding")
        k = min(k, len(self.ids) if within is None else len(within))
        if k == 0:
            return Ranking([[] for _ in queries], np.zeros((len(queries), 0)))
        rows = []
        blocks = range(0, len(queries), _QUERY_BLOCK)
        for start in tqdm(blocks, desc="searching", disable=not progress):
            block = queries[start : start + _QUERY_BLOCK]
            for query, candidates in zip(block, self._candidates(block, k, within), strict=True):
                scores = self._embeddings[candidates].astype(np.float64) @ query.astype(np.float64)
                best = np.argsort(-scores, kind="stable")[:k]
                rows.append(([self.ids[i] for i in candidates[best]], scores[best]))
        if not rows:
            return Ranking([], np.zeros((0, k)))
        return Ranking.from_rows(rows)

    def _candidates(self, queries: np.ndarray, k: int, within: np.ndarray | None) -> list[np.ndarray]:
        """Per query, in corpus order, positions of its ``k`` best and of any that may tie with the last."""
        count = len(self.ids) if within is None else len(within)
        out: list[np.ndarray] = [np.zeros(0, dtype=np.int64)] * len(queries)
        ties = self._ties(queries)
        open_rows = np.arange(len(queries))
        depth = min(k + 16, count)
        while len(open_rows):
            scores, positions = self._faiss_search(queries[open_rows], depth, within)
            settled = (scores[:, k - 1] - scores[:, -1] > ties[open_rows]) | (depth == count)
            for row in np.flatnonzero(settled):
                out[open_rows[row]] = np.sort(positions[row])
            open_rows = open_rows[~settled]
            depth = min(2 * depth, count)
        return out

    def _ties(self, queries: np.ndarray) -> np.ndarray:
        """How near, per query, two scores of the library are that may be equal."""
        return _TIE * self._longest * np.maximum(1.0, np.linalg.norm(queries, axis=1))

    def _faiss_search(
        self, queries: np.ndarray, depth: int, within: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if within is not None:
            faiss = import_faiss()
            chosen = np.zeros(len(self.ids), dtype=bool)
            chosen[within] = True
            # A bitmap: FAISS asks it for every document, and its set of ids answers at half the speed.
            selector = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
            return self._index.search(queries, depth, params=faiss.SearchParameters(sel=selector))
        if self._gpu_index is not None and depth <= _GPU_LIMIT:
            with _GPU_LOCK:
                return self._gpu_index.search(queries, depth)
        return self._index.search(queries, depth)


def import_faiss() -> Any:
    """FAISS; ImportError says which extra brings it."""
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "vector search needs FAISS: install the extra skillreason[cpu] or skillreason[gpu]"
        ) from error
    return faiss


def _matrix(values: np.ndarray, what: str) -> np.ndarray:
    matrix = np.ascontiguousarray(values, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise ValueError(f"{what} have shape {np.shape(values)}; expected [n, d]")
    return matrix


def _check_finite(matrix: np.ndarray, what: str, ids: Sequence[str] | None = None) -> None:
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(bad):
        row = int(bad[0])
        whose = f" ({ids[row]!r})" if ids is not None else ""
        raise ValueError(
            f"{what} in row {row}{whose} has a NaN or infinite value ({len(bad)} such rows); expected finite numbers"
        )
