"""Tables of many systems on several benchmarks: means over seeds, the paper's figures beside them; Markdown, JSON, plot."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.paper_figures import METRICS, paper_metrics
from evaluation.plots import INK, new_figure, save_figure, tidy_axes
from evaluation.report import align_table

SHORT = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "ndcg@10": "N@10"}
_OURS, _PAPER = "#2b6cb0", "#dd7a2b"


@dataclass
class BenchSpec:
    """A benchmark of a grid or study, in its configuration."""

    bench: str = ""  # what --bench of skillreason evaluate takes
    corpus: str = ""  # the skills of a bench file
    split: str = ""
    label: str = ""  # heading of its table; empty: its key
    paper: str = ""  # the benchmark of the paper whose figures are shown: skillreason-bench, sra-bench or skillret


@dataclass(frozen=True)
class TableRow:
    """A system's results: ``files`` by benchmark key, one a seed; a file that does not exist yet leaves a gap.

    ``paper`` is the row of :mod:`evaluation.paper_figures`; ``block`` the heading it stands under.
    """

    label: str
    files: Mapping[str, Sequence[Path]]
    block: str = ""
    paper: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def table_rows(
    rows: Sequence[TableRow], benches: Mapping[str, BenchSpec], metrics: Sequence[str] = METRICS
) -> list[dict[str, Any]]:
    """What the JSON of a table holds: per row ``label``, ``block``, its details, and by benchmark under ``benches`` the
    ``n`` of finished seeds, ``mean`` and ``sd`` (of two and more seeds, n − 1) by metric, ``paper``, ``files``. Fractions."""
    return [
        {
            "label": row.label,
            "block": row.block,
            **row.details,
            "benches": {
                key: _cell(row.files.get(key, ()), metrics, paper_metrics(row.paper, spec.paper))
                for key, spec in benches.items()
            },
        }
        for row in rows
    ]


def study_markdown(
    rows: Sequence[Mapping[str, Any]], benches: Mapping[str, BenchSpec], metrics: Sequence[str] = METRICS
) -> str:
    """A table a benchmark, in percent: ours as mean or mean ± sd over seeds, the paper's figures at the right."""
    parts = []
    for key, spec in benches.items():
        known = any(row["benches"][key]["paper"] for row in rows)
        heads = [SHORT.get(metric, metric) for metric in metrics]
        table = [["Configuration", *heads, *(f"{head} (paper)" for head in heads if known)]]
        block = ""
        for row in rows:
            if row["block"] != block:
                block = row["block"]
                table.append([f"*{block}*", *[""] * (len(table[0]) - 1)])
            cell = row["benches"][key]
            ours = [percent(cell["mean"].get(metric), cell["sd"].get(metric)) for metric in metrics]
            theirs = [percent(cell["paper"].get(metric), digits=2) for metric in metrics if known]
            table.append([row["label"], *ours, *theirs])
        parts += [f"### {spec.label or key}", align_table(table)]
    return "\n\n".join(parts) + "\n"


def plot_study(
    rows: Sequence[Mapping[str, Any]],
    benches: Mapping[str, BenchSpec],
    path: str | Path,
    title: str,
    metric: str = "recall@10",
) -> Path | None:
    """A panel a benchmark: each row's mean with a bar of ± sd, and the paper's figure; None where nothing is finished."""
    shown = [key for key in benches if any(metric in row["benches"][key]["mean"] for row in rows)]
    if not shown:
        return None
    figure = new_figure(3.0 + 3.6 * len(shown), 1.4 + 0.34 * len(rows))
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    for number, key in enumerate(shown, start=1):
        axes = figure.add_subplot(1, len(shown), number)
        for place, row in enumerate(rows):
            cell = row["benches"][key]
            if metric in cell["mean"]:
                error = 100 * cell["sd"].get(metric, 0.0)
                axes.errorbar(100 * cell["mean"][metric], place, xerr=error, fmt="o", color=_OURS, capsize=3)
            if metric in cell["paper"]:
                axes.plot(100 * cell["paper"][metric], place, "D", color=_PAPER, markersize=5, fillstyle="none")
        if number == 1:  # for the legend alone
            axes.plot([], [], "o", color=_OURS, label="ours, mean ± sd")
            axes.plot([], [], "D", color=_PAPER, fillstyle="none", label="paper")
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows] if number == 1 else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_title(benches[key].label or key, fontsize=10, loc="left", color=INK)
        axes.set_xlabel(f"{SHORT.get(metric, metric)}, percent", fontsize=9, color=INK)
        tidy_axes(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return save_figure(figure, path)


def percent(value: float | None, sd: float | None = None, digits: int = 1) -> str:
    """``45.2``, ``45.2 ± 0.3``, or a dash for what is not known."""
    if value is None:
        return "–"
    return f"{100 * value:.{digits}f}" + (f" ± {100 * sd:.{digits}f}" if sd is not None else "")


def _cell(files: Sequence[Path], metrics: Sequence[str], paper: Mapping[str, float]) -> dict[str, Any]:
    found = [json.loads(file.read_text(encoding="utf-8"))["metrics"] for file in files if file.is_file()]
    values = {metric: [value[metric] for value in found if metric in value] for metric in metrics}
    return {
        "n": len(found),
        "mean": {metric: statistics.fmean(known) for metric, known in values.items() if known},
        "sd": {metric: statistics.stdev(known) for metric, known in values.items() if len(known) > 1},
        "paper": dict(paper),
        "files": [str(file) for file in files if file.is_file()],
    }
