"""Approximate vector search on FAISS, for libraries in which exact search takes longer than encoding the request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.dense import DenseIndex, import_faiss

EXACT_VALUES = 100_000_000
"""Documents times components up to which ``auto`` searches exactly: 24 ms a request on one core (docs/serving.md)."""
APPROXIMATE_KINDS = ("ivf", "hnsw")
AUTO_KIND = "ivf"
"""What ``auto`` takes for more: at the same time a request it found more than the graph, and a seed decides all of it."""
TARGET_RECALL = 0.99
"""Of the ten exact results, the share that the effort is raised for until it is found."""
MIN_RECALL = 0.95
"""Below this ``auto`` searches exactly."""
RECALL_K = 10
SAMPLE = 400
"""Requests that recall is measured on: half of them choose the effort, the other half give the figure."""

_LISTS_PER_ROOT = 4
_MIN_LIST = 16
_TRAINING_PER_LIST = 64
_TRAINING_ROUNDS = 10
_LINKS = 32
_BUILD_EFFORT = 64
_EFFORTS = (16, 32, 64, 128, 256, 512, 1024)


class ApproximateIndex(DenseIndex):
    """Inner-product search whose candidates FAISS finds approximately; their scores are exact, as :class:`DenseIndex` takes them.

    ``ivf`` cuts the documents into 4√n lists (k-means, fixed seed) and looks into the nearest ones; ``hnsw`` walks a graph of
    near neighbours. A search ``within`` some documents scans just these, and a row that comes out shorter than ``k`` is searched
    again exactly.

    Args:
        ids, embeddings: see :class:`DenseIndex`.
        kind: ``ivf`` or ``hnsw``.
        effort: lists, or graph candidates, that a search looks at; see :meth:`tune`.

    Raises:
        ValueError: another kind, an effort below 1, or what DenseIndex refuses.
    """

    def __init__(
        self, ids: Sequence[str], embeddings: np.ndarray, kind: str, effort: int = _EFFORTS[0], _loaded: Any = None
    ) -> None:
        if kind not in APPROXIMATE_KINDS:
            raise ValueError(f"kind is {kind!r}; expected one of {', '.join(APPROXIMATE_KINDS)}")
        if effort < 1:
            raise ValueError(f"effort is {effort}; expected a positive number")
        self.kind, self.effort, self._loaded = kind, effort, _loaded
        super().__init__(ids, embeddings)

    def save(self, path: str | Path) -> None:
        """Write FAISS's index, which :meth:`load` reads; ids and embeddings are the caller's to keep."""
        import_faiss().write_index(self._index, str(path))

    @classmethod
    def load(
        cls, path: str | Path, ids: Sequence[str], embeddings: np.ndarray, kind: str, effort: int
    ) -> ApproximateIndex:
        """The index of these embeddings that :meth:`save` wrote.

        Raises:
            ValueError: the file is damaged, or is the index of other embeddings; it is named.
        """
        faiss = import_faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise ValueError(f"{path}: not an index that FAISS can read; build it again ({error})") from error
        wanted = {"ivf": faiss.IndexIVFFlat, "hnsw": faiss.IndexHNSWFlat}[kind]
        if not isinstance(index, wanted) or (index.ntotal, index.d) != np.shape(embeddings):
            raise ValueError(
                f"{path}: {type(index).__name__} of {index.ntotal} vectors with {index.d} components; "
                f"expected {wanted.__name__} of {list(np.shape(embeddings))}"
            )
        return cls(ids, embeddings, kind, effort, _loaded=index)

    def tune(self, queries: np.ndarray) -> float:
        """Choose the smallest effort that finds :data:`TARGET_RECALL` of the exact results, and measure it.

        Args:
            queries: embeddings ``[n, d]`` of at least two requests; the first half chooses, the second is measured.

        Returns:
            Recall@10 against exact search on the second half, also where no effort reached the target.
        """
        if len(queries) < 2:
            raise ValueError(f"{len(queries)} requests to measure recall on; expected at least 2")
        half = len(queries) // 2
        efforts = [effort for effort in _EFFORTS if effort <= self._most_effort] or [self._most_effort]
        for effort in efforts:
            self.effort = effort
            if self.recall(queries[:half]) >= TARGET_RECALL:
                break
        return self.recall(queries[half:])

    def recall(self, queries: np.ndarray, k: int = RECALL_K) -> float:
        """The share of the ``k`` exact results that is found; of equal scores, any is as good as another."""
        everything = np.arange(len(self))
        exact, found = self.search(queries, k, within=everything), self.search(queries, k)
        last = exact.scores[:, -1:] - 1e-9  # the same product, rounded elsewhere
        return float((found.scores >= last).mean())

    @property
    def parameters(self) -> dict[str, int]:
        """What FAISS calls the sizes of the index and the effort of a search."""
        if self.kind == "ivf":
            return {"nlist": int(self._index.nlist), "nprobe": self.effort}
        return {"M": _LINKS, "efConstruction": int(self._index.hnsw.efConstruction), "efSearch": self.effort}

    @property
    def _most_effort(self) -> int:
        """A quarter of the lists, for more would cost as much as half of an exact search; all of them where there are few."""
        if self.kind == "hnsw":
            return _EFFORTS[-1]
        lists = int(self._index.nlist)
        return max(min(lists, _EFFORTS[0]), lists // 4)

    def _make_index(self, faiss: Any) -> Any:
        if self._loaded is not None:
            return self._loaded
        n, d = self._embeddings.shape
        if self.kind == "ivf":
            lists = max(1, min(round(_LISTS_PER_ROOT * math.sqrt(n)), n // _MIN_LIST))
            index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, lists, faiss.METRIC_INNER_PRODUCT)
            index.cp.niter, index.cp.max_points_per_centroid = _TRAINING_ROUNDS, _TRAINING_PER_LIST
            index.cp.min_points_per_centroid = 1  # it would warn of every small library
            index.train(self._embeddings)
        else:
            index = faiss.IndexHNSWFlat(d, _LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _BUILD_EFFORT
        index.add(self._embeddings)
        return index

    def _candidates(self, queries: np.ndarray, k: int, within: np.ndarray | None) -> list[np.ndarray]:
        if within is not None:
            return self._scan(queries, k, within)
        faiss = import_faiss()
        depth = min(k + 16, len(self))
        if self.kind == "ivf":
            parameters = faiss.SearchParametersIVF(nprobe=self.effort)
        else:
            parameters = faiss.SearchParametersHNSW(efSearch=max(self.effort, depth))
        _, positions = self._index.search(queries, depth, params=parameters)
        found = [np.sort(row[row >= 0]) for row in positions]
        short = [i for i, row in enumerate(found) if len(row) < k]
        if short:
            for i, row in zip(short, self._scan(queries[short], k, np.arange(len(self))), strict=True):
                found[i] = row
        return found

    def _scan(self, queries: np.ndarray, k: int, within: np.ndarray) -> list[np.ndarray]:
        """The best of some documents, without an index: one dot product each. All that may tie with the last are among them."""
        whole = len(within) == len(self)
        scores = queries @ (self._embeddings if whole else self._embeddings[within]).T
        last = np.partition(scores, scores.shape[1] - k, axis=1)[:, -k] - self._ties(queries)
        return [within[np.flatnonzero(row >= bound)] for row, bound in zip(scores, last, strict=True)]
