"""Search an index: dense, BM25, fused or reranked, in the whole library or in one domain, from any number of threads."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from data_pipeline.corpus import Skill
from retrieval.ranking import Ranking, check_k
from retrieval.reranked import RERANK_DEPTH, rerank_row
from serving.hits import SearchHit, SkillNotFoundError, close_ids, first_rankings, to_hits
from serving.index import IndexInfo, SkillIndex, load_model, open_index
from serving.versions import current_version

if TYPE_CHECKING:
    import numpy as np

    from models.encoder import SentenceTransformerEncoder
    from models.reranker import Reranker

__all__ = ["SearchHit", "SkillNotFoundError", "SkillSearcher"]


@dataclass(frozen=True)
class _Opened:
    """What a search reads: replaced as a whole, so that no search sees half of a new version."""

    index: SkillIndex
    encoder: SentenceTransformerEncoder | None
    info: IndexInfo


class SkillSearcher:
    """Opened by :meth:`open`; any number of threads may search it, during :meth:`reload` too. A model takes a batch at a time."""

    def __init__(
        self,
        root: str | Path,
        opened: _Opened,
        *,
        scorer: Reranker | None,
        model: str | Path | None,
        reranker: str | None,
        fusion_weight: float | None,
        batch_size: int,
        device: str | None,
    ) -> None:
        self.root = Path(root)
        self._opened = opened
        self._scorer = scorer
        self._model, self._reranker, self._fusion_weight = model, reranker, fusion_weight
        self._batch_size, self._device = batch_size, device
        # A fast tokenizer must not be used by two threads at once, and two forward passes share the same cores or GPU.
        self._encoding, self._reranking, self._reloading = threading.Lock(), threading.Lock(), threading.Lock()

    @classmethod
    def open(
        cls,
        index_dir: str | Path,
        *,
        model: str | Path | None = None,
        reranker: str | Path | None = None,
        load_reranker: bool = True,
        fusion_weight: float | None = None,
        batch_size: int = 32,
        device: str | None = None,
    ) -> SkillSearcher:
        """Open the current version of an index with its model and, where one is recorded or given, a reranker.

        Args:
            model: where the model is now, if not where it was; it must be the one that encoded the documents.
            reranker: instead of the one recorded with the index; see :func:`evaluation.reranking.rerank`.
            load_reranker: false leaves the recorded one unloaded.
            fusion_weight: instead of the index's, for hybrid searches.
            batch_size: requests encoded at once.
            device: a torch device for the models; the GPU where there is one, else the CPU.

        Raises:
            IndexNotFoundError, IndexCorruptError: no index, or a damaged one; the file is named.
            ModelMismatchError: the model is gone or has changed.
            ValueError: a weight out of range, or a reranker that cannot be used.
        """
        if fusion_weight is not None and not 0 <= fusion_weight <= 1:
            raise ValueError(
                f"fusion weight is {fusion_weight}; expected a number between 0 (BM25 alone) and 1 (dense alone)"
            )
        index = open_index(index_dir)
        encoder = load_model(index.info, model, device) if index.dense is not None else None
        used = reranker if reranker is not None else index.info.reranker if load_reranker else None
        scorer = None
        if used is not None:
            from evaluation.reranking import load_reranker as load

            scorer = load(used, device=device)
        searcher = cls(
            index_dir,
            _Opened(index, encoder, index.info),
            scorer=scorer,
            model=model,
            reranker=None if used is None else str(used),
            fusion_weight=fusion_weight,
            batch_size=batch_size,
            device=device,
        )
        searcher._opened = searcher._with(index, encoder)
        return searcher

    @property
    def version(self) -> str:
        """Id of the opened version of the index."""
        return self._opened.info.version

    @property
    def info(self) -> IndexInfo:
        """What is in the index; weight and reranker are those in use."""
        return self._opened.info

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        hybrid: bool = False,
        rerank: bool = False,
        rerank_depth: int = RERANK_DEPTH,
        domain: str | None = None,
    ) -> list[SearchHit]:
        """The ``k`` best skills for a request, best first; fewer where there are fewer. See :meth:`search_batch`."""
        return self.search_batch([query], k, hybrid=hybrid, rerank=rerank, rerank_depth=rerank_depth, domain=domain)[0]

    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        hybrid: bool = False,
        rerank: bool = False,
        rerank_depth: int = RERANK_DEPTH,
        domain: str | None = None,
        embeddings: np.ndarray | None = None,
        timings: dict[str, float] | None = None,
    ) -> list[list[SearchHit]]:
        """The ``k`` best skills for each request; all requests go through the encoder together.

        Args:
            hybrid: fuse the model's ranking with BM25's.
            rerank: have the reranker order the first ``rerank_depth`` results; what comes after them keeps its order.
            domain: rank the skills of this domain alone, see :func:`serving.index.skill_domain`; exactly, whatever the kind of
                the index.
            embeddings: ``[n, d]`` of the requests, from :meth:`encode` of the same version (see :meth:`pinned`).
            timings: seconds of ``encode``, ``search`` and ``rerank`` are added to it.

        Raises:
            ValueError: an empty request, a number out of range, a domain that no skill has, ``hybrid`` without a model or
                weight, or ``rerank`` without a reranker.
        """
        opened = self._opened  # one version for the whole call
        self._check(opened, queries, k, hybrid, rerank, rerank_depth)
        if not queries:
            return []
        queries = [_readable(query) for query in queries]
        within = None if domain is None else opened.index.within(domain)
        timings = {} if timings is None else timings
        if embeddings is None:
            with _timed(timings, "encode"):
                embeddings = self._encode(opened, queries)
        elif len(embeddings) != len(queries):
            raise ValueError(f"{len(embeddings)} embeddings for {len(queries)} requests; expected one each")
        with _timed(timings, "search"):
            depth = max(k, rerank_depth) if rerank else k
            weight = opened.info.fusion_weight if hybrid else None
            rankings = first_rankings(opened.index, queries, embeddings, depth, weight, within)
        ranking = next(reversed(rankings.values()))
        if rerank:
            with _timed(timings, "rerank"):
                rankings["rerank"], ranking = self._rerank(opened.index, queries, ranking, rerank_depth)
        return to_hits(opened.index, ranking, k, rankings)

    def pinned(self) -> SkillSearcher:
        """This searcher on the version that it has open now, whatever :meth:`reload` opens later; models are shared."""
        return copy.copy(self)

    def encode(self, queries: Sequence[str]) -> np.ndarray | None:
        """Embeddings ``[n, d]`` of requests for :meth:`search_batch`; None where the index has no model."""
        return self._encode(self._opened, [_readable(query) for query in queries])

    def skill(self, skill_id: str) -> Skill:
        """The whole skill of that id.

        Raises:
            SkillNotFoundError: there is none; the message names ids that are spelt nearly so.
        """
        skills = self._opened.index.skills
        if skill_id not in skills:
            raise SkillNotFoundError(skill_id, close_ids(skill_id, skills.ids), len(skills))
        return skills.get(skill_id)

    def reload(self) -> bool:
        """Open the index's current version if it is a newer one; searches go on with the old one until it is ready.

        The models stay loaded where the new version has the same.

        Returns:
            Whether a newer version was opened.

        Raises:
            IndexNotFoundError, IndexCorruptError, ModelMismatchError: the newer version cannot be used; the old one still can.
        """
        with self._reloading:
            before = self._opened
            if current_version(self.root) == before.info.version:
                return False
            index = open_index(self.root)
            encoder = before.encoder
            if index.dense is None:
                encoder = None
            elif encoder is None or encoder.fingerprint != index.info.fingerprint:
                moved = self._model if index.info.model == before.index.info.model else None
                encoder = load_model(index.info, moved, self._device)
            self._opened = self._with(index, encoder)
            return True

    def _with(self, index: SkillIndex, encoder: SentenceTransformerEncoder | None) -> _Opened:
        weight = index.info.fusion_weight if self._fusion_weight is None else self._fusion_weight
        info = dataclasses.replace(index.info, fusion_weight=weight, reranker=self._reranker)
        return _Opened(index, encoder, info)

    def _check(
        self, opened: _Opened, queries: Sequence[str], k: int, hybrid: bool, rerank: bool, rerank_depth: int
    ) -> None:
        if isinstance(queries, str):
            raise ValueError("search_batch takes a list of requests; for one request there is search")
        check_k(k)
        for number, query in enumerate(queries):
            if not query.strip():
                which = f"request {number} of {len(queries)}" if len(queries) > 1 else "the request"
                raise ValueError(f"{which} is empty; expected a sentence that says what is needed")
        if hybrid and opened.encoder is None:
            raise ValueError("hybrid fuses BM25 with a model; this index was built with bm25 alone")
        if hybrid and opened.info.fusion_weight is None:
            raise ValueError(
                "the weight of the hybrid is unknown, for none is stored with the model; open or build the index with "
                "a fusion weight between 0 (BM25 alone) and 1 (dense alone)"
            )
        if rerank and self._scorer is None:
            raise ValueError("no reranker is open; build the index with --reranker, or open it with reranker=")
        if rerank and rerank_depth < 1:
            raise ValueError(f"rerank depth is {rerank_depth}; expected a positive number of results")

    def _encode(self, opened: _Opened, queries: Sequence[str]) -> np.ndarray | None:
        if opened.index.dense is None or opened.encoder is None:
            return None
        with self._encoding:
            return opened.encoder.encode_queries(queries, batch_size=self._batch_size)

    def _rerank(self, index: SkillIndex, queries: Sequence[str], first: Ranking, depth: int) -> tuple[Ranking, Ranking]:
        """The reranker's scores of the results that it read, and the ranking of all, as RerankedRetriever gives it."""
        assert self._scorer is not None
        read, ranked = [], []
        for query, ids in zip(queries, first.ids, strict=True):
            top = [index.skills.get(skill_id) for skill_id in ids[:depth]]
            documents = [self._scorer.form.document(skill.name, skill.description, skill.body) for skill in top]
            with self._reranking:
                scores = self._scorer.score(query, documents)
            read.append((ids[:depth], scores))
            ranked.append(rerank_row(ids, scores))
        return Ranking.from_rows(read), Ranking.from_rows(ranked)


@contextlib.contextmanager
def _timed(timings: dict[str, float], phase: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        timings[phase] = timings.get(phase, 0.0) + time.perf_counter() - started


def _readable(query: str) -> str:
    """Half a surrogate pair, which JSON can hold and no tokenizer takes, becomes a question mark."""
    return query.encode("utf-8", "replace").decode("utf-8")
