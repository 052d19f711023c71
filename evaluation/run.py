"""One model on one benchmark: rank every request against the corpus, and write metrics and rankings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.alternatives import read_alternatives, rescore
from evaluation.benchmarks import load_benchmark
from evaluation.reranking import rerank as with_reranker
from evaluation.results import query_rows, score, stored_result, write_result
from retrieval.reranked import RERANK_DEPTH
from retrieval.retriever import HybridRetriever, document_format, open_retriever, split_model_spec

DEFAULT_KS = (1, 5, 10)


def evaluate(
    model_spec: str | Path,
    corpus_path: str | Path | None,
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
    split: str | None = None,
    alternatives: str | Path | None = None,
    rerank: str | Path | None = None,
    rerank_depth: int = RERANK_DEPTH,
    progress: bool = False,
) -> dict[str, Any]:
    """Evaluate ``bm25``, a model folder or hub id, or ``hybrid:FOLDER``; return and write the result.

    The result has ``metrics`` (fractions, see :func:`evaluation.metrics.score_queries`), what
    :func:`evaluation.results.score` adds to them, ``model``, ``corpus``, ``bench``, ``benchmark`` (``name``,
    ``protocol``, ``notes``), ``n_queries``, ``n_skills``, ``seconds`` (``read``, ``index``, ``search``,
    ``total``), ``fusion_weight`` for a hybrid, ``rerank`` (``model``, ``depth``) with a reranker, ``alternatives``
    where a file was given, and ``queries``: per request ``query_id``, the ``depth`` best ``ids``, their ``scores``, and its
    labels.

    Args:
        model_spec: what to evaluate.
        corpus_path: skills of a bench file (JSONL, plain or gzipped); None for a benchmark that has its own.
        bench_path: a bench file, or what :func:`evaluation.benchmarks.load_benchmark` takes.
        out_path: JSON file to write; none if not given.
        ks: depths of recall and NDCG.
        depth: length of each ranking; all metrics but MRR and MAP need it to reach their depth.
        cache_dir: embedding cache, see :func:`retrieval.embedding_cache.default_cache_dir`.
        max_length, dtype: see :func:`models.encoder.load_encoder`.
        fusion_weight: the hybrid's weight; the one stored with the model if not given.
        batch_size: inputs encoded at once.
        split: part of a benchmark, see :func:`evaluation.benchmarks.load_benchmark`.
        alternatives: what ``skillreason data alternatives`` wrote: recall is also given with them (A.2).
        rerank: a reranker that reorders the first ``rerank_depth`` results, see :func:`evaluation.reranking.rerank`.
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
    validated = None if alternatives is None else read_alternatives(alternatives)
    benchmark = load_benchmark(bench_path, corpus_path, split)
    corpus = benchmark.corpus
    read = time.perf_counter()
    retriever = open_retriever(
        model_spec,
        corpus.ids,
        corpus.documents(document_format(model_spec)),
        cache_dir=cache_dir,
        max_length=max_length,
        dtype=dtype,
        fusion_weight=fusion_weight,
        batch_size=batch_size,
        progress=progress,
    )
    weight = retriever.weight if isinstance(retriever, HybridRetriever) else None
    if rerank is not None:
        retriever = with_reranker(retriever, rerank, corpus, rerank_depth, dtype=dtype, progress=progress)
    indexed = time.perf_counter()
    ranking = retriever.search([query.query for query in benchmark.queries], depth)
    searched = time.perf_counter()
    result: dict[str, Any] = {
        **score(benchmark, ranking, ks),
        "model": str(model_spec),
        "corpus": str(corpus_path or benchmark.source),
        "bench": str(bench_path),
        "benchmark": {
            "name": benchmark.name,
            "protocol": benchmark.protocol.description,
            "notes": list(benchmark.notes),
        },
        "n_queries": len(benchmark.queries),
        "n_skills": len(corpus),
        "seconds": {
            "read": round(read - start, 3),
            "index": round(indexed - read, 3),
            "search": round(searched - indexed, 3),
            "total": round(searched - start, 3),
        },
    }
    if weight is not None:
        result["fusion_weight"] = weight
    if rerank is not None:
        result["rerank"] = {"model": str(rerank), "depth": rerank_depth}
    result["queries"] = query_rows(benchmark, ranking)
    if validated is not None:
        result["alternatives"] = rescore(stored_result(out_path or "this evaluation", result), validated)
    if out_path is not None:
        write_result(out_path, result)
    return result
