"""Search and evaluation at the size of SkillReason-Bench, against bare FAISS: times, ratios, memory, and whether ids agree.

Embeddings are given (random unit vectors around cluster centres; each query lies near one skill). The three sides take turns in
one process, so that a busy machine slows all of them; the ratio is the median over the rounds.

    python benchmarks/evaluation_speed.py --threads 2
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytrec_eval  # noqa: F401 - imported here and below so that no round pays for it
import sklearn.feature_extraction.text  # noqa: F401

from data_pipeline import Skill, SkillCorpus
from data_pipeline.records import BenchQuery
from evaluation.benchmarks import OPEN_PROTOCOL, Benchmark
from evaluation.results import query_rows, score, write_result
from retrieval.dense import DenseIndex
from retrieval.retriever import DenseRetriever

CLUSTERS = 400
WORDS_OF_A_QUERY = 33


class GivenEmbeddings:
    """Stands where a model would: the embeddings of the queries are at hand."""

    name = fingerprint = "given"

    def __init__(self, queries: np.ndarray) -> None:
        self.queries = queries

    def encode_queries(self, requests: Any, batch_size: int = 32, progress: bool = False) -> np.ndarray:
        return self.queries


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """The rows at unit length, in place."""
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def make(arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, Benchmark]:
    """Skills ``[n, d]``, queries ``[q, d]``, and a benchmark of random words in which each query has one target."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, arguments.dimension), dtype=np.float32)
    skills = rng.standard_normal((arguments.skills, arguments.dimension), dtype=np.float32)
    skills += 0.9 * centres[rng.integers(CLUSTERS, size=arguments.skills)]
    unit_rows(skills)
    targets = rng.integers(arguments.skills, size=arguments.queries)
    noise = rng.standard_normal((arguments.queries, arguments.dimension), dtype=np.float32)
    queries = unit_rows(skills[targets] + 0.12 * noise)
    words = [f"word{i}" for i in range(5000)]
    picked = rng.integers(len(words), size=(arguments.queries, WORDS_OF_A_QUERY))
    corpus = SkillCorpus(
        Skill(f"category{i % 300}/skill-{i}", f"skill {i}", " ".join(words[j] for j in rng.integers(5000, size=12)), "")
        for i in range(arguments.skills)
    )
    asked = [
        BenchQuery(f"q{i}", " ".join(words[j] for j in row), {corpus.ids[int(target)]: 1}, f"domain{i % 9}")
        for i, (row, target) in enumerate(zip(picked, targets, strict=True))
    ]
    return skills, queries, Benchmark("synthetic", corpus, asked, OPEN_PROTOCOL, "generated")


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and what it returned."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def peak_gib() -> float:
    """The process's peak memory so far, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def agreement(theirs: np.ndarray, scores: np.ndarray, ours: list[list[str]], ids: list[str]) -> dict[str, Any]:
    """How many lists are identical, and how far apart in FAISS's own scores those are that changed places."""
    names = [[ids[i] for i in row] for row in theirs]
    other = [row for row, pair in enumerate(zip(names, ours, strict=True)) if pair[0] != pair[1]]
    gaps = [
        float(abs(scores[row][place] - scores[row][names[row].index(skill_id)]))
        if skill_id in names[row]
        else float("nan")
        for row in other
        for place, skill_id in enumerate(ours[row])
        if names[row][place] != skill_id
    ]
    return {"identical": len(names) - len(other), "queries": len(names), "largest_gap": max(gaps, default=0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skills", type=int, default=61228)
    parser.add_argument("--queries", type=int, default=3729)
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument(
        "--depth", type=int, default=20, help="results of a query; 100 is the default of skillreason evaluate"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file of the figures")
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(arguments.threads)

    skills, queries, benchmark = make(arguments)
    made = peak_gib()
    bare = faiss.IndexFlatIP(arguments.dimension)
    bare.add(skills)  # type: ignore[call-arg]
    with_bare = peak_gib()
    index = DenseIndex(benchmark.corpus.ids, skills)
    with_ours = peak_gib()
    retriever = DenseRetriever(GivenEmbeddings(queries), index)  # type: ignore[arg-type]
    parts: dict[str, list[float]] = {"search": [], "score": [], "write": []}

    def evaluate(out: Path) -> None:
        seconds, ranking = timed(lambda: retriever.search([q.query for q in benchmark.queries], arguments.depth))
        parts["search"].append(seconds)
        seconds, result = timed(lambda: score(benchmark, ranking, (1, 5, 10)))
        parts["score"].append(seconds)
        rows = {"model": "given", **result}
        seconds, _ = timed(lambda: write_result(out, rows | {"queries": query_rows(benchmark, ranking)}))
        parts["write"].append(seconds)

    bare.search(queries[:64], arguments.depth)  # type: ignore[call-arg]
    rounds: list[dict[str, float]] = []
    found: dict[str, Any] = {}
    for number in range(arguments.rounds):
        seconds_bare, (scores, positions) = timed(lambda: bare.search(queries, arguments.depth))  # type: ignore[call-arg]
        seconds_ours, ranking = timed(lambda: index.search(queries, arguments.depth))
        with tempfile.TemporaryDirectory() as folder:
            seconds_all, _ = timed(lambda out=Path(folder) / "result.json": evaluate(out))
        rounds.append({"bare": seconds_bare, "search": seconds_ours, "evaluate": seconds_all})
        found = agreement(positions, scores, ranking.ids, benchmark.corpus.ids)
        print(
            f"round {number + 1}: " + ", ".join(f"{name} {value:.2f} s" for name, value in rounds[-1].items()),
            flush=True,
        )
    ratios = {name: statistics.median(row[name] / row["bare"] for row in rounds) for name in ("search", "evaluate")}
    figures = {
        "size": [arguments.skills, arguments.dimension, arguments.queries, arguments.depth],
        "rounds": rounds,
        "ratio_to_bare_faiss": ratios,
        "evaluate_parts": {name: statistics.median(values) for name, values in parts.items()},
        "peak_gib": {"data": made, "bare index": with_bare, "our index": with_ours, "end": peak_gib()},
        "ids": found,
    }
    print(json.dumps(figures, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
