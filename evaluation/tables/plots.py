"""What the tables' figures look like: recall by depth, recall by domain, and what the rewards of a run did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.plots import INK, new_figure, save_figure, tidy_axes
from evaluation.results import StoredResult

DEPTHS = (1, 2, 3, 5, 10, 20, 50, 100)
_COLORS = ("#2b6cb0", "#dd7a2b", "#6a9f58", "#9467bd", "#c4577c", "#4aa3a2", "#8c8c8c", "#b5a13a")
_LINES = ("-", "--", ":")


def style(number: int) -> dict[str, Any]:
    """Colour and line of the ``number``-th system; no two of the first 24 are alike."""
    return {"color": _COLORS[number % len(_COLORS)], "linestyle": _LINES[number // len(_COLORS) % len(_LINES)]}


def plot_recall_curves(results: Mapping[str, StoredResult], path: str | Path, title: str) -> Path:
    """Recall at every depth of :data:`DEPTHS` that all lists reach, a line a system.

    Args:
        results: by label; on one benchmark.
        path: PNG file to write.
        title: above the lines.
    """
    reached = min(max(len(ids) for ids in result.ranking.ids) for result in results.values())
    depths = [depth for depth in DEPTHS if depth <= max(reached, 1)]
    figure = new_figure(7.2, 4.6)
    axes = figure.add_subplot()
    for number, (label, result) in enumerate(results.items()):
        means = result.scores(depths).means()
        recall = [100 * means[f"recall@{depth}"] for depth in depths]
        axes.plot(depths, recall, marker="o", markersize=3.5, linewidth=1.7, label=label, **style(number))
    axes.set_xscale("log")
    axes.set_xticks(depths, [str(depth) for depth in depths])
    axes.minorticks_off()
    axes.set_ylim(0, 102)
    axes.set_xlabel("results looked at (k)", fontsize=9, color=INK)
    axes.set_ylabel("recall@k, percent", fontsize=9, color=INK)
    tidy_axes(axes)
    axes.legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK, parse_math=False)
    return save_figure(figure, path)


def plot_domains(
    slices: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, title: str, metric: str = "recall@10"
) -> Path | None:
    """Bars of one metric by domain, a colour a system, with their 95% intervals; None where no system has domains.

    Args:
        slices: by label the ``slices.domain`` rows of a result.
        path: PNG file to write.
        title: above the bars.
    """
    shown = {label: {row["slice"]: row for row in rows if metric in row["metrics"]} for label, rows in slices.items()}
    shown = {label: rows for label, rows in shown.items() if rows}
    if not shown:
        return None
    counts = {name: row["n_queries"] for rows in shown.values() for name, row in rows.items()}
    domains = sorted(counts, key=lambda name: (-counts[name], name))
    height = 0.8 / len(shown)
    figure = new_figure(7.6, 1.4 + len(domains) * max(0.34, 0.17 * len(shown)))
    axes = figure.add_subplot()
    for number, (label, rows) in enumerate(shown.items()):
        offset = (number - (len(shown) - 1) / 2) * height
        known = [(place, rows[name]) for place, name in enumerate(domains) if name in rows]
        places = [place + offset for place, _ in known]
        means = [100 * row["metrics"][metric] for _, row in known]
        errors = [[], []]
        for mean, (_, row) in zip(means, known, strict=True):
            low, high = (100 * end for end in row["intervals"].get(metric, (mean / 100, mean / 100)))
            errors[0].append(max(mean - low, 0.0))
            errors[1].append(max(high - mean, 0.0))
        axes.barh(places, means, 0.92 * height, color=style(number)["color"], label=label, alpha=0.85)
        axes.errorbar(means, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5)
    axes.set_yticks(range(len(domains)), [f"{name}  (n = {counts[name]:,})" for name in domains], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, 102)
    axes.set_xlabel(f"{metric}, percent; lines are 95% intervals", fontsize=9, color=INK)
    tidy_axes(axes)
    axes.grid(visible=False, axis="y")
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK, parse_math=False)
    figure.legend(loc="outside lower center", ncols=min(len(shown), 3), fontsize=8, frameon=False)
    return save_figure(figure, path)


def plot_margins(rows: Sequence[Mapping[str, Any]], path: str | Path, title: str) -> Path | None:
    """A point an update: the mean margin of the bare requests (eq. 8) against that with rationales, coloured by update.

    Above the diagonal the rationales help the frozen retriever, below they mislead it. None where no row has both.
    """
    keys = ("retrieval/baseline_margin", "retrieval/margin")
    points = [
        (row[keys[0]], row[keys[1]], row.get("step", number))
        for number, row in enumerate(rows)
        if all(isinstance(row.get(key), int | float) for key in keys)
    ]
    if not points:
        return None
    bare, augmented, steps = zip(*points, strict=True)
    figure = new_figure(5.6, 4.8)
    axes = figure.add_subplot()
    low, high = min(*bare, *augmented), max(*bare, *augmented)
    pad = 0.06 * (high - low) or 0.01
    axes.plot([low - pad, high + pad], [low - pad, high + pad], color="#999999", linewidth=1.0, linestyle="--")
    drawn = axes.scatter(bare, augmented, c=steps, cmap="viridis", s=22)
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(low - pad, high + pad)
    axes.set_xlabel("margin of the bare request, mean of an update", fontsize=9, color=INK)
    axes.set_ylabel("margin with its rationales", fontsize=9, color=INK)
    tidy_axes(axes)
    figure.colorbar(drawn, ax=axes, label="update")
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK, parse_math=False)
    return save_figure(figure, path)
