"""The paper's figures: cells read off its tables by hand, and sentences of its text that follow from them."""

from __future__ import annotations

import pytest

from evaluation.paper_figures import BENCHMARKS, TABLES, paper_metrics


@pytest.mark.parametrize(
    ("row", "benchmark", "metric", "percent"),
    [
        ("table3/base", "skillreason-bench", "recall@1", 29.90),
        ("table3/transfer", "sra-bench", "recall@10", 86.80),
        ("table3/self-cot", "skillret", "ndcg@10", 70.14),
        ("table4/skillreason-0.6b x qwen3-4b", "sra-bench", "recall@5", 85.78),
        ("table9/raw-transfer", "skillreason-bench", "recall@5", 32.64),
        ("table9/no-length", "skillret", "recall@1", 51.01),
        ("table9/teacher-cot", "sra-bench", "recall@1", 56.23),
    ],
)
def test_cells_of_the_tables(row: str, benchmark: str, metric: str, percent: float):
    assert paper_metrics(row, benchmark)[metric] == pytest.approx(percent / 100)


def test_every_row_has_four_figures_a_benchmark():
    assert {len(figures) for rows in TABLES.values() for figures in rows.values()} == {4 * len(BENCHMARKS)}


def test_recall_never_falls_with_depth():
    for table in TABLES.values():
        for figures in table.values():
            for first in (0, 4, 8):
                assert figures[first] < figures[first + 1] < figures[first + 2]


def test_the_gain_that_the_text_names_follows_from_table_3():
    """Main results: 17.56 points of recall@10 over the backbone, averaged over the three benchmarks."""
    gains = [
        paper_metrics("table3/stage2", b)["recall@10"] - paper_metrics("table3/base", b)["recall@10"]
        for b in BENCHMARKS
    ]
    assert 100 * sum(gains) / 3 == pytest.approx(17.56, abs=0.005)


def test_what_the_paper_does_not_have_is_refused_or_empty():
    with pytest.raises(ValueError, match="no row 'table3/rawr'"):
        paper_metrics("table3/rawr", "skillret")
    with pytest.raises(ValueError, match="no benchmark 'beir'"):
        paper_metrics("table3/raw", "beir")
    assert paper_metrics("", "skillret") == paper_metrics("table3/raw", "") == {}
