"""One model on one benchmark: rank every request against the corpus, and write metrics and rankings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import BenchQuery, read_bench
from evaluation.metrics import evaluate_ranking
from models.folders import write_json
from retrieval.ranking import Ranking
from retrieval.retriever import HybridRetriever, open_retriever, split_model_spec

DEFAULT_KS = (1, 5, 10)


def evaluate(
    model_spec: str | Path,
    corpus_path: str | Path,
    bench_path: str | Path,
    out_path: str | Path | None = None,
    *,
    ks: Sequence[int] = DEFAULT_KS,
    depth: int = 100,
    cache_dir: str | Path | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    fusion_weight: float | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> dict[str, Any]:
    """Evaluate ``bm25``, a model folder or hub id, or ``hybrid:FOLDER``; return and write the result.

    The result has ``metrics`` (fractions, see :func:`evaluation.metrics.evaluate_ranking`), ``model``,
    ``corpus``, ``bench``, ``n_queries``, ``n_skills``, ``seconds`` (``read``, ``index``, ``search``,
    ``total``), ``fusion_weight`` for a hybrid, and ``queries``: per request ``query_id``, the ``depth`` best
    ``ids`` and their ``scores``.

    Args:
        model_spec: what to evaluate.
        corpus_path: skills as JSONL, plain or gzipped.
        bench_path: requests as JSONL: ``query_id``, ``query``, and ``skill_id``, ``skill_ids`` or ``qrels``.
        out_path: JSON file to write; none if not given.
        ks: depths of recall and NDCG.
        depth: length of each ranking; all metrics but MRR need it to reach their depth.
        cache_dir: embedding cache, see :func:`retrieval.embedding_cache.default_cache_dir`.
        max_length, dtype: see :func:`models.encoder.load_encoder`.
        fusion_weight: the hybrid's weight; the one stored with the model if not given.
        batch_size: inputs encoded at once.
        progress: show progress bars.

    Raises:
        ValueError: a target that the corpus lacks, a depth below a metric's, or what a reader or the model
            refuses.
        FileNotFoundError: a file or the model is missing.
    """
    split_model_spec(model_spec)
    if depth < max([*ks, 10]):
        raise ValueError(f"depth is {depth}; expected at least {max([*ks, 10])}, the deepest metric's")
    start = time.perf_counter()
    corpus = SkillCorpus.from_jsonl(corpus_path)
    bench = read_bench(bench_path)
    _check_targets(bench, corpus, bench_path, corpus_path)
    read = time.perf_counter()
    retriever = open_retriever(
        model_spec,
        corpus.ids,
        corpus.documents(),
        cache_dir=cache_dir,
        max_length=max_length,
        dtype=dtype,
        fusion_weight=fusion_weight,
        batch_size=batch_size,
        progress=progress,
    )
    indexed = time.perf_counter()
    ranking = retriever.search([query.query for query in bench], depth)
    searched = time.perf_counter()
    qrels = {query.query_id: query.qrels for query in bench}
    result: dict[str, Any] = {
        "metrics": evaluate_ranking(ranking, list(qrels), qrels, ks),
        "model": str(model_spec),
        "corpus": str(corpus_path),
        "bench": str(bench_path),
        "n_queries": len(bench),
        "n_skills": len(corpus),
        "seconds": {
            "read": round(read - start, 3),
            "index": round(indexed - read, 3),
            "search": round(searched - indexed, 3),
            "total": round(searched - start, 3),
        },
    }
    if isinstance(retriever, HybridRetriever):
        result["fusion_weight"] = retriever.weight
    result["queries"] = ranking_rows(list(qrels), ranking)
    if out_path is not None:
        write_json(out_path, result)
    return result


def ranking_rows(query_ids: Sequence[str], ranking: Ranking) -> list[dict[str, Any]]:
    """Rankings as JSON rows ``{"query_id", "ids", "scores"}``."""
    return [
        {"query_id": query_id, "ids": ids, "scores": [float(score) for score in scores[: len(ids)]]}
        for query_id, ids, scores in zip(query_ids, ranking.ids, ranking.scores, strict=True)
    ]


def _check_targets(
    bench: Sequence[BenchQuery], corpus: SkillCorpus, bench_path: str | Path, corpus_path: str | Path
) -> None:
    lacking = [
        (query.query_id, skill_id)
        for query in bench
        for skill_id, grade in query.qrels.items()
        if grade > 0 and skill_id not in corpus
    ]
    if lacking:
        query_id, skill_id = lacking[0]
        raise ValueError(
            f"{bench_path}: query {query_id!r} has target {skill_id!r}, which {corpus_path} lacks "
            f"({len(lacking)} such targets); expected every target among its {len(corpus)} skills"
        )
