"""``skillreason skill2query generate`` and ``quality`` end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from data_pipeline import SkillCorpus
from data_pipeline.rows import read_rows
from data_pipeline.sample_library import load_sample_corpus
from skillreason.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["skill2query", *map(str, arguments)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    SkillCorpus(list(load_sample_corpus())[:10]).to_jsonl(path)
    return path


def test_generate_writes_pseudo_queries_and_says_what_it_did(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "pseudo.jsonl"
    result = run("generate", corpus, "--out", out, "--per-capability", 2, "--seed", 3)
    assert result.exit_code == 0, result.output
    rows = [row for _, row in read_rows(out)]
    assert f"{len(rows)} pseudo-queries in {out}" in result.output
    assert {row["method"] for row in rows} == {"skill2query"}
    assert "10 skills: " in result.output


def test_the_same_seed_gives_the_same_file(corpus: Path, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        assert run("generate", corpus, "--out", tmp_path / name, "--seed", 5).exit_code == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_quality_prints_the_table_and_writes_json(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "pseudo.jsonl"
    run("generate", corpus, "--out", out)
    result = run("quality", out, "--corpus", corpus, "--out", tmp_path / "q.json")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "q.json").read_text())
    (row,) = report["methods"]
    assert (report["skills"], row["method"]) == (10, "skill2query")
    assert f"| skill2query | {row['queries']} |" in result.output
    assert 0 < row["distinct_3"] <= 1


def test_a_baseline_without_a_teacher_is_refused(corpus: Path, tmp_path: Path) -> None:
    result = run("generate", corpus, "--out", tmp_path / "x.jsonl", "--method", "zero_shot")
    assert result.exit_code == 1
    assert "zero_shot needs a teacher model" in str(result.exception)
    assert not (tmp_path / "x.jsonl").exists()


def test_a_method_that_does_not_exist_is_refused(corpus: Path, tmp_path: Path) -> None:
    result = run("generate", corpus, "--out", tmp_path / "x.jsonl", "--method", "magic")
    assert "method is 'magic'; expected one of skill2query, zero_shot" in str(result.exception)


def test_a_teacher_is_configured_as_everywhere(corpus: Path, tmp_path: Path) -> None:
    result = run("generate", corpus, "kind=openai", "--out", tmp_path / "x.jsonl", "--method", "zero_shot")
    assert result.exit_code == 1
    assert "teacher.model is ''" in str(result.exception)


def test_queries_of_another_corpus_are_refused(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "pseudo.jsonl"
    run("generate", corpus, "--out", out)
    SkillCorpus(list(load_sample_corpus())[20:23]).to_jsonl(tmp_path / "other.jsonl")
    result = run("quality", out, "--corpus", tmp_path / "other.jsonl")
    assert result.exit_code == 1
    assert "which the corpus lacks" in str(result.exception)
