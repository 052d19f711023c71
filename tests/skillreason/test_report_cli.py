"""``skillreason latency`` and ``skillreason report library`` on the sample library with BM25, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_pipeline import write_records
from data_pipeline.sample_library import load_sample_corpus, load_sample_requests
from skillreason.cli import main


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    load_sample_corpus().to_jsonl(folder / "corpus.jsonl")
    write_records(folder / "bench.jsonl", load_sample_requests()[1])
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def bench_arguments(folder: Path) -> list[str]:
    return ["--bench", str(folder / "bench.jsonl"), "--corpus", str(folder / "corpus.jsonl")]


def test_latency_prints_the_table_it_writes(sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "latency", *bench_arguments(sample), "--out", str(tmp_path), "--queries", "7")
    assert code == 0
    assert (tmp_path / "latency.md").read_text().strip() in out
    assert (tmp_path / "latency.png").stat().st_size > 5_000
    stored = json.loads((tmp_path / "latency.json").read_text())
    assert (stored["protocol"]["seed"], stored["protocol"]["queries"]) == (20260720, 7)
    assert [row["method"] for row in stored["paths"]] == ["bm25"]


def test_latency_of_a_method_without_its_model_is_one_line(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code, _, err = run(
        capsys, "latency", *bench_arguments(sample), "--out", str(tmp_path), "--method", "rerank", "--device", "cpu"
    )
    assert code == 1
    assert err.startswith("error: method rerank needs a model (--model) and a reranker (--rerank)")


def test_report_library_writes_a_page_and_says_what_it_found(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out_dir = tmp_path / "report"
    code, out, _ = run(
        capsys, "report", "library", "--model", "bm25", "--corpus", str(sample / "corpus.jsonl"), "--out", str(out_dir),
        "--bench", str(sample / "bench.jsonl"), "--per-skill", "3",
    )  # fmt: skip
    assert code == 0
    assert "recall@10" in out
    assert {path.name for path in out_dir.iterdir()} == {
        "index.html",
        "report.json",
        "map.png",
        "ranks.png",
        "skills.png",
    }
    page = (out_dir / "index.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "Real requests" in page
    assert json.loads((out_dir / "report.json").read_text())["self_retrieval"]["most_a_skill"] == 3


def test_report_library_of_a_missing_file_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, _, err = run(capsys, "report", "library", "--model", "bm25", "--corpus", str(tmp_path / "none.jsonl"))
    assert code == 1
    assert "none.jsonl" in err
