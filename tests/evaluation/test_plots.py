"""Plots: files that are images, the smoothing, and what is refused."""

from __future__ import annotations

import matplotlib.image
import numpy as np
import pytest

from evaluation import plot_curves, plot_recall_by_stage
from evaluation.plots import smooth

METRICS = {"recall@1": 0.1, "recall@5": 0.2, "recall@10": 0.3, "ndcg@10": 0.2}


def test_curves_are_drawn_with_a_panel_per_key_that_has_values(tmp_path):
    rows = [{"step": i, "loss": 1 / (i + 1), "reward/total/mean": float(i)} for i in range(40)]
    one = matplotlib.image.imread(plot_curves(rows, ["loss"], tmp_path / "new" / "one.png", "Loss"))
    two = matplotlib.image.imread(plot_curves(rows, ["loss", "reward/total/mean"], tmp_path / "two.png", "Both"))
    absent = matplotlib.image.imread(plot_curves(rows, ["loss", "no such key"], tmp_path / "three.png", "Loss"))
    assert two.shape[1] > one.shape[1]
    np.testing.assert_array_equal(absent, one)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["one.png", "three.png", "two.png"]


def test_values_that_are_missing_or_not_finite_leave_a_gap(tmp_path):
    rows = [{"step": 0, "x": 1.0}, {"step": 1}, {"step": 2, "x": float("nan")}, {"step": 3, "x": None}, {"x": 2.0}]
    assert matplotlib.image.imread(plot_curves(rows, ["x"], tmp_path / "x.png", "x")).std() > 0


def test_nothing_to_plot_is_an_error_that_names_the_keys(tmp_path):
    with pytest.raises(ValueError, match="loss, kl"):
        plot_curves([{"step": 1, "loss": float("nan")}], ["loss", "kl"], tmp_path / "x.png", "x")


def test_smoothing_keeps_a_straight_line_and_its_gaps():
    line = np.linspace(-1, 3, 60)
    line[20] = np.nan
    np.testing.assert_allclose(smooth(line), line, atol=1e-12)


def test_smoothing_takes_most_of_the_noise_away():
    noise = np.random.default_rng(0).normal(size=600)
    assert smooth(noise).std() < 0.3 * noise.std()


def test_bars_need_all_four_metrics_of_a_system(tmp_path):
    with pytest.raises(ValueError, match=r"'stage1' has no ndcg@10"):
        plot_recall_by_stage({"stage1": {k: v for k, v in METRICS.items() if k != "ndcg@10"}}, tmp_path / "x.png")


def test_bars_of_each_system_appear(tmp_path):
    from evaluation import plots

    path = plot_recall_by_stage({"stage1": METRICS, "bm25": METRICS, "mine": METRICS}, tmp_path / "bars.png")
    colors = {tuple(c) for c in (matplotlib.image.imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3)}
    for name in ("bm25", "stage1"):
        color = plots._SYSTEM_COLORS[name]
        assert tuple(int(color[i : i + 2], 16) for i in (1, 3, 5)) in colors
