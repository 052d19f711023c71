"""The commands about retrieval and how good it is: ``skillreason evaluate | benchmark | compare | rescore | search``."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from skillreason.cluster_cli import example

evaluate_app = typer.Typer()

CacheDir = Annotated[
    Path | None, typer.Option(help="embedding cache (default: in $SKILLREASON_CACHE or ~/.cache/skillreason)")
]

Rerank = Annotated[
    str | None, typer.Option(help="reranker that reorders the first results: a run's folder, a model folder or hub id")
]
RerankDepth = Annotated[int, typer.Option(help="how many results it reorders")]


@evaluate_app.command(
    epilog=example(
        "skillreason evaluate --model runs/mine/export --corpus corpus.jsonl --bench bench.jsonl --out out.json"
    )
)
def evaluate(
    model: Annotated[str, typer.Option(help="model folder or hub id, bm25, or hybrid:FOLDER")],
    bench: Annotated[
        str, typer.Option(help="bench file (JSONL), benchmark folder, NAME, NAME=FOLDER or hf:owner/name[@revision]")
    ],
    out: Annotated[Path, typer.Option(help="JSON with metrics and the top 100 of every request")],
    corpus: Annotated[Path | None, typer.Option(help="skills of a bench file (JSONL, plain or gzipped)")] = None,
    split: Annotated[str | None, typer.Option(help="part of a benchmark: a split, suite or pool (easy, hard)")] = None,
    alternatives: Annotated[
        Path | None, typer.Option(help="decisions of skillreason data alternatives: recall with them, too")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of recall by length, domain and shared words")] = None,
    fusion_weight: Annotated[float | None, typer.Option(help="weight of the dense list in a hybrid")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens kept of an input (default: the model's)")] = None,
    rerank: Rerank = None,
    rerank_depth: RerankDepth = 20,
    cache_dir: CacheDir = None,
) -> None:
    """Rank every request of a benchmark against its skills; print the metrics with 95% intervals, by suite and by slice."""
    from evaluation import evaluate as run_evaluate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same sentences are printed below, as notes
        result = run_evaluate(
            model,
            corpus,
            bench,
            out,
            cache_dir=cache_dir,
            max_length=max_length,
            fusion_weight=fusion_weight,
            split=split,
            alternatives=alternatives,
            rerank=rerank,
            rerank_depth=rerank_depth,
            progress=True,
        )
    _print_result(result)
    if plot is not None and "slices" in result:
        from evaluation.result_plots import plot_slices

        metric = max(result["intervals"]["metrics"], key=lambda name: (name.startswith("recall@"), len(name), name))
        title = f"{model} on {result['benchmark']['name']}"
        print(f"plot: {plot_slices(result['slices'], plot, metric, title)}")


@evaluate_app.command(epilog=example("skillreason benchmark skillret --out data/skillret"))
def benchmark(
    bench: Annotated[str, typer.Argument(help="benchmark folder, NAME, NAME=FOLDER or hf:owner/name[@revision]")],
    split: Annotated[str | None, typer.Option(help="part of a benchmark: a split, suite or pool (easy, hard)")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for corpus.jsonl.gz and bench.jsonl")] = None,
) -> None:
    """Load a benchmark, say what it holds and which counts differ from the published ones; write it in our own format."""
    from evaluation.benchmarks import load_benchmark, save_benchmark

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same sentences are printed below, as notes
        loaded = load_benchmark(bench, split=split)
    print(f"{loaded.name}: {len(loaded.queries)} requests, {len(loaded.corpus)} skills; {loaded.protocol.description}")
    for suite, query_ids in loaded.suite_queries().items():
        print(f"  {suite:<14} {len(query_ids)}")
    for note in loaded.notes:
        logging.getLogger("skillreason").warning(note)
    if out is not None:
        print(f"written to {save_benchmark(loaded, out)}")


@evaluate_app.command(epilog=example("skillreason compare bm25.json stage2.json --plot difference.png"))
def compare(
    first: Annotated[Path, typer.Argument(help="result of skillreason evaluate: system A")],
    second: Annotated[Path, typer.Argument(help="result on the same benchmark: system B")],
    metric: Annotated[list[str] | None, typer.Option(help="compare this metric (repeatable)")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON of the comparison")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of the differences")] = None,
) -> None:
    """Compare two systems query by query: differences with 95% intervals and paired randomization tests."""
    from evaluation.compare import compare as run_compare
    from evaluation.compare import comparison_table

    comparison = run_compare(first, second, metric)
    print(comparison_table(comparison))
    if out is not None:
        from models.folders import write_json

        write_json(out, comparison)
    if plot is not None:
        from evaluation.result_plots import plot_comparison

        print(f"plot: {plot_comparison(comparison, plot)}")


@evaluate_app.command(epilog=example("skillreason rescore bm25.json stage2.json --alternatives alternatives.jsonl"))
def rescore(
    results: Annotated[list[Path], typer.Argument(help="results of skillreason evaluate on one benchmark")],
    alternatives: Annotated[Path, typer.Option(help="decisions of skillreason data alternatives")],
    depth: Annotated[list[int] | None, typer.Option(help="cutoff of recall (repeatable; default: 1 and 5)")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON of the rescored recall")] = None,
) -> None:
    """Recall when validated alternatives count as well, each target at most once (Tables 7 and 8)."""
    from evaluation.alternatives import DEPTHS, read_alternatives, rescoring_table
    from evaluation.alternatives import rescore as run_rescore
    from evaluation.results import read_result

    validated = read_alternatives(alternatives)
    rescored: dict[str, Any] = {}
    for path in results:
        result = read_result(path)
        name = result.model if result.model not in rescored else str(path)
        rescored[name] = run_rescore(result, validated, depth or DEPTHS)
    print(rescoring_table(rescored))
    for name, value in rescored.items():
        print(f"{name}: {value['valid']} validated alternatives listed, {value['unjudged']} skills that nobody judged")
    if out is not None:
        from models.folders import write_json

        write_json(out, rescored)


@evaluate_app.command(
    epilog=example(
        'skillreason search --model runs/demo/export --corpus corpus.jsonl "our checkout test fails now and then"'
    )
)
def search(
    request: Annotated[str, typer.Argument(help="what you want done, in your words")],
    model: Annotated[str, typer.Option(help="model folder or hub id, bm25, or hybrid:FOLDER")],
    corpus: Annotated[Path, typer.Option(help="skills (JSONL, plain or gzipped)")],
    k: Annotated[int, typer.Option("--k", "-k", help="skills to show")] = 10,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="fuse with BM25")] = False,
    fusion_weight: Annotated[float | None, typer.Option(help="weight of the dense list in a hybrid")] = None,
    rerank: Rerank = None,
    rerank_depth: RerankDepth = 20,
    cache_dir: CacheDir = None,
) -> None:
    """Print the skills that fit a request, best first, with their scores."""
    from evaluation import search as run_search

    hits = run_search(
        model,
        corpus,
        request,
        k,
        hybrid,
        cache_dir,
        fusion_weight=fusion_weight,
        rerank=rerank,
        rerank_depth=rerank_depth,
        progress=True,
    )
    for rank, hit in enumerate(hits, start=1):
        print(f"{rank:>3}  {hit.score:7.4f}  {hit.skill_id}\n              {_shorten(hit.description)}")


def _print_result(result: dict[str, Any]) -> None:
    from evaluation.report import align_table

    print(f"{result['model']} on {result['n_queries']} requests, {result['n_skills']} skills:")
    bounds = result["intervals"]["metrics"]
    for name, value in result["metrics"].items():
        low, high = bounds.get(name, (None, None))
        print(f"  {name:<14} {value:.4f}" + (f"  [{low:.4f}, {high:.4f}]" if name in bounds else ""))
    headline = list(bounds)
    if "suites" in result:
        rows = [[row["suite"], str(row["n_queries"]), *_percent(row["metrics"], headline)] for row in result["suites"]]
        if "macro" in result:
            rows.append(["macro average", "", *_percent(result["macro"]["metrics"], headline)])
        print("\n" + align_table([["Suite", "n", *headline], *rows]))
    for kind, slices in result.get("slices", {}).items():
        rows = [[row["slice"], str(row["n_queries"]), *_percent(row["metrics"], headline)] for row in slices]
        print("\n" + align_table([[f"By {kind}", "n", *headline], *rows]))
    if "alternatives" in result:
        from evaluation.alternatives import rescoring_table

        print("\n" + rescoring_table({result["model"]: result["alternatives"]}))
    for note in result["benchmark"]["notes"]:
        logging.getLogger("skillreason").warning(note)


def _percent(metrics: dict[str, float], names: list[str]) -> list[str]:
    return [f"{100 * metrics[name]:.1f}" if name in metrics else "–" for name in names]


def _shorten(text: str, width: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
