"""The commands that say how fast retrieval is and how well a library can be searched: ``skillreason latency | report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillreason.cluster_cli import example
from skillreason.evaluate_cli import CacheDir

latency_app = typer.Typer()
report_app = typer.Typer(help="Reports: on a skill library for its owner, and on results.", no_args_is_help=True)


@latency_app.command(
    epilog=example(
        "skillreason latency --model runs/mine/export --bench bench.jsonl --corpus corpus.jsonl --out latency"
    )
)
def latency(
    bench: Annotated[
        str, typer.Option(help="bench file (JSONL), benchmark folder, NAME, NAME=FOLDER or hf:owner/name[@revision]")
    ],
    out: Annotated[Path, typer.Option(help="folder for latency.json, latency.md, latency.png; a stopped run goes on")],
    model: Annotated[
        list[str] | None, typer.Option(help="model folder or hub id (repeatable); none: BM25 alone")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="skills of a bench file (JSONL, plain or gzipped)")] = None,
    split: Annotated[str | None, typer.Option(help="part of a benchmark")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="bm25, encoder, hybrid, rationale, rerank (repeatable; default: all that the models allow)"),
    ] = None,
    rerank: Annotated[str | None, typer.Option(help="reranker after each model: a run's folder or a model")] = None,
    queries: Annotated[int, typer.Option(help="requests drawn from the benchmark")] = 100,
    seed: Annotated[int, typer.Option(help="seed of the draw")] = 20260720,
    depth: Annotated[int, typer.Option(help="results of a search, candidates of a reranker")] = 20,
    max_length: Annotated[int, typer.Option(help="tokens of an input; a model's own limit wins where lower")] = 4096,
    max_tokens: Annotated[int, typer.Option(help="tokens of a generated rationale, at most")] = 192,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU where there is one)")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    threads: Annotated[int, typer.Option(help="CPU threads (0: as torch chooses)")] = 0,
    max_seconds: Annotated[float, typer.Option(help="stop measuring a path after so long (0: never)")] = 0.0,
    fusion_weight: Annotated[float | None, typer.Option(help="weight of the dense list in a hybrid")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Time single requests by the protocol of the paper's Table 11: retrieval, generated rationale, reranking, by phase."""
    from evaluation.latency import LatencyConfig, measure_latency
    from evaluation.latency_report import latency_table, plot_latency
    from models.folders import atomic_write_text

    config = LatencyConfig(queries, seed, depth, max_length, max_tokens, device, dtype, threads, max_seconds)
    result = measure_latency(
        model or [],
        bench,
        out,
        corpus=corpus,
        split=split,
        methods=method or [],
        reranker=rerank,
        config=config,
        fusion_weight=fusion_weight,
        cache_dir=cache_dir,
        progress=True,
    )
    table = latency_table(result)
    atomic_write_text(out / "latency.md", table + "\n")
    plot_latency(result, out / "latency.png")
    print(table)
    print(f"\nwritten to {out}: latency.json, latency.md, latency.png")


@report_app.command(
    epilog=example("skillreason report library --model hybrid:runs/mine/export --corpus corpus.jsonl --out library")
)
def library(
    model: Annotated[
        str, typer.Option(help="what will search the library: model folder or hub id, bm25, or hybrid:FOLDER")
    ],
    corpus: Annotated[Path, typer.Option(help="skills (JSONL, plain or gzipped)")],
    out: Annotated[Path, typer.Option(help="folder for index.html, report.json and the plots")] = Path(
        "library-report"
    ),
    bench: Annotated[Path | None, typer.Option(help="real requests with their skills, too (JSONL)")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="pseudo-queries of skill2query generate (default: made by rule)")
    ] = None,
    per_skill: Annotated[int, typer.Option(help="most pseudo-queries of a skill")] = 10,
    max_queries: Annotated[
        int, typer.Option(help="most pseudo-queries of all; large libraries get fewer a skill")
    ] = 100_000,
    try_advice: Annotated[
        bool, typer.Option("--try-advice", help="also measure what the suggested words would change (twice the time)")
    ] = False,
    fusion_weight: Annotated[float | None, typer.Option(help="weight of the dense list in a hybrid")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens kept of an input (default: the model's)")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """What keeps the skills of a library from being found, and what each would need: one self-contained HTML page."""
    from evaluation.library_report import LibraryConfig, report_library

    config = LibraryConfig(per_skill, max_queries, try_advice)
    report = report_library(
        model,
        corpus,
        out,
        bench=bench,
        queries=queries,
        config=config,
        fusion_weight=fusion_weight,
        max_length=max_length,
        cache_dir=cache_dir,
        progress=True,
    )
    print(report.summary())
    print(f"open {out / 'index.html'}")
