"""The pictures of the library report: ranks, lengths, and the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evaluation.data_plots import BAR
from evaluation.library_report.reach import DEPTH, Reach
from evaluation.plots import INK, new_figure, save_figure, tidy_axes

TSNE_LIMIT = 5_000
"""Skills up to which the map is a t-SNE, which takes seconds there and the better part of an hour at 65,000; PCA above."""
COLORS = (
    "#2b6cb0", "#6a9f58", "#dd7a2b", "#9467bd", "#4aa3a2", "#b5a13a", "#8c564b", "#8fbbe3", "#c4577c", "#7f7f7f",
)  # fmt: skip
OTHER = "#c9ced4"
PROBLEM = "#c53030"
_BINS = ((1, 1, "1"), (2, 3, "2–3"), (4, 10, "4–10"), (11, 30, "11–30"), (31, DEPTH, f"31–{DEPTH}"))


def rank_counts(reach: Reach) -> dict[str, int]:
    """Requests by the rank of their own skill, in bins; the last one holds those that did not find it."""
    counts = {name: int(((reach.ranks >= low) & (reach.ranks <= high)).sum()) for low, high, name in _BINS}
    return {**counts, f"beyond {DEPTH}": int((reach.ranks == 0).sum())}


def plot_ranks(reach: Reach, path: Path) -> Path:
    """Bars of :func:`rank_counts`, in percent of the requests."""
    counts = rank_counts(reach)
    total = max(1, sum(counts.values()))
    figure = new_figure(6.4, 2.9)
    axes = figure.add_subplot()
    colors = [BAR, *["#8fbbe3"] * 2, *["#e9b48a"] * 2, PROBLEM]
    bars = axes.bar(range(len(counts)), [100 * n / total for n in counts.values()], 0.7, color=colors)
    axes.bar_label(bars, [f"{100 * n / total:.1f}%" for n in counts.values()], padding=2, fontsize=8, color=INK)
    axes.set_xticks(range(len(counts)), list(counts), fontsize=9)
    axes.set_xlabel("rank of the skill that a request was made from", fontsize=9, color=INK)
    axes.margins(y=0.14)
    axes.set_ylabel("percent of requests", fontsize=9, color=INK)
    tidy_axes(axes)
    axes.grid(visible=False, axis="x")
    return save_figure(figure, path)


def plot_skill_recall(reach: Reach, path: Path) -> Path:
    """How many skills are found by what share of their own requests."""
    asked = reach.requests > 0
    shares = 100 * reach.found(reach.depth)[asked] / reach.requests[asked]
    figure = new_figure(6.4, 2.9)
    axes = figure.add_subplot()
    axes.hist(shares, bins=np.linspace(0, 100, 11).tolist(), color=BAR, rwidth=0.9)
    axes.set_xlabel(f"percent of a skill's requests that find it among the first {reach.depth}", fontsize=9, color=INK)
    axes.set_ylabel("skills", fontsize=9, color=INK)
    tidy_axes(axes)
    axes.grid(visible=False, axis="x")
    return save_figure(figure, path)


def layout(embeddings: np.ndarray, seed: int = 0) -> tuple[np.ndarray, str]:
    """Two dimensions ``[n, 2]`` of ``embeddings[n, d]``, and the method's name: t-SNE, or PCA for large libraries."""
    from sklearn.decomposition import PCA

    n = len(embeddings)
    if n < 5:
        return np.column_stack([np.arange(n), np.zeros(n)]).astype(float), "a line"
    start = PCA(2, random_state=seed).fit_transform(embeddings)
    if n > TSNE_LIMIT:
        return start, "principal components"
    from sklearn.manifold import TSNE

    # As init="pca" scales it, which divides by zero where all rows are equal; with noise, so that no two copies coincide.
    start = 1e-4 * start / max(float(start[:, 0].std()), 1e-9)
    start = start + 1e-5 * np.random.default_rng(seed).standard_normal(start.shape)
    tsne = TSNE(2, perplexity=min(30, (n - 1) / 3), init=start.astype(np.float32), metric="cosine", random_state=seed)
    return tsne.fit_transform(embeddings), "t-SNE"


def plot_map(points: np.ndarray, domains: Sequence[str], marked: Sequence[tuple[int, str]], path: Path) -> Path:
    """Skills as dots coloured by domain, those to be mended ringed; ``marked`` are (row, number to write or "").

    The ten largest domains have colours of their own.
    """
    figure = new_figure(8.2, 6.4)
    axes = figure.add_subplot()
    size = float(np.clip(12000 / max(1, len(points)), 3, 40))
    largest = [name for name, _ in Counter(domains).most_common(len(COLORS))]
    colors = dict(zip(largest, COLORS, strict=False))
    labels = np.array(domains)
    for name in [*largest, None]:
        rows = np.flatnonzero(labels == name) if name is not None else np.flatnonzero(~np.isin(labels, largest))
        if len(rows):
            color = OTHER if name is None else colors[name]
            label = "other" if name is None else _short(name)
            axes.scatter(points[rows, 0], points[rows, 1], size, color=color, alpha=0.75, linewidths=0, label=label)
    rows = [row for row, _ in marked]
    if rows:
        axes.scatter(
            points[rows, 0], points[rows, 1], 2.2 * size + 24, facecolors="none", edgecolors=PROBLEM, linewidths=1.2,
            label="to be mended first",
        )  # fmt: skip
    for row, number in marked:
        if number:
            axes.annotate(
                number, (points[row, 0], points[row, 1]), (4, 4), textcoords="offset points", fontsize=8, color=PROBLEM,
                fontweight="bold",
            )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#dddddd")
    legend = figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False, markerscale=1.4)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return save_figure(figure, path)


def _short(name: str, width: int = 24) -> str:
    shown = "".join(c for c in name if c.isprintable()).lstrip("_")  # matplotlib leaves out labels that begin with one
    return shown if len(shown) <= width else shown[: width - 1] + "…"
