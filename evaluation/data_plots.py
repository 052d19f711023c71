"""The plots of the data report: bars by name, and histograms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evaluation.plots import INK, new_figure, save_figure, tidy_axes

BAR = "#2b6cb0"
NAME_CHARS = 48


def bars(values: Mapping[str, float], path: Path, title: str, number: str = "%d") -> Path:
    """Horizontal bars, one a name, from the top in the given order, with their numbers."""
    names = [name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…" for name in values]
    figure = new_figure(7.2, 0.9 + 0.26 * len(names))
    axes = figure.add_subplot()
    drawn = axes.barh(range(len(names)), list(values.values()), 0.72, color=BAR)
    axes.bar_label(drawn, fmt=number, padding=3, fontsize=8, color=INK)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    tidy_axes(axes)
    axes.grid(visible=False, axis="y")
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    return save_figure(figure, path)


def histograms(values: Mapping[str, Sequence[float]], path: Path, title: str) -> Path:
    """One panel a name, side by side, each with a line at its mean."""
    figure = new_figure(max(4.8, 3.4 * len(values)), 2.8)
    for place, (name, numbers) in enumerate(values.items(), start=1):
        axes = figure.add_subplot(1, len(values), place)
        axes.hist(numbers, bins=min(30, max(5, len(set(numbers)))), color=BAR)
        mean = sum(numbers) / len(numbers)
        axes.axvline(mean, color="#dd7a2b", linewidth=1.4)
        axes.set_title(f"{name}, mean {mean:.2f}", fontsize=10, loc="left", color=INK)
        tidy_axes(axes)
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    return save_figure(figure, path)
