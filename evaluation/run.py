"""One model on one benchmark: rank every request against the corpus, and write metrics and rankings."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.alternatives import read_alternatives, rescore
from evaluation.rationales import Augment, Rationales, collect_rationales
from evaluation.reranking import rerank as with_reranker
from evaluation.results import query_rows, score, stored_result, write_result
from evaluation.settings import is_current, result_settings
from evaluation.workbench import FirstStage, Workbench
from models.encoder import SentenceTransformerEncoder
from retrieval.augmented import AugmentedRetriever
from retrieval.reranked import RERANK_DEPTH
from retrieval.retriever import (
    DenseRetriever,
    HybridRetriever,
    Retriever,
    document_format,
    open_retriever,
    split_model_spec,
)

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
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: str | None = None,
    augment: Augment | None = None,
    workbench: Workbench | None = None,
    reuse: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Evaluate ``bm25``, a model folder or hub id, or ``hybrid:FOLDER``; return and write the result.

    The result has ``metrics`` (fractions, see :func:`evaluation.metrics.score_queries`), what
    :func:`evaluation.results.score` adds to them, and the keys of docs/evaluation.md, "The result file".

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
        query_prompt, document_prompt, similarity: see :func:`models.prompts.resolve_prompts`.
        augment: rationales that requests are searched with; they are kept in ``<out>.rationales.jsonl`` and reused from there.
        workbench: what evaluations in a row share; a fresh one if not given.
        reuse: where ``out_path`` holds the result of the same settings, models and files, return that one.
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
    settings = result_settings(
        str(model_spec),
        str(bench_path),
        corpus=None if corpus_path is None else str(corpus_path),
        split=split,
        ks=list(ks),
        depth=depth,
        max_length=max_length,
        dtype=dtype,
        fusion_weight=fusion_weight,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        similarity=similarity,
        rerank=None if rerank is None else str(rerank),
        rerank_depth=None if rerank is None else rerank_depth,
        augment=augment,
        alternatives=None if alternatives is None else str(alternatives),
    )
    if reuse and out_path is not None and is_current(out_path, settings):
        return json.loads(Path(out_path).read_text(encoding="utf-8"))
    workbench = workbench or Workbench()
    benchmark = workbench.benchmark(bench_path, corpus_path, split)
    read = time.perf_counter()
    writing = 0.0

    def open_first() -> FirstStage:
        nonlocal writing
        rationales, begun = None, time.perf_counter()
        if augment is not None:
            # Before the corpus is encoded: the model that writes leaves its memory to the one that reads.
            kept = None if out_path is None else Path(out_path).with_suffix(".rationales.jsonl")
            rationales = collect_rationales(
                augment, benchmark.queries, model_spec, kept, dtype=dtype, progress=progress
            )
            writing = time.perf_counter() - begun
        opened = open_retriever(
            model_spec,
            benchmark.corpus.ids,
            benchmark.corpus.documents(document_format(model_spec)),
            cache_dir=cache_dir,
            max_length=max_length,
            dtype=dtype,
            fusion_weight=fusion_weight,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            similarity=similarity,
            batch_size=batch_size,
            progress=progress,
        )
        return _first_stage(opened, rationales)

    shared = {key: value for key, value in settings.items() if key not in ("rerank", "rerank_depth", "alternatives")}
    shared["digests"] = {
        name: value for name, value in settings["digests"].items() if name not in ("rerank", "alternatives")
    }
    first = workbench.first_stage(json.dumps(shared, sort_keys=True), open_first)
    retriever = first.retriever
    if rerank is not None:
        retriever = with_reranker(retriever, rerank, benchmark.corpus, rerank_depth, dtype=dtype, progress=progress)
    indexed = time.perf_counter()
    ranking = retriever.search([query.query for query in benchmark.queries], depth)
    searched = time.perf_counter()
    generate = first.notes.get("augment", {}).get("seconds")
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
        "n_skills": len(benchmark.corpus),
        "seconds": {
            "read": round(read - start, 3),
            "index": round(indexed - read - writing, 3),
            "search": round(searched - indexed, 3),
            "total": round(searched - start, 3),
            **({} if generate is None else {"generate": generate}),
        },
        **first.notes,
    }
    if rerank is not None:
        result["rerank"] = {"model": str(rerank), "depth": rerank_depth}
    result["settings"] = settings
    result["queries"] = query_rows(benchmark, ranking)
    if validated is not None:
        result["alternatives"] = rescore(stored_result(out_path or "this evaluation", result), validated)
    if out_path is not None:
        write_result(out_path, result)
    return result


def _first_stage(opened: Retriever, rationales: Rationales | None) -> FirstStage:
    """The retriever with its rationales, and ``fusion_weight``, ``encoder`` and ``augment`` of the result."""
    notes: dict[str, Any] = {}
    dense = opened.dense if isinstance(opened, HybridRetriever) else opened
    if isinstance(opened, HybridRetriever):
        notes["fusion_weight"] = opened.weight
    if isinstance(dense, DenseRetriever) and isinstance(dense.encoder, SentenceTransformerEncoder):
        encoder = dense.encoder
        notes["encoder"] = {**encoder.prompts.to_dict(), "max_length": encoder.max_length, "dtype": encoder.dtype}
    if rationales is None:
        return FirstStage(opened, notes)
    return FirstStage(AugmentedRetriever(opened, rationales.by_request), {**notes, "augment": rationales.info})
