"""Plots of slices and comparisons: what is drawn, with matplotlib asked about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation import result_plots
from evaluation.result_plots import plot_comparison, plot_slices

PNG = b"\x89PNG\r\n\x1a\n"


def row(name: str, count: int, value: float, low: float, high: float) -> dict:
    return {
        "slice": name,
        "n_queries": count,
        "metrics": {"recall@10": value},
        "intervals": {"recall@10": [low, high]},
    }


SLICES = {
    "length": [row("1 to 5 words", 9, 0.25, 0.0, 0.5), row("6 words", 7, 0.5, 0.4, 0.75)],
    "domain": [row("$ml$ & co", 1200, 1.0, 1.0, 1.0), row("law", 3, 0.0, 0.0, 0.0)],
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """Every figure that is saved."""
    kept: list = []
    original = result_plots.save_figure
    monkeypatch.setattr(result_plots, "save_figure", lambda figure, path: kept.append(figure) or original(figure, path))
    return kept


def test_each_kind_of_slice_has_a_panel_with_its_bars(figures, tmp_path: Path):
    path = plot_slices(SLICES, tmp_path / "new" / "slices.png", "recall@10", "bm25 on mine")
    assert path is not None
    assert path.read_bytes().startswith(PNG)
    length, domain = figures[0].axes
    assert length.get_title(loc="left") == "Length of the request"
    assert [bar.get_width() for bar in length.patches] == [25.0, 50.0]
    assert [label.get_text() for label in domain.get_yticklabels()] == ["$ml$ & co  (n = 1,200)", "law  (n = 3)"]
    ends = [tuple(line[:, 0]) for line in length.collections[0].get_segments()]
    assert ends == [(0.0, 50.0), (40.0, 75.0)]


def test_slices_without_the_metric_are_left_out(figures, tmp_path: Path):
    mixed = {"length": [*SLICES["length"], row("x", 1, 0, 0, 0) | {"metrics": {}}]}
    plot_slices(mixed, tmp_path / "s.png", "recall@10", "t")
    assert len(figures[0].axes[0].patches) == 2
    assert plot_slices({}, tmp_path / "none.png", "recall@10", "t") is None
    assert not (tmp_path / "none.png").exists()


def test_a_comparison_shows_differences_in_points_with_their_intervals(figures, tmp_path: Path):
    metrics = {
        "recall@1": {"difference": 0.05, "interval": [0.01, 0.09], "p_value": 0.02},
        "ndcg@10": {"difference": -0.02, "interval": [-0.03, -0.01], "p_value": 0.0001},
    }
    comparison = {"first": {"model": "bm25"}, "second": {"model": "runs/a_b"}, "metrics": metrics}
    assert plot_comparison(comparison, tmp_path / "c.png").read_bytes().startswith(PNG)
    axes = figures[0].axes[0]
    spans = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert spans[:2] == [pytest.approx((1.0, 9.0)), pytest.approx((-3.0, -1.0))]
    assert [text.get_text() for text in axes.texts] == ["+5.00, p 0.020", "-2.00, p < 0.001"]
    assert figures[0].get_suptitle() == "runs/a_b minus bm25"
