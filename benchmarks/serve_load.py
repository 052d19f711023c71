"""A server under load: throughput, latency and errors, with and without batching, through a reload or a killed replica.

Starts ``skillreason serve`` on a copy of an index, once for each side. Each client sends its next request as soon as it has the
answer to its last one. Clients and server share the machine's cores.

    python benchmarks/serve_load.py --model PATH --seconds 60 --out runs/serve_load
    python benchmarks/serve_load.py --index library.index --requests bench.jsonl --seconds 300 --reload --kill --no-serial \\
        --out runs/serve_load
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from data_pipeline.rows import read_rows
from data_pipeline.sample_library import load_sample_corpus, load_sample_requests
from evaluation.report import align_table
from models.folders import atomic_file, atomic_write_text, write_json
from serving.index import open_index
from serving.index_build import build_index
from serving.versions import CURRENT, current_version

_START_S = 300
_WARM_UP = 64


@dataclass
class Load:
    """What the clients saw: one entry a request, and what was done to the server when (seconds since the load began)."""

    finished: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    events: list[tuple[float, str]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


def arguments_of(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, help="an index to copy and serve (default: one of the sample library)")
    parser.add_argument("--model", default="bm25", help="of the sample library's index: bm25, a folder or a hub id")
    parser.add_argument("--requests", type=Path, help='JSONL rows with "query" (default: the sample library\'s)')
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each side")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument(
        "--hybrid", action="store_true", help="every second request is hybrid: options differ in a batch"
    )
    parser.add_argument(
        "--serve", nargs=argparse.REMAINDER, default=[], help="further options of skillreason serve; last"
    )
    parser.add_argument("--no-serial", action="store_true", help="leave out the side without batching (--max-batch 1)")
    parser.add_argument("--reload", action="store_true", help="a new version of the index at a third of the time")
    parser.add_argument("--kill", action="store_true", help="SIGKILL a search replica at two thirds of the time")
    parser.add_argument("--out", type=Path, required=True, help="folder for serve_load.json and serve_load.png")
    given = parser.parse_args(argv)
    if given.clients < 1 or given.seconds <= 0:
        parser.error("--clients and --seconds must be above 0")
    return given


def read_queries(path: Path | None) -> list[str]:
    """The requests to send, in file order.

    Raises:
        ValueError: a row without a query, or no row.
    """
    if path is None:
        training, test = load_sample_requests()
        return [row.query for row in [*training, *test]]
    queries = []
    for number, row in read_rows(path):
        query = row.get("query")
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f'{path}, row {number}: no "query"; expected a row with one')
        queries.append(query)
    if not queries:
        raise ValueError(f"{path} has no rows; expected at least one request")
    return queries


def prepare(arguments: argparse.Namespace, folder: Path) -> tuple[Path, tuple[str, str]]:
    """A copy of the index with two versions, and their ids: a reload then costs the server alone, not a build beside it."""
    index = folder / "index"
    options: dict[str, Any] = {"cache_dir": folder / "cache"}
    if arguments.index is not None:
        shutil.copytree(arguments.index, index)
        opened = open_index(index)
        corpus, model = opened.skills, opened.info.model or "bm25"
        options |= {"kind": opened.info.kind or "auto", "reranker": opened.info.reranker, **opened.info.encoder_options}
        options["fusion_weight"] = opened.info.fusion_weight
    else:
        corpus, model = load_sample_corpus(), arguments.model
        options["fusion_weight"] = 0.5 if arguments.hybrid else None
        build_index(index, corpus, model, **options)
    before = current_version(index)
    build_index(index, corpus, model, **options)
    return index, (before, current_version(index))


@contextlib.contextmanager
def serving(index: Path, folder: Path, options: Sequence[str]) -> Iterator[tuple[str, psutil.Process]]:
    """``skillreason serve`` until the block ends; its address and its process."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "skillreason", "serve", "--index", str(index), "--port", "0", *options]
    with log.open("wb") as handle:
        process = subprocess.Popen(command, stdout=handle, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            said = log.read_text(errors="replace")
            address = re.search(r"serving at (http://\S+)", said)
            if address:
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the server did not start:\n{said}")
            time.sleep(0.2)
        yield address[1], psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


async def drive(url: str, queries: Sequence[str], arguments: argparse.Namespace, acts: dict[float, Any]) -> Load:
    """Send requests for ``arguments.seconds``; ``acts`` says what to do to the server after how many seconds."""
    load = Load()
    began = time.perf_counter()
    ends = began + arguments.seconds
    position = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal position
        while time.perf_counter() < ends:
            number = position
            position += 1
            body = {"query": queries[number % len(queries)], "k": arguments.k}
            if arguments.hybrid and number % 2:
                body["hybrid"] = True
            started = time.perf_counter()
            try:
                async with session.post(f"{url}/search", json=body) as response:
                    answer = await response.json()
                    outcome = str(response.status)
                    if response.status == 200:
                        load.versions[answer["version"]] += 1
                    else:
                        outcome += f" {answer.get('error', {}).get('code', '')}"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                outcome = type(error).__name__
            now = time.perf_counter()
            load.finished.append(now - began)
            load.seconds.append(now - started)
            load.outcomes.append(outcome)

    async def act(after: float, name: str, call: Callable[[], None]) -> None:
        await asyncio.sleep(after)
        load.events.append((time.perf_counter() - began, name))
        await asyncio.to_thread(call)

    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        for number in range(_WARM_UP):
            async with session.post(f"{url}/search", json={"query": queries[number % len(queries)]}) as response:
                await response.read()
        before = await scrape(session, url)
        began = time.perf_counter()
        ends = began + arguments.seconds
        tasks = [asyncio.create_task(act(after, name, call)) for after, (name, call) in acts.items()]
        await asyncio.gather(*(client(session) for _ in range(arguments.clients)), *tasks)
        after = await scrape(session, url)
    load.metrics = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return load


async def scrape(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The sums and counts that /metrics has of batches and phases."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    wanted = re.compile(r"^skillreason_((?:batch_queries|batch_retries|phase_seconds)\S*) (\S+)$", re.MULTILINE)
    return {name: float(value) for name, value in wanted.findall(text) if "_bucket" not in name}


def summary(load: Load, seconds: float) -> dict[str, Any]:
    """The figures of one side; latencies in milliseconds, of answered requests alone."""
    good = np.array([s for s, o in zip(load.seconds, load.outcomes, strict=True) if o == "200"]) * 1000
    batches = load.metrics.get("batch_queries_count", 0.0)
    phases = {}
    for phase in ("queue", "encode", "search", "rerank"):
        count = load.metrics.get(f'phase_seconds_count{{phase="{phase}"}}', 0.0)
        if count:
            phases[phase] = round(load.metrics[f'phase_seconds_sum{{phase="{phase}"}}'] / count * 1000, 3)
    latency = [round(float(p), 2) for p in np.percentile(good, (50, 95, 99))] if len(good) else [None] * 3
    return {
        "requests": len(load.outcomes),
        "throughput_per_s": round(len(good) / max(seconds, max(load.finished, default=0.0)), 2),
        **dict(zip(("p50_ms", "p95_ms", "p99_ms"), latency, strict=True)),
        "errors": dict(Counter(outcome for outcome in load.outcomes if outcome != "200")),
        "versions": dict(load.versions),
        "queries_a_batch": round(load.metrics.get("batch_queries_sum", 0.0) / batches, 2) if batches else None,
        "mean_phase_ms": phases,
        "batches_sent_again": load.metrics.get("batch_retries_total", 0.0),
        "events": [[round(when, 2), what] for when, what in load.events],
    }


def plot(loads: dict[str, Load], path: Path) -> None:
    """Answers a second, and p50 and p99 of each second, over the time of the load."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    for place, (name, load) in enumerate(loads.items()):
        colour = f"C{place}"
        second = np.array(load.finished).astype(int)
        milliseconds = np.array(load.seconds) * 1000
        seconds = np.arange(second.max() + 1) if len(second) else np.arange(0)
        above.plot(seconds, np.bincount(second, minlength=len(seconds)), color=colour, label=name)
        rows = [milliseconds[second == one] for one in seconds]
        for percentile, style in ((50, ".-"), (99, ".:")):
            values = [np.percentile(row, percentile) if len(row) else np.nan for row in rows]
            below.plot(seconds, values, style, color=colour, label=f"{name}, p{percentile}")
        for when, what in load.events:
            for axes in (above, below):
                axes.axvline(when, color="0.5", linewidth=0.8)
            above.annotate(what, (when, 0.97), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right")
    above.set(ylabel="answers in the second", ylim=(0, None))
    below.set(xlabel="seconds of load", ylabel="latency (ms)", yscale="log")
    above.legend()
    below.legend()
    with atomic_file(path) as handle:
        figure.savefig(handle, format="png", dpi=120)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = arguments_of(argv)
    queries = read_queries(arguments.requests)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the server would outlive its benchmark
    sides = {"batched": list(arguments.serve)}
    if not arguments.no_serial:
        sides["one by one"] = [*arguments.serve, "--max-batch", "1"]
    loads: dict[str, Load] = {}
    with tempfile.TemporaryDirectory() as scratch:
        index, versions = prepare(arguments, Path(scratch))
        for name, options in sides.items():
            print(f"{name}: {arguments.clients} clients for {arguments.seconds:g} s", flush=True)
            atomic_write_text(index / CURRENT, versions[0] + "\n")
            with serving(index, Path(scratch), ["--reload-every", "1", *options]) as (url, process):

                def kill(process: psutil.Process = process) -> None:
                    family = process.children(recursive=True)
                    next(one for one in family if ":search" in " ".join(one.cmdline())).kill()

                publish = partial(atomic_write_text, index / CURRENT, versions[1] + "\n")
                acts: dict[float, Any] = {}
                if arguments.reload:
                    acts[arguments.seconds / 3] = ("new version", publish)
                if arguments.kill:
                    acts[arguments.seconds * 2 / 3] = ("replica killed", kill)
                loads[name] = asyncio.run(drive(url, queries, arguments, acts))
    results = {name: summary(load, arguments.seconds) for name, load in loads.items()}
    columns = ["requests", "throughput_per_s", "p50_ms", "p95_ms", "p99_ms", "queries_a_batch"]
    rows = [["side", *columns, "errors"]]
    for name, result in results.items():
        errors = ", ".join(f"{count} {kind}" for kind, count in result["errors"].items()) or "none"
        rows.append([name, *(str(result[column]) for column in columns), errors])
    print(align_table(rows))
    arguments.out.mkdir(parents=True, exist_ok=True)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    report = {"settings": settings, "cpus": os.cpu_count(), "n_queries": len(queries), "sides": results}
    write_json(arguments.out / "serve_load.json", report)
    plot(loads, arguments.out / "serve_load.png")
    print(f"written: {arguments.out / 'serve_load.json'} and serve_load.png")


if __name__ == "__main__":
    main()
