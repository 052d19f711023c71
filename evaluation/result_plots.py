"""Plots of results: recall by slice, and the differences between two systems, both with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.plots import INK, new_figure, save_figure, tidy_axes

BAR = "#8fbbe3"
POINT = "#2b6cb0"
_HEADS = {"length": "Length of the request", "domain": "Domain", "overlap": "Content words shared with the target"}


def plot_slices(
    slices: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, metric: str, title: str
) -> Path | None:
    """One panel a kind of slice: a bar a slice with its interval and number of requests; None where there are no slices.

    Args:
        slices: ``slices`` of a result, see :func:`evaluation.slices.slice_rows`.
        path: PNG file to write.
        metric: what the bars show, one of the metrics of the rows; slices without it are left out.
        title: above all panels.
    """
    kinds = {kind: [row for row in rows if metric in row["metrics"]] for kind, rows in slices.items()}
    kinds = {kind: rows for kind, rows in kinds.items() if rows}
    if not kinds:
        return None
    counts = [len(rows) + 1.6 for rows in kinds.values()]
    figure = new_figure(7.2, 0.8 + 0.3 * sum(counts))
    panels = figure.subplots(len(kinds), 1, height_ratios=counts, squeeze=False)[:, 0]
    for axes, (kind, rows) in zip(panels, kinds.items(), strict=True):
        means = [100 * row["metrics"][metric] for row in rows]
        bounds = [[100 * end for end in row["intervals"][metric]] for row in rows]
        errors = [
            [max(mean - low, 0.0), max(high - mean, 0.0)] for mean, (low, high) in zip(means, bounds, strict=True)
        ]
        places = range(len(rows))
        axes.barh(places, means, 0.66, color=BAR)
        axes.errorbar(
            means, places, xerr=list(zip(*errors, strict=True)), fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5
        )
        axes.set_yticks(places, [f"{row['slice']}  (n = {row['n_queries']:,})" for row in rows], parse_math=False)
        axes.invert_yaxis()
        axes.set_xlim(0, 102)
        axes.set_title(_HEADS.get(kind, kind), fontsize=10, loc="left", color=INK)
        tidy_axes(axes)
        axes.grid(visible=False, axis="y")
    figure.supxlabel(f"{metric}, percent; lines are 95% intervals", fontsize=9, color=INK)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    return save_figure(figure, path)


def plot_comparison(comparison: Mapping[str, Any], path: str | Path) -> Path:
    """The differences of :func:`evaluation.compare.compare` in points: one a metric, with its interval and p, against zero."""
    rows = comparison["metrics"]
    figure = new_figure(7.2, 1.3 + 0.42 * len(rows))
    axes = figure.add_subplot()
    for place, row in enumerate(rows.values()):
        low, high = (100 * end for end in row["interval"])
        axes.plot([low, high], [place, place], color=POINT, linewidth=2.2, solid_capstyle="round")
        axes.plot(100 * row["difference"], place, "o", color=POINT, markersize=6)
        axes.annotate(
            f"{100 * row['difference']:+.2f}, p {'< 0.001' if row['p_value'] < 0.001 else format(row['p_value'], '.3f')}",
            (100 * row["difference"], place),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    axes.axvline(0, color="#999999", linewidth=1.0)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.margins(x=0.15, y=0.25)
    axes.set_xlabel("difference in points, with its 95% interval", fontsize=9, color=INK)
    tidy_axes(axes)
    axes.grid(visible=False, axis="y")
    names = [comparison[side]["model"] for side in ("second", "first")]
    figure.suptitle(" minus ".join(names), fontsize=12, fontweight="bold", color=INK, parse_math=False)
    return save_figure(figure, path)
