"""When each part of a step ran: rows in ``timeline.jsonl``, the ``time/`` curves, and a picture of both."""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluation.plots import INK, new_figure, save_figure, tidy_axes
from trainers.tracking import keep_rows_until, read_metrics

PHASES = {
    "rollout": "#2b6cb0",
    "reward": "#dd7a2b",
    "reference": "#6a9f58",
    "update": "#9467bd",
    "weight_sync": "#c4577c",
    "validation": "#b5a13a",
    "save": "#8c8c8c",
}
"""The parts of a step in their order, with their colours."""

SHOWN_STEPS = 4

Intervals = list[tuple[float, float]]


class Timeline:
    """Measures the parts of one step after the other; parts may overlap and come from several threads.

    A row is ``{"step", "began", "spans": {part: [[start, end], ...]}}``: ``began`` in seconds since 1970, the rest in seconds
    since then. A step that was cut short and begun again has only the row of its completion.
    """

    def __init__(self, file: Path):
        self.file = file
        self._lock = threading.Lock()
        self.begin(0)

    def begin(self, step: int) -> None:
        """A step starts now."""
        self._step, self._began, self._start = step, time.time(), time.perf_counter()
        self._spans: dict[str, Intervals] = {}

    @contextlib.contextmanager
    def span(self, part: str) -> Iterator[None]:
        """Measure a part of the step, also where it raises."""
        spans, origin = self._spans, self._start
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                spans.setdefault(part, []).append((start - origin, time.perf_counter() - origin))

    def curves(self) -> dict[str, float]:
        """The step's curves so far, in seconds."""
        return step_curves(self._spans)

    def end(self) -> None:
        """Write the step's row."""
        spans = {part: [[round(value, 4) for value in each] for each in self._spans[part]] for part in self._spans}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"step": self._step, "began": round(self._began, 3), "spans": spans}) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the rows after ``step``: those updates will be made again."""
        keep_rows_until(self.file, step)

    def plot(self, path: Path) -> None:
        """Draw the last steps and the median share of each part."""
        rows = read_metrics(self.file)
        if rows:
            plot_timeline(rows, path)


def step_curves(spans: dict[str, Intervals]) -> dict[str, float]:
    """``time/<part>`` for each part, ``time/step`` from the first start to the last end of what an update needs, and
    ``time/overlap_saved``: what reward and reference would take one after the other, less what they took."""
    curves = {f"time/{part}": sum(end - start for start, end in intervals) for part, intervals in spans.items()}
    needed = [each for part, intervals in spans.items() if part not in {"validation", "save"} for each in intervals]
    if needed:
        curves["time/step"] = max(end for _, end in needed) - min(start for start, _ in needed)
    together = [each for part in ("reward", "reference") for each in spans.get(part, [])]
    if together:
        took = max(end for _, end in together) - min(start for start, _ in together)
        curves["time/overlap_saved"] = max(0.0, sum(end - start for start, end in together) - took)
    return curves


def plot_timeline(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """The last steps, each from its own zero, and below them the median seconds of each part over all steps.

    Args:
        rows: of ``timeline.jsonl``.
        path: PNG file to write.
    """
    shown = list(rows)[-SHOWN_STEPS:]
    figure = new_figure(10.0, 2.6 + 0.62 * len(shown))
    steps, medians = figure.subplots(2, 1, height_ratios=[max(1.6, 0.8 * len(shown)), 1.0])
    for line, row in enumerate(shown):
        for part, color in PHASES.items():
            # reward and reference run at the same time: half a lane each
            low, height = {"reward": (-0.36, 0.36), "reference": (0.0, 0.36)}.get(part, (-0.36, 0.72))
            bars = [(start, end - start) for start, end in row["spans"].get(part, [])]
            steps.broken_barh(bars, (line + low, height), facecolors=color, edgecolor="white", linewidth=0.5)
    steps.set_yticks(range(len(shown)), [f"step {row['step']}" for row in shown])
    steps.set_ylim(len(shown) - 0.5, -0.5)
    steps.set_xlim(left=0)
    steps.set_title("the last steps, in seconds from their start", fontsize=10, loc="left", color=INK)

    left = 0.0
    for part, color in PHASES.items():
        seconds = [sum(end - start for start, end in row["spans"][part]) for row in rows if part in row["spans"]]
        if not seconds:
            continue
        median = statistics.median(seconds)
        medians.barh(0, median, 0.6, left=left, color=color, edgecolor="white", linewidth=0.5)
        medians.barh(0, 0, color=color, label=f"{part} {_short(median)}")
        left += median
    medians.set_yticks([])
    medians.set_xlim(0, left or 1.0)
    medians.set_title(
        f"median seconds of each part over {len(rows)} steps, end to end", fontsize=10, loc="left", color=INK
    )
    for axes in (steps, medians):
        tidy_axes(axes)
        axes.grid(visible=False, axis="y")
    figure.suptitle("Stage II: where the time goes", fontsize=12, fontweight="bold", color=INK)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return save_figure(figure, path)


def _short(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2f} s"
