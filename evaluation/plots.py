"""Training curves and recall by stage, as PNG files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.report import TABLE_METRICS, ordered_systems, system_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#333333"
_LINE = "#2b6cb0"
_SYSTEM_COLORS = {
    "bm25": "#8c8c8c",
    "untrained": "#cfcfcf",
    "stage1": "#8fbbe3",
    "stage2": "#2b6cb0",
    "hybrid": "#dd7a2b",
}
_OTHER_COLORS = ("#6a9f58", "#9467bd", "#b5a13a", "#c4577c", "#4aa3a2")
_FEW_POINTS = 12
"""Curves this short are drawn as they are: smoothing would only hide them."""


def plot_curves(
    metrics_rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    path: str | Path,
    title: str,
    x: str = "step",
) -> Path:
    """One panel per key, with its own scale: the values faint, their smoothed course strong.

    Args:
        metrics_rows: logged rows, as in ``metrics.jsonl``; rows without a key have no point in its panel,
            values that are not finite leave a gap.
        keys: what to draw, in order; keys that no row has are left out.
        path: PNG file to write.
        title: above all panels.
        x: key of the horizontal axis; rows without it are numbered.

    Raises:
        ValueError: no row has any of the keys.
    """
    curves = {key: _curve(metrics_rows, key, x) for key in keys}
    curves = {key: curve for key, curve in curves.items() if len(curve[0])}
    if not curves:
        raise ValueError(f"no row has a number under any of {', '.join(keys)}; nothing to plot in {path}")
    columns = min(3, len(curves))
    lines = math.ceil(len(curves) / columns)
    figure = new_figure(max(6.0, 4.0 * columns), max(3.6, 2.6 * lines + 0.5))
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    for number, (key, (steps, values)) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(lines, columns, number)
        if len(steps) <= _FEW_POINTS:
            axes.plot(steps, values, color=_LINE, linewidth=1.6, marker="o", markersize=3.5)
        else:
            axes.plot(steps, values, color=_LINE, linewidth=0.8, alpha=0.3)
            axes.plot(steps, smooth(values), color=_LINE, linewidth=1.8)
        axes.set_title(key, fontsize=10, loc="left", color=INK)
        tidy_axes(axes)
        axes.set_xlabel(x, fontsize=9, color=INK)
    return save_figure(figure, path)


def smooth(values: np.ndarray) -> np.ndarray:
    """Local linear fit of ``values[n]`` to the nearest two fifteenths of the curve, near points weighing more.

    Not a trailing average, which lags and shows a rising curve too low; a straight line stays one, up to its ends. Gaps
    (NaN) are skipped and stay gaps.
    """
    finite = np.flatnonzero(np.isfinite(values))
    width = min(max(5, 2 * (len(values) // 15) + 1), len(finite))
    out = np.full(len(values), np.nan)
    for place, i in enumerate(finite):
        # Shifted at the ends, not cut: readers look at the last values, and a short window shows noise.
        first = min(max(0, place - width // 2), len(finite) - width)
        near = finite[first : first + width]
        distance = np.abs(near - i)
        if width < 3:
            out[i] = values[i]
        else:
            weights = 1 - distance / (distance.max() + 1)
            out[i] = np.polynomial.polynomial.polyfit(near - i, values[near], 1, w=np.sqrt(weights))[0]
    return out


def plot_recall_by_stage(
    results: Mapping[str, Mapping[str, float]], path: str | Path, title: str = "Retrieval by stage"
) -> Path:
    """Grouped bars in percent: R@1, R@5, R@10 and NDCG@10, one bar per system, in the order of the table.

    Args:
        results: metrics (fractions) by system, as under ``systems`` in ``results.json``.
        path: PNG file to write.
        title: above the bars.

    Raises:
        ValueError: no system, or one without one of the four metrics.
    """
    systems = ordered_systems(results)
    width = 0.84 / len(systems)
    figure = new_figure(max(8.0, 1.3 + 1.9 * len(systems)), 4.4)
    axes = figure.add_subplot()
    others = iter(_OTHER_COLORS * len(systems))
    for number, system in enumerate(systems):
        color = _SYSTEM_COLORS.get(system) or next(others)
        heights = [100 * results[system][metric] for metric in TABLE_METRICS]
        places = [group + (number - (len(systems) - 1) / 2) * width for group in range(len(TABLE_METRICS))]
        bars = axes.bar(places, heights, 0.92 * width, color=color, label=system_label(system))
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8, color=INK)
    axes.set_xticks(range(len(TABLE_METRICS)), list(TABLE_METRICS.values()), fontsize=10)
    axes.set_xlim(-0.5, len(TABLE_METRICS) - 0.5)
    axes.set_ylabel("percent", fontsize=9, color=INK)
    axes.set_ylim(0, 105)
    tidy_axes(axes)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    figure.legend(loc="outside lower center", ncols=min(len(systems), 6), fontsize=9, frameon=False)
    return save_figure(figure, path)


def _curve(rows: Sequence[Mapping[str, Any]], key: str, x: str) -> tuple[np.ndarray, np.ndarray]:
    points = [(row.get(x, number), row[key]) for number, row in enumerate(rows) if row.get(key) is not None]
    points = [(float(step), float(value)) for step, value in points]
    values = np.array([value for _, value in points])
    if not np.isfinite(values).any():
        return np.zeros(0), np.zeros(0)
    return np.array([step for step, _ in points]), np.where(np.isfinite(values), values, np.nan)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, inches."""
    # The object interface draws with Agg whatever the machine's backend, and leaves no global state.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def tidy_axes(axes: Axes) -> None:
    """The house style: thin grey lines, no box."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.tick_params(labelsize=8, colors=INK, color="#999999")
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a PNG that appears only when complete."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        figure.savefig(scratch, format="png", dpi=150)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    return target
