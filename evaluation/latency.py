"""Batch-1 online latency by B.5's protocol: fixed requests, warm-ups, synchronized timers, percentiles, phase by phase."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from evaluation.benchmarks import load_benchmark
from evaluation.benchmarks.base import Benchmark
from evaluation.latency_paths import (
    WARMUPS,
    InferencePath,
    LoadedModel,
    Setup,
    Stopwatch,
    applicable,
    bm25_path,
    encoder_path,
    hybrid_path,
    rationale_path,
    rerank_path,
)
from models.folders import write_json

SEED = 20260720
QUERIES = 100
RESULT_FILE = "latency.json"
_MEASURED_MINIMUM = 2
"""Requests that are measured however long they take: one alone has no percentiles."""


@dataclass(frozen=True)
class LatencyConfig:
    """The protocol; the defaults are B.5's, ``max_tokens`` Table 16's.

    Attributes:
        queries: requests drawn from the benchmark, all of them where it has fewer.
        seed: of the draw.
        depth: results of a search, all of them candidates of a reranker.
        max_length: tokens of an encoder's input; a model's own limit wins where it is lower.
        max_tokens: tokens of a generated rationale at most.
        device: a torch device; the GPU where there is one, else the CPU.
        dtype: float32 or bfloat16.
        threads: CPU threads of torch and FAISS; 0: as they are.
        max_seconds: a path stops after the request in which it exceeds this; 0: no limit.
    """

    queries: int = QUERIES
    seed: int = SEED
    depth: int = 20
    max_length: int = 4096
    max_tokens: int = 192
    device: str | None = None
    dtype: str = "float32"
    threads: int = 0
    max_seconds: float = 0.0

    def __post_init__(self) -> None:
        for key in ("queries", "depth", "max_length", "max_tokens"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; expected a positive number")
        for key in ("threads", "max_seconds"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"{key} is {getattr(self, key)}; expected 0 or more")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype!r}; expected float32 or bfloat16")


def measure_latency(
    models: Sequence[str],
    bench: str | Path,
    out_dir: str | Path,
    *,
    corpus: str | Path | None = None,
    split: str | None = None,
    methods: Sequence[str] = (),
    reranker: str | None = None,
    config: LatencyConfig | None = None,
    fusion_weight: float | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Time every path and write ``out_dir/latency.json`` after each; paths that the file has already are kept.

    Loading models, encoding the corpus and building indexes are not timed. Returns what the file holds: ``protocol`` (what must
    be the same for figures to be comparable), ``environment``, and ``paths``, a row each: ``method``, ``model``,
    ``reranker``, ``queries``, ``warmups``, ``facts``, ``phases`` and ``total`` (``mean``, ``p50``, ``p95``, ``p99`` in
    milliseconds), ``generated_tokens``, and ``milliseconds``, the single measurements.

    Args:
        models: encoder folders or hub ids; may be empty where only BM25 is measured.
        bench, corpus, split: see :func:`evaluation.benchmarks.load_benchmark`.
        methods: some of :data:`evaluation.latency_paths.METHODS`; empty: all that models and reranker allow.
        fusion_weight: the hybrid's; see :class:`evaluation.latency_paths.Setup`.

    Raises:
        ValueError: a method that cannot be measured, or a file in ``out_dir`` made under another protocol; the key is named.
        FileNotFoundError: a model, bench or corpus is missing.
    """
    config = config or LatencyConfig()
    wanted = applicable(models, reranker, methods)
    benchmark = load_benchmark(bench, corpus, split)
    device = _device(config.device)
    protocol = _protocol(config, benchmark, device)
    target = Path(out_dir) / RESULT_FILE
    rows = _measured_rows(target, protocol)
    setup = Setup(
        benchmark.corpus,
        device,
        config.dtype,
        config.depth,
        config.max_length,
        config.max_tokens,
        fusion_weight,
        cache_dir,
        progress,
    )
    requests = [query.query for query in benchmark.queries]
    result = {"protocol": protocol, "environment": environment(device), "paths": rows}
    loaded: LoadedModel | None = None
    # By model, so that one is in memory at a time; the table orders the rows again.
    for method, model in sorted(wanted, key=lambda pair: ["", *models].index(pair[1])):
        used = reranker if method == "rerank" else None
        if any((row["method"], row["model"], row["reranker"]) == (method, model or None, used) for row in rows):
            continue
        if model and (loaded is None or loaded.path != model):
            loaded = LoadedModel(model, setup)
        path = _open(method, loaded, setup, reranker)
        label = f"{method} {Path(model).name}".strip()
        measured = time_path(path, requests, config, device, label if progress else "")
        rows.append({"method": method, "model": model or None, "reranker": used, **measured})
        write_json(target, result)
    return result


def time_path(
    path: InferencePath, requests: Sequence[str], config: LatencyConfig, device: str, progress: str = ""
) -> dict[str, Any]:
    """Answer the drawn requests one by one; phases and total in milliseconds with their statistics.

    The total is measured from outside and holds what lies between the phases. Warm-up requests are others of the benchmark,
    and drawn ones where it has no more.
    """
    drawn, others = draw(requests, config.queries, config.seed)
    warmups = WARMUPS[path.method]
    for request in (others + drawn * warmups)[:warmups]:
        path.answer(request, Stopwatch(device))
    path.generated.clear()
    milliseconds: dict[str, list[float]] = {}
    totals: list[float] = []
    started = time.perf_counter()
    for request in tqdm(drawn, desc=progress, unit="query", disable=not progress):
        watch = Stopwatch(device)
        start = watch.now()
        path.answer(request, watch)
        totals.append(1000 * (watch.now() - start))
        for phase, seconds in watch.seconds.items():
            milliseconds.setdefault(phase, []).append(1000 * seconds)
        enough = len(totals) >= _MEASURED_MINIMUM
        if enough and config.max_seconds and time.perf_counter() - started > config.max_seconds:
            break
    row: dict[str, Any] = {
        "queries": len(totals),
        "warmups": warmups,
        "facts": path.facts,
        "phases": {phase: statistics(values) for phase, values in milliseconds.items()},
        "total": statistics(totals),
    }
    if path.generated:
        row["generated_tokens"] = {"mean": float(np.mean(path.generated)), "max": max(path.generated)}
    measured = {**milliseconds, "total": totals}
    row["milliseconds"] = {name: [round(value, 4) for value in values] for name, values in measured.items()}
    return row


def draw(requests: Sequence[str], count: int, seed: int) -> tuple[list[str], list[str]]:
    """``count`` requests (all where there are fewer) in a random order that the seed fixes, and the others."""
    shuffled = random.Random(seed).sample(list(requests), len(requests))
    return shuffled[:count], shuffled[count:]


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles (linear between order statistics) of single measurements."""
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    named = {"mean": np.mean(values), "p50": p50, "p95": p95, "p99": p99}
    return {name: round(float(value), 4) for name, value in named.items()}


def environment(device: str) -> dict[str, Any]:
    """The hardware and software of a measurement, and how busy the machine was."""
    import torch

    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "gpu": gpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpu else None,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": load,  # of the minute before; above 0 other work shared the machine
    }


def _open(method: str, loaded: LoadedModel | None, setup: Setup, reranker: str | None) -> InferencePath:
    if method == "bm25" or loaded is None:
        return bm25_path(setup)
    if method == "rerank" and reranker is not None:
        return rerank_path(loaded, reranker)
    return {"encoder": encoder_path, "hybrid": hybrid_path, "rationale": rationale_path}[method](loaded)


def _device(name: str | None) -> str:
    import torch

    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; expected cpu or cuda")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but torch {torch.__version__} sees no GPU here; expected cpu")
    return device


def _protocol(config: LatencyConfig, benchmark: Benchmark, device: str) -> dict[str, Any]:
    """Everything that makes two figures comparable, and sets the threads, which are part of it."""
    import torch

    if config.threads:
        import faiss

        torch.set_num_threads(config.threads)
        faiss.omp_set_num_threads(config.threads)
    digest = hashlib.sha256()
    for text in (*benchmark.corpus.documents(), *(query.query for query in benchmark.queries)):
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return {
        "benchmark": benchmark.name,
        "skills": len(benchmark.corpus),
        "digest": digest.hexdigest()[:16],
        "queries": min(config.queries, len(benchmark.queries)),
        "seed": config.seed,
        "batch_size": 1,
        "depth": config.depth,
        "max_length": config.max_length,
        "max_tokens": config.max_tokens,
        "device": device,
        "dtype": config.dtype,
        "threads": torch.get_num_threads(),
        "max_seconds": config.max_seconds,
    }


def _measured_rows(target: Path, protocol: dict[str, Any]) -> list[dict[str, Any]]:
    """The paths that an earlier call has measured under the same protocol."""
    if not target.is_file():
        return []
    try:
        stored = json.loads(target.read_text(encoding="utf-8"))
        known, rows = dict(stored["protocol"]), list(stored["paths"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{target}: not a latency result ({error!r}); remove it, or give another --out") from error
    for key, value in protocol.items():
        if known.get(key) != value:
            raise ValueError(
                f"{target} was measured with {key} {known.get(key)!r}, now it is {value!r}; figures of both do not belong into "
                "one table: give another --out"
            )
    return rows


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
