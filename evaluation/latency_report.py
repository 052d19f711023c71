"""Latency as a table with the paper's figures beside it, and as stacked bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.latency_paths import METHODS
from evaluation.paper_tables import TABLE11
from evaluation.plots import INK, new_figure, save_figure, tidy_axes
from evaluation.report import align_table

LABELS = {
    "bm25": "BM25",
    "encoder": "Retrieval only",
    "hybrid": "Hybrid",
    "rationale": "Generated rationale",
    "rerank": "Retrieve, rerank",
}
PAPER_HARDWARE = "one A800-SXM4-80GB, PyTorch 2.6, 6,660 skills"
_PAPER_PATHS = {"Retrieval only": "encoder", "Self-CoT augmentation": "rationale", "Retrieve–rerank": "rerank"}
PAPER = tuple(
    (_PAPER_PATHS[path], models, *figures)
    for path, models, figures in ((*name.split(": "), figures) for name, figures in TABLE11.items())
    if models.startswith("SkillReason")
)
"""Table 11: method, models, and mean milliseconds of retrieval, generation, reranking and the whole."""
_PHASES = {
    "encode": ("encoding the request", "#2b6cb0"),
    "search": ("search", "#8fbbe3"),
    "generate": ("writing the rationale", "#dd7a2b"),
    "rank": ("reranking", "#6a9f58"),
}
_CLOSE_UP = 8
"""Paths this many times faster than the slowest get a panel of their own: beside it their bars cannot be seen."""


def latency_table(result: Mapping[str, Any]) -> str:
    """Markdown in milliseconds: means of the phases and of the total, and the total's percentiles.

    Retrieval is encoding and search, as in Table 11. Rows marked † are the paper's, measured on other hardware, with
    other models and another library.
    """
    rows = [["Path", "n", "Retrieval", "of it search", "Generation", "Rank", "Total", "p50", "p95", "p99"]]
    for method in METHODS:
        measured = [row for row in result["paths"] if row["method"] == method]
        for row in measured:
            phases = {name: statistics["mean"] for name, statistics in row["phases"].items()}
            retrieval = phases.get("encode", 0.0) + phases["search"]
            cells = [retrieval, phases["search"], phases.get("generate"), phases.get("rank")]
            cells += [row["total"][key] for key in ("mean", "p50", "p95", "p99")]
            rows.append([path_label(row), str(row["queries"]), *map(_cell, cells)])
        for name, models, retrieval, generation, rank, total in PAPER if measured else ():
            if name == method:
                cells = [retrieval, None, generation, rank, total, None, None, None]
                rows.append([f"{LABELS[method]}: {models} †", "100", *map(_cell, cells)])
    return f"{align_table(rows)}\n\n{_notes(result)}"


def path_label(row: Mapping[str, Any]) -> str:
    """How tables and plots call a measured path."""
    models = " × ".join(_name(Path(name)) for name in (row["model"], row["reranker"]) if name)
    return f"{LABELS[row['method']]}: {models}" if models else LABELS[row["method"]]


def _name(model: Path) -> str:
    """A run's name rather than ``export`` or ``causal_lm``, which all runs have."""
    while model.name in ("export", "causal_lm") and model.parent.name:
        model = model.parent
    return model.name


def plot_latency(result: Mapping[str, Any], path: str | Path) -> Path:
    """Stacked bars of mean milliseconds by phase, with p50 and p95 of the total; the fast paths once more on their own scale.

    Raises:
        ValueError: no path was measured.
    """
    rows = sorted(result["paths"], key=lambda row: METHODS.index(row["method"]))
    if not rows:
        raise ValueError(f"no measured path; nothing to plot in {path}")
    slowest = max(row["total"]["mean"] for row in rows)
    fast = [row for row in rows if row["total"]["mean"] * _CLOSE_UP < slowest]
    panels = [rows, fast] if fast else [rows]
    heights = [0.36 * len(panel) + 0.75 for panel in panels]
    figure = new_figure(9.0, sum(heights) + 0.9)
    grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    seen: dict[str, Any] = {}
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(grid[place])
        for row_number, row in enumerate(panel):
            left = 0.0
            for phase, (label, color) in _PHASES.items():
                if phase in row["phases"]:
                    width = row["phases"][phase]["mean"]
                    seen[label] = axes.barh(row_number, width, 0.62, left, color=color)
                    left += width
            total = row["total"]
            (seen["median"],) = axes.plot(total["p50"], row_number, "|", color=INK, markersize=13, markeredgewidth=1.6)
            (seen["95th percentile"],) = axes.plot(total["p95"], row_number, ">", color=INK, markersize=4.5)
            text = f"{total['p50']:,.1f} / {total['p95']:,.1f}"
            at = (max(total["p95"], left), row_number)
            axes.annotate(
                text, at, (9, 0), textcoords="offset points", va="center", fontsize=8, color=INK, annotation_clip=False
            )
        axes.set_yticks(range(len(panel)), [path_label(row) for row in panel], parse_math=False)
        axes.invert_yaxis()
        axes.margins(x=0.16)
        axes.set_xlim(left=0)
        tidy_axes(axes)
        axes.grid(visible=False, axis="y")
        title = "all paths" if place == 0 else "the fast ones, on a scale of their own"
        axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.set_xlabel("milliseconds a request, batch size 1; numbers: median / 95th percentile", fontsize=9, color=INK)
    environment, protocol = result["environment"], result["protocol"]
    hardware = environment["gpu"] or f"{environment['cpu']}, {protocol['threads']} threads"
    title = f"Online latency over {protocol['skills']:,} skills\n{hardware}, {protocol['dtype']}"
    figure.suptitle(title, fontsize=11, fontweight="bold", color=INK)
    figure.legend(
        list(seen.values()), list(seen), loc="outside lower center", ncols=min(6, len(seen)), fontsize=8, frameon=False
    )
    return save_figure(figure, path)


def _notes(result: Mapping[str, Any]) -> str:
    protocol, environment = result["protocol"], result["environment"]
    where = environment["gpu"] or f"{environment['cpu']}, {protocol['threads']} of {environment['cores']} CPUs"
    lines = [
        f"Milliseconds. {protocol['queries']} requests of {protocol['benchmark']} (seed {protocol['seed']}) over "
        f"{protocol['skills']:,} skills, batch size 1, at most {protocol['max_length']:,} tokens, the best {protocol['depth']}; "
        f"{where}, {protocol['dtype']}, PyTorch {environment['torch']}, load average {environment['load_average']} at the start.",
    ]
    for row in result["paths"]:
        if "generated_tokens" in row:
            tokens = row["generated_tokens"]
            lines.append(f"{path_label(row)}: {tokens['mean']:.1f} tokens a rationale, {tokens['max']} at most.")
    shown = {row["method"] for row in result["paths"]}
    if any(name in shown for name, *_ in PAPER):
        lines.append(f"† The paper's Table 11 (means only), on other hardware: {PAPER_HARDWARE}.")
    return "\n".join(f"- {line}" for line in lines)


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"
