"""What a run leaves for readers: the table of systems, ``results.json`` and ``report.md``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.folders import atomic_write_text, write_json

TABLE_METRICS = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "ndcg@10": "NDCG@10"}
"""Metrics of the table and of ``results.json``, with their column heads."""

SYSTEM_LABELS = {
    "bm25": "BM25",
    "untrained": "Untrained",
    "stage1": "Stage I",
    "stage2": "Stage II",
    "hybrid": "Hybrid",
}
"""The systems of a run in the order of the table; others follow under their own names."""

Systems = Mapping[str, Mapping[str, float]]
"""Metrics (fractions between 0 and 1) by system."""
Reward = Mapping[str, float | None]
"""Mean total reward at the ``start`` and the ``end`` of Stage II; None where there was no Stage II."""


def system_label(system: str) -> str:
    """How tables and legends call a system."""
    return SYSTEM_LABELS.get(system, system)


def ordered_systems(systems: Systems) -> list[str]:
    """The systems' names in the order of the table.

    Raises:
        ValueError: no system, or one without one of :data:`TABLE_METRICS`; the message names both.
    """
    if not systems:
        raise ValueError(f"no system to report; expected for example {', '.join(SYSTEM_LABELS)}")
    for system, metrics in systems.items():
        for metric in TABLE_METRICS:
            if metric not in metrics:
                raise ValueError(f"system {system!r} has no {metric}; it has {', '.join(metrics) or 'no metrics'}")
    known = [system for system in SYSTEM_LABELS if system in systems]
    return [*known, *(system for system in systems if system not in SYSTEM_LABELS)]


def write_results_json(path: str | Path, systems: Systems, reward: Reward | None = None) -> None:
    """Write ``{"systems": {name: {"recall@1": …}}, "reward": {"start": …, "end": …}}``, atomically.

    Raises:
        ValueError: a metric is missing, or a number is not finite.
    """
    value = {
        "systems": {
            system: {metric: systems[system][metric] for metric in TABLE_METRICS} for system in ordered_systems(systems)
        },
        "reward": {end: (reward or {}).get(end) for end in ("start", "end")},
    }
    write_json(path, value)


def format_table(systems: Systems, reward: Reward | None = None) -> str:
    """An aligned Markdown table of the systems, in percent, and a line with the reward if there is one."""
    rows = [["System", *TABLE_METRICS.values()]]
    for system in ordered_systems(systems):
        rows.append([system_label(system), *(f"{100 * systems[system][metric]:.1f}" for metric in TABLE_METRICS)])
    table = align_table(rows)
    start, end = (reward or {}).get("start"), (reward or {}).get("end")
    if start is None or end is None:
        return table
    change = f"{start:.4f} at the start, {end:.4f} at the end ({end - start:+.4f})"
    return f"{table}\n\nMean reward in Stage II: {change}."


def align_table(rows: Sequence[Sequence[str]], numeric: bool = True) -> str:
    """A Markdown table of cells, the first row its head; numeric columns, all but the first, to the right."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(cells[0]))]
    end = ":" if numeric else "-"
    rule = ["-" * widths[0], *("-" * (width - 1) + end for width in widths[1:])]
    return "\n".join(
        "| "
        + " | ".join(
            cell.rjust(width) if numeric and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in (cells[0], rule, *cells[1:])
    )


def write_report(
    run_dir: str | Path,
    *,
    title: str,
    systems: Systems,
    reward: Reward | None = None,
    plots: Mapping[str, str | Path] | None = None,
    config: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    sections: Mapping[str, str] | None = None,
) -> Path:
    """Write ``run_dir/report.md`` and return its path.

    Args:
        run_dir: the run's folder.
        title: heading of the report.
        systems: metrics by system, as for :func:`format_table`.
        reward: mean reward at the start and end of Stage II.
        plots: PNG files by caption; linked relative to the run's folder.
        config: the resolved configuration, nested or flat; shown as ``key: value`` rows.
        notes: sentences under the table: what was evaluated on what, and what to make of it.
        sections: more Markdown by heading, such as the table of a second benchmark.
    """
    run_dir = Path(run_dir)
    parts = [f"# {title}", "## Results", format_table(systems, reward)]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    for heading, text in (sections or {}).items():
        parts += [f"## {heading}", text.strip()]
    if plots:
        parts.append("## Curves")
        for caption, plot in plots.items():
            link = Path(os.path.relpath(plot, run_dir)).as_posix().replace(" ", "%20")
            parts.append(f"**{caption}**\n\n![{caption}]({link})")
    if config:
        rows = [["Key", "Value"], *([f"`{key}`", value] for key, value in _flatten(config))]
        parts += ["## Configuration", align_table(rows, numeric=False)]
    path = run_dir / "report.md"
    atomic_write_text(path, "\n\n".join(parts) + "\n")
    return path


def _flatten(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", str(value)))
    return rows
