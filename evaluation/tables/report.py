"""``skillreason report tables``: every table and plot that the results found allow, in one folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from evaluation.plots import plot_curves
from evaluation.results import StoredResult, stored_result
from evaluation.tables.build import (
    alternatives_tables,
    end_to_end_table,
    latency_table,
    pipeline_table,
    retriever_table,
    skillbench_table,
    study_tables,
)
from evaluation.tables.formats import csv_text, latex, markdown
from evaluation.tables.layout import Table
from evaluation.tables.names import Names
from evaluation.tables.plots import plot_domains, plot_margins, plot_recall_curves
from evaluation.tables.sources import RUN_METRICS, Sources, collect
from models.folders import atomic_write_text

PAPER_CHOICES = ("matching", "all", "none")
ReadRun = Callable[[Path], list[dict[str, Any]]]
"""From a ``metrics.jsonl`` to its rows."""


def report_tables(
    paths: Iterable[str | Path],
    out: str | Path,
    *,
    names: Sequence[str] = (),
    paper: str = "matching",
    read_run: ReadRun | None = None,
    progress: bool = False,
) -> list[Path]:
    """Write ``tables.md``, and by table ``<key>.md``, ``.tex`` and ``.csv``, and ``plots/``; returns what was written.

    Args:
        paths: result files, run folders, or folders with them.
        out: folder to write.
        names: ``MODEL=LABEL`` each, see :class:`evaluation.tables.names.Names`.
        read_run: reads a run's ``metrics.jsonl``; without it runs are not plotted. (Training stands above evaluation.)
        paper: which of the paper's rows stand beside ours: those of the same configuration (``matching``), ``all``, ``none``.

    Raises:
        ValueError, FileNotFoundError: nothing found, a file that is no result, an unknown choice, a name that no result has.
    """
    if paper not in PAPER_CHOICES:
        raise ValueError(f"paper is {paper!r}; expected one of {', '.join(PAPER_CHOICES)}")
    labels = Names(names)
    sources = collect(paths)
    tables = build_tables(sources, labels, paper)
    if labels.unused():
        known = sorted({value["model"] for _, value in (*sources.results, *sources.end_to_end)})
        raise ValueError(
            f"name {labels.unused()[0]!r}: no result of such a model; there are {', '.join(known) or 'none'}"
        )
    folder = Path(out)
    written: list[Path] = []
    for table in tables:
        for suffix, text in ((".md", markdown(table) + "\n"), (".tex", latex(table)), (".csv", csv_text(table))):
            written.append(folder / f"{_file_name(table.key)}{suffix}")
            atomic_write_text(written[-1], text)
    plots = _plots(sources, labels, folder / "plots", read_run, progress)
    page = ["# Results", *(f"## {_heading(table)}\n\n{markdown(table)}" for table in tables)]
    if plots:
        page += ["## Plots", *(f"![{path.stem}](plots/{path.name})" for path in plots)]
    if sources.passed_over:
        page += ["## Passed over", "\n".join(f"- {text}" for text in sources.passed_over)]
    written = [folder / "tables.md", *written, *plots]
    atomic_write_text(written[0], "\n\n".join(page) + "\n")
    return written


def build_tables(sources: Sources, names: Names, paper: str) -> list[Table]:
    """All tables that the sources allow, in the paper's order."""
    tables = [
        retriever_table(sources, names, paper),
        pipeline_table(sources, names, paper),
        end_to_end_table(sources, names, paper),
        skillbench_table(sources, names, paper),
        latency_table(sources, names, paper),
        *study_tables(sources, paper),
        *alternatives_tables(sources, names, paper),
    ]
    return sorted((table for table in tables if table is not None), key=lambda table: (_number(table.key), table.key))


def _plots(sources: Sources, names: Names, folder: Path, read_run: ReadRun | None, progress: bool) -> list[Path]:
    by_bench: dict[str, dict[str, StoredResult]] = {}
    domains: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path, value in sources.results:
        bench, label = value["benchmark"]["name"], names.of_result(value)
        by_bench.setdefault(bench, {})[label] = stored_result(path, value)
        domains.setdefault(bench, {})[label] = value.get("slices", {}).get("domain", [])
    written: list[Path | None] = []
    with tqdm(total=len(by_bench) + len(sources.runs), desc="plots", disable=not progress) as bar:
        for bench, results in by_bench.items():
            name, title = _file_name(bench.removesuffix(".jsonl")), bench.removesuffix(".jsonl")
            written.append(plot_recall_curves(results, folder / f"recall-{name}.png", f"Recall by depth: {title}"))
            written.append(plot_domains(domains[bench], folder / f"domains-{name}.png", f"By domain: {title}"))
            bar.update()
        for run in sources.runs:
            if read_run is not None:
                written += _run_plots(run, read_run(run / RUN_METRICS), folder)
            bar.update()
    return [path for path in written if path is not None]


def _run_plots(run: Path, rows: list[dict[str, Any]], folder: Path) -> list[Path | None]:
    name = _file_name(run.name)
    terms = sorted({key for row in rows for key in row if key.startswith("reward/") and key.endswith("/mean")})
    written: list[Path | None] = [plot_margins(rows, folder / f"margins-{name}.png", f"Margins: {run.name}")]
    if terms:
        keys = sorted(terms, key=lambda key: (key != "reward/total/mean", key))
        written.append(plot_curves(rows, keys, folder / f"terms-{name}.png", f"Reward terms: {run.name}"))
    return written


def _number(key: str) -> int:
    found = re.match(r"table(\d+)", key)
    return int(found.group(1)) if found else 99


def _heading(table: Table) -> str:
    found = re.fullmatch(r"table(\d+)", table.key)
    return f"Table {found.group(1)}" if found else table.key


def _file_name(text: str) -> str:
    """Letters, digits, dots and hyphens of a name."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "table"
