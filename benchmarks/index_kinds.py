"""Exact against approximate vector search on libraries larger than there are: latency of a request, recall, and time to build.

Random vectors would flatter any index. These have the geometry of a real library: each is the embedding of a real skill with
noise of the library's own covariance, turned at random into as many components as asked for; the requests are real ones.

    python benchmarks/index_kinds.py --model FOLDER --corpus skills.jsonl.gz --bench bench.jsonl --sizes 61000 100000
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from data_pipeline import SkillCorpus, read_bench
from models.encoder import load_encoder
from models.folders import write_json
from retrieval import DenseIndex, EmbeddingCache, default_cache_dir
from retrieval.approximate import APPROXIMATE_KINDS, ApproximateIndex

NOISE = 0.8
"""Of the library's own deviation: a document then is nearer to its skill than to most others, and clusters overlap."""
EFFORTS = (8, 16, 32, 64, 128, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="encoder whose geometry is used")
    parser.add_argument("--corpus", required=True, help="real skills")
    parser.add_argument("--bench", required=True, nargs="+", help="real requests")
    parser.add_argument("--sizes", type=int, nargs="+", default=[61_000, 100_000], help="documents of the libraries")
    parser.add_argument("--components", type=int, default=1024, help="of an embedding; at least the model's")
    parser.add_argument("--threads", type=int, default=1, help="of FAISS")
    parser.add_argument("--kinds", nargs="*", default=APPROXIMATE_KINDS, choices=APPROXIMATE_KINDS)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(arguments.threads)
    encoder = load_encoder(arguments.model)
    corpus = SkillCorpus.from_jsonl(arguments.corpus)
    texts = corpus.documents(encoder.document_format)
    skills = EmbeddingCache(default_cache_dir()).encode_documents(encoder, texts, progress=True)
    requests = encoder.encode_queries([row.query for path in arguments.bench for row in read_bench(path)])
    results = []
    for size in arguments.sizes:
        documents, queries = enlarge(skills, requests, size, arguments.components)
        for row in measure(documents, queries, arguments.kinds):
            row = {"documents": size, "components": arguments.components, **row, "load": round(os.getloadavg()[0], 1)}
            print(json.dumps(row), flush=True)
            results.append(row)
    if arguments.out is not None:
        write_json(arguments.out, {"threads": arguments.threads, "requests": len(requests), "results": results})


def enlarge(skills: np.ndarray, requests: np.ndarray, size: int, components: int) -> tuple[np.ndarray, np.ndarray]:
    """A library of ``size`` unit vectors around the real ones, and the requests, all turned into ``components`` dimensions."""
    generator = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(np.cov(skills.T))
    spread = (vectors * np.sqrt(np.clip(values, 0, None))).T
    near = skills[generator.integers(len(skills), size=size)]
    documents = near + NOISE * generator.normal(size=near.shape) @ spread
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    turn = np.linalg.qr(generator.normal(size=(components, skills.shape[1])))[0].T
    return (documents @ turn).astype(np.float32), (requests @ turn).astype(np.float32)


def measure(documents: np.ndarray, queries: np.ndarray, kinds: list[str]) -> list[dict[str, Any]]:
    """One row for exact search, and one for each kind and effort."""
    ids = [str(row) for row in range(len(documents))]
    start = time.perf_counter()
    exact = DenseIndex(ids, documents)
    rows: list[dict[str, Any]] = [
        {"kind": "flat", "build_s": round(time.perf_counter() - start, 2), **latency(exact.search, queries)}
    ]
    best = exact.search(queries, 10).ids
    for kind in kinds:
        start = time.perf_counter()
        index = ApproximateIndex(ids, documents, kind)
        build = round(time.perf_counter() - start, 1)
        for effort in EFFORTS:
            index.effort = effort
            found = index.search(queries, 10).ids
            recall = np.mean([len(set(row) & set(other)) / 10 for row, other in zip(found, best, strict=True)])
            rows.append(
                {
                    "kind": kind,
                    "build_s": build,
                    "effort": effort,
                    "recall@10": round(float(recall), 4),
                    **latency(index.search, queries),
                }
            )
    return rows


def latency(search: Callable[[np.ndarray, int], Any], queries: np.ndarray) -> dict[str, float]:
    """Median and 95th percentile of one request's ten results, in milliseconds."""
    search(queries[:1], 10)
    times = []
    for row in range(len(queries)):
        start = time.perf_counter()
        search(queries[row : row + 1], 10)
        times.append(1e3 * (time.perf_counter() - start))
    return {name: round(float(np.percentile(times, at)), 2) for name, at in (("p50_ms", 50), ("p95_ms", 95))}


if __name__ == "__main__":
    main()
