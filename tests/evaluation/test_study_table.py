"""Tables over benchmarks and seeds: means and deviations by hand, the paper beside them, gaps where nothing is finished."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.study_table import BenchSpec, TableRow, plot_study, study_markdown, table_rows

BENCHES = {"easy": BenchSpec("x", label="Easy", paper="skillreason-bench"), "hard": BenchSpec("y")}


def write(path: Path, recall: float) -> Path:
    path.write_text(json.dumps({"metrics": {"recall@1": recall, "recall@10": 2 * recall}}))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> list[TableRow]:
    three = [write(tmp_path / f"{n}.json", value) for n, value in enumerate((0.1, 0.2, 0.3))]
    return [
        TableRow("Base", {"easy": three[:1]}, paper="table3/base"),
        TableRow("Ours", {"easy": [*three, tmp_path / "running.json"], "hard": three[1:]}, block="Stage I"),
    ]


def test_a_cell_has_mean_and_sample_deviation_of_the_finished_seeds(rows: list[TableRow], tmp_path: Path):
    base, ours = table_rows(rows, BENCHES, ("recall@1", "recall@10"))
    cell = ours["benches"]["easy"]
    assert cell["n"] == 3
    assert cell["mean"] == {"recall@1": pytest.approx(0.2), "recall@10": pytest.approx(0.4)}
    assert cell["sd"] == {"recall@1": pytest.approx(0.1), "recall@10": pytest.approx(0.2)}  # n - 1
    assert cell["files"] == [str(tmp_path / f"{n}.json") for n in range(3)]
    assert base["benches"]["easy"]["sd"] == {}
    assert base["benches"]["easy"]["paper"]["recall@1"] == pytest.approx(0.299)
    assert base["benches"]["hard"] == {"n": 0, "mean": {}, "sd": {}, "paper": {}, "files": []}


def test_markdown_has_a_table_a_benchmark_with_the_papers_figures_where_it_has_them(rows: list[TableRow]):
    text = study_markdown(table_rows(rows, BENCHES, ("recall@1",)), BENCHES, ("recall@1",))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert cells[0] == ["Configuration", "R@1", "R@1 (paper)"]
    assert cells[2] == ["Base", "10.0", "29.90"]
    assert cells[3] == ["*Stage I*", "", ""]
    assert cells[4] == ["Ours", "20.0 ± 10.0", "–"]
    assert cells[5] == ["Configuration", "R@1"]
    assert cells[7] == ["Base", "–"]
    assert [line for line in text.splitlines() if line.startswith("#")] == ["### Easy", "### hard"]


def test_what_is_finished_is_drawn(rows: list[TableRow], tmp_path: Path):
    found = plot_study(table_rows(rows, BENCHES), BENCHES, tmp_path / "plot.png", "title")
    assert found is not None
    assert found.read_bytes().startswith(b"\x89PNG")
    assert plot_study(table_rows([TableRow("None", {})], BENCHES), BENCHES, tmp_path / "no.png", "title") is None
    assert not (tmp_path / "no.png").exists()
