"""Retrieve–rerank pipelines over a grid of retrievers and rerankers (Table 4), a result file a cell."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from configs.load import ConfigError
from evaluation.paper_figures import METRICS
from evaluation.run import evaluate
from evaluation.study_table import BenchSpec, TableRow, plot_study, study_markdown, table_rows
from evaluation.workbench import Workbench
from models.folders import atomic_write_text, write_json
from retrieval.reranked import RERANK_DEPTH

logger = logging.getLogger(__name__)

SEPARATOR = " x "
NO_RERANKER = "none"


@dataclass
class RetrieverSpec:
    """A first stage."""

    model: str = MISSING  # bm25, a model folder or hub id, or hybrid:FOLDER
    label: str = ""  # in the table; empty: its key
    query_prompt: str | None = None  # text, or a prompt's name: one of the model's, skill or none
    document_prompt: str | None = None
    similarity: str | None = None
    fusion_weight: float | None = None


@dataclass
class RerankerSpec:
    """A second stage. The key ``none`` is always there: the retriever's own order."""

    model: str = MISSING
    label: str = ""


@dataclass
class GridConfig:
    """A grid: every retriever with every reranker, or the pairs that are named."""

    out: str = MISSING  # folder of results/, grid.json, grid.md and grid.png
    title: str = "Retrieve and rerank"
    retrievers: dict[str, RetrieverSpec] = field(default_factory=dict)
    rerankers: dict[str, RerankerSpec] = field(default_factory=dict)
    benches: dict[str, BenchSpec] = field(default_factory=dict)
    pairs: list[str] = field(default_factory=list)  # such as "mine x qwen3", with none for no reranker; empty: all
    paper: str = ""  # table of the paper whose rows are called as the pairs are, such as table4
    rerank_depth: int = RERANK_DEPTH
    max_length: int | None = None  # tokens kept of an input; null: each model's
    dtype: str | None = None
    cache_dir: str | None = None
    metrics: list[str] = field(default_factory=lambda: list(METRICS))


def validate_grid(config: GridConfig) -> None:
    """Refuse a grid that names what it does not have.

    Raises:
        ConfigError: naming the key, its value and what would be accepted.
    """
    if not config.retrievers:
        raise ConfigError("retrievers is empty; expected at least one, such as retrievers.mine.model=runs/mine/export")
    validate_benches(config.benches)
    for pair in config.pairs:
        retriever, _, reranker = pair.partition(SEPARATOR)
        if retriever not in config.retrievers or reranker not in {NO_RERANKER, *config.rerankers}:
            raise ConfigError(
                f"pairs has {pair!r}; expected 'RETRIEVER x RERANKER' of {', '.join(config.retrievers)} and "
                f"{', '.join([NO_RERANKER, *config.rerankers])}"
            )


def validate_benches(benches: dict[str, BenchSpec]) -> None:
    """At least one benchmark, each with a source, all with names that can be folders. Raises as :func:`validate_grid`."""
    if not benches:
        raise ConfigError("benches is empty; expected at least one, such as benches.mine.bench=bench.jsonl")
    for key, spec in benches.items():
        if "/" in key or not spec.bench:
            raise ConfigError(
                f"benches.{key}.bench is {spec.bench!r}; expected a plain name with a bench file, folder or benchmark"
            )


def pairs_of(config: GridConfig) -> Iterator[tuple[str, str]]:
    """Retriever and reranker of each row, retrievers together so that each is opened once a benchmark."""
    rerankers = [NO_RERANKER, *(name for name in config.rerankers if name != NO_RERANKER)]
    for retriever in config.retrievers:
        for reranker in rerankers:
            if not config.pairs or f"{retriever}{SEPARATOR}{reranker}" in config.pairs:
                yield retriever, reranker


def run_grid(config: GridConfig, progress: bool = False) -> dict[str, Any]:
    """Evaluate every cell that has no result of its settings yet; write and return the table.

    A cell's file, ``results/<bench>/<retriever> x <reranker>.json``, is what ``skillreason evaluate`` writes. Cells of one
    retriever share its index and its lists; documents come from the embedding cache.

    Raises:
        ValueError, FileNotFoundError: what :func:`evaluation.run.evaluate` refuses; finished cells are kept.
    """
    out = Path(config.out)
    workbench = Workbench()
    for bench in config.benches:
        for retriever, reranker in pairs_of(config):
            spec, file = config.benches[bench], cell_file(out, bench, retriever, reranker)
            logger.info("%s: %s%s%s", bench, retriever, SEPARATOR, reranker)
            options = {key: value for key, value in asdict(config.retrievers[retriever]).items() if key != "label"}
            evaluate(
                options.pop("model"),
                spec.corpus or None,
                spec.bench,
                file,
                split=spec.split or None,
                rerank=None if reranker == NO_RERANKER else config.rerankers[reranker].model,
                rerank_depth=config.rerank_depth,
                max_length=config.max_length,
                dtype=config.dtype,
                cache_dir=config.cache_dir,
                workbench=workbench,
                reuse=True,
                progress=progress,
                **options,
            )
            table = write_grid(config)
    return table


def cell_file(out: Path, bench: str, retriever: str, reranker: str) -> Path:
    """The result of one cell."""
    return out / "results" / bench / f"{retriever}{SEPARATOR}{reranker}.json"


def write_grid(config: GridConfig) -> dict[str, Any]:
    """Write ``grid.json``, ``grid.md`` and ``grid.png`` from the cells there are; returns the first."""
    from evaluation.paper_figures import TABLES

    out = Path(config.out)
    theirs = TABLES.get(config.paper, {})
    rows = []
    for retriever, reranker in pairs_of(config):
        pair = f"{retriever}{SEPARATOR}{reranker}"
        names = [config.retrievers[retriever].label or retriever]
        if reranker != NO_RERANKER:
            names.append(config.rerankers[reranker].label or reranker)
        files = {bench: [cell_file(out, bench, retriever, reranker)] for bench in config.benches}
        details = {"retriever": retriever, "reranker": reranker}
        paper = f"{config.paper}/{pair}" if pair in theirs else ""
        rows.append(TableRow(" × ".join(names), files, paper=paper, details=details))
    value = {
        "title": config.title,
        "metrics": config.metrics,
        "rerank_depth": config.rerank_depth,
        "rows": table_rows(rows, config.benches, config.metrics),
    }
    write_json(out / "grid.json", value)
    markdown = study_markdown(value["rows"], config.benches, config.metrics)
    atomic_write_text(out / "grid.md", f"# {config.title}\n\n{markdown}")
    plot_study(value["rows"], config.benches, out / "grid.png", config.title, config.metrics[-1])
    return value
