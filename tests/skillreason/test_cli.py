"""The command line: help with examples, errors in one line with the key's or file's name, and every short command run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from data_pipeline import SkillCorpus, read_stage1, read_stage2, write_records
from data_pipeline.sample_library import load_sample_corpus, load_sample_requests
from skillreason.cli import app, main

COMMANDS = {
    "demo",
    "ingest",
    "records",
    "backbone fetch",
    "backbone create",
    "train stage1",
    "train grpo",
    "train reranker",
    "evaluate",
    "benchmark",
    "compare",
    "rescore",
    "latency",
    "report library",
    "report tables",
    "grid",
    "ablate",
    "search",
    "end-to-end run",
    "end-to-end table",
    "mcp",
    "index build",
    "index update",
    "index info",
    "serve",
    "plan",
    "submit",
    "jobs list",
    "jobs logs",
    "jobs stop",
    "verl-dataset",
    "data build",
    "data status",
    "data report",
    "data audit",
    "data isolation",
    "data alternatives",
    "data review",
    "skg show",
    "skg build",
    "skill2query generate",
    "skill2query quality",
    "skill2query augment",
    "skill2query training",
    "skill2query groups",
    "skill2query evaluate",
}


def leaves(command: Any, path: str = "") -> Iterator[str]:
    """The full names of all commands that do something."""
    if not hasattr(command, "commands"):
        yield path
        return
    for name, child in command.commands.items():
        yield from leaves(child, f"{path} {name}".strip())


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of ``skillreason ARGUMENTS``, whose ``main`` always exits."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


# -- help ---------------------------------------------------------------------------------------------------------------


def test_these_are_the_commands():
    assert set(leaves(typer.main.get_command(app))) == COMMANDS


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_shows_an_example(command: str):
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    assert f"Example: skillreason {command} " in " ".join(result.output.split())


def test_the_trainers_modules_have_help_with_an_example():
    result = subprocess.run(
        [sys.executable, "-m", "trainers.grpo", "--help"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert result.stdout.startswith("usage: python -m trainers.grpo")
    assert "example:" in result.stdout
    assert "run.name=mine" in result.stdout


# -- what is refused ----------------------------------------------------------------------------------------------------

STAGE1 = ("train", "stage1", "stage1_0.6b")
GRPO = ("train", "grpo", "grpo_0.6b")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*STAGE1, "data.train_batch_sise=3"), ("data.train_batch_sise", "did you mean data.train_batch_size?")),
        ((*GRPO, "rollout.nn=4"), ("rollout.nn", "did you mean rollout.n?")),
        ((*GRPO, "rollout.n=1"), ("rollout.n is 1", "at least 2")),
        ((*STAGE1, "optim.lr=0"), ("optim.lr is 0", "above 0")),
        ((*STAGE1, "data.train_batch_size=many"), ("data.train_batch_size", "many")),
        ((*STAGE1, "data.train_batch_size"), ("data.train_batch_size", "key=value")),
        ((*STAGE1, "data.exclusions_file=", "data.train_file=nowhere.jsonl"), ("nowhere.jsonl",)),
        (("train", "stage1", "no_such"), ("no_such", "stage1_0.6b")),
        (
            ("evaluate", "--model", "bm25", "--corpus", "no.jsonl", "--bench", "b.jsonl", "--out", "o.json"),
            ("no.jsonl",),
        ),
        (("search", "draw it", "--model", "bm25", "--corpus", "no.jsonl"), ("no.jsonl",)),
        (("ingest", "no-folder", "--out", "o.jsonl"), ("no-folder",)),
        (("records", "--corpus", "no.jsonl", "--self-requests", "--out", "o"), ("no.jsonl",)),
        (("backbone", "fetch", "llama"), ("llama", "smollm2")),
        (("demo", "--backbone", "huge"), ("huge", "tiny, small")),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_by_name(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    named: tuple[str, ...],
):
    monkeypatch.chdir(tmp_path)
    code, _, errors = run(capsys, *arguments)
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code == 1
    assert all(text in line for text in named), line
    assert "Traceback" not in errors
    assert not any(tmp_path.iterdir())


def test_demo_touches_no_folder_that_holds_something_else(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, errors = run(capsys, "demo", "--out", str(tmp_path))
    assert code == 1
    assert f"error: {tmp_path} is not empty and holds no demo" in errors
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


# -- the short commands on the sample library ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpus() -> SkillCorpus:
    return load_sample_corpus()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, corpus: SkillCorpus) -> Path:
    """``corpus.jsonl``, ``small.jsonl`` (its first six skills), ``requests.jsonl`` and ``bench.jsonl``."""
    folder = tmp_path_factory.mktemp("library")
    requests, bench = load_sample_requests()
    corpus.to_jsonl(folder / "corpus.jsonl")
    SkillCorpus(list(corpus)[:6]).to_jsonl(folder / "small.jsonl")
    write_records(folder / "requests.jsonl", requests)
    write_records(folder / "bench.jsonl", bench)
    return folder


def test_ingest_counts_what_it_drops_and_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    source = tmp_path / "skills"
    samples = resources.files("data_pipeline.sample_library") / "skills"
    domain = sorted(samples.iterdir(), key=lambda entry: entry.name)[0]
    for skill in sorted(domain.iterdir(), key=lambda entry: entry.name)[:2]:
        shutil.copytree(str(skill), source / skill.name)
    (source / "broken").mkdir()
    (source / "broken" / "SKILL.md").write_text("---\nname: [never closed\n---\n\n" + "Words of a body. " * 40)
    out = tmp_path / "corpus.jsonl"
    code, output, _ = run(capsys, "ingest", str(source), "--out", str(out))
    assert code == 0
    assert f"2 skills written to {out}; 1 of 3 records dropped" in output
    report = json.loads((tmp_path / "corpus.jsonl.report.json").read_text())
    (reason,) = report["dropped"]
    assert report["dropped"] == {reason: 1}
    assert f"  {reason}: 1" in output
    assert "frontmatter" in reason
    assert [record["skill_id"] for record in report["records"]] == ["broken"]
    assert set(SkillCorpus.from_jsonl(out).ids) == {path.name for path in source.iterdir()} - {"broken"}


def test_records_of_the_sample_library(capsys: pytest.CaptureFixture[str], files: Path, tmp_path: Path):
    out = tmp_path / "data"
    arguments = ["--corpus", str(files / "corpus.jsonl"), "--requests", str(files / "requests.jsonl")]
    code, output, _ = run(capsys, "records", *arguments, "--out", str(out))
    assert code == 0
    stage1, stage2 = read_stage1(out / "stage1.jsonl"), read_stage2(out / "stage2.jsonl")
    assert f"{len(stage1)} Stage-I and {len(stage2)} Stage-II records in {out}" in output
    requests, _ = load_sample_requests()
    assert len(stage1) == len(stage2) == len(requests)
    assert {file.name for file in out.iterdir()} == {"stage1.jsonl", "stage2.jsonl", "exclusions.json", "manifest.json"}


def test_records_without_any_requests_are_refused(capsys: pytest.CaptureFixture[str], files: Path, tmp_path: Path):
    code, _, errors = run(capsys, "records", "--corpus", str(files / "small.jsonl"), "--out", str(tmp_path / "data"))
    assert code == 1
    assert "--requests FILE, --self-requests" in errors


def test_a_created_backbone_can_be_loaded(capsys: pytest.CaptureFixture[str], files: Path, tmp_path: Path):
    from models.backbone import Backbone

    out = tmp_path / "mine"
    shape = ["--vocab-size", "600", "--hidden-size", "64", "--layers", "2"]
    code, output, _ = run(
        capsys, "backbone", "create", "--corpus", str(files / "small.jsonl"), "--out", str(out), *shape
    )
    assert code == 0
    assert str(out) in output
    backbone = Backbone.load(out)
    assert backbone.hidden_size == 64
    assert backbone.model.config.num_hidden_layers == 2
    assert backbone.model.config.vocab_size == 600


def test_evaluate_writes_the_metrics_it_prints(capsys: pytest.CaptureFixture[str], files: Path, tmp_path: Path):
    out = tmp_path / "bm25.json"
    arguments = ["--corpus", str(files / "corpus.jsonl"), "--bench", str(files / "bench.jsonl"), "--out", str(out)]
    code, output, _ = run(capsys, "evaluate", "--model", "bm25", *arguments)
    assert code == 0
    result = json.loads(out.read_text())
    _, bench = load_sample_requests()
    found = {row["query_id"]: row["ids"] for row in result["queries"]}
    assert found.keys() == {query.query_id for query in bench}
    for k in (1, 5, 10):
        hits = sum(next(iter(query.qrels)) in found[query.query_id][:k] for query in bench)
        assert result["metrics"][f"recall@{k}"] == pytest.approx(hits / len(bench))
        assert f"recall@{k}" in output
    assert f"{result['metrics']['recall@10']:.4f}" in output
    assert result["metrics"]["recall@10"] > 0


def hits(output: str) -> list[tuple[int, float, str]]:
    """Rank, score and skill id of every result that ``search`` printed."""
    found = re.findall(r"^ *(\d+) +(-?\d+\.\d+)  (\S+)$", output, flags=re.MULTILINE)
    return [(int(rank), float(score), skill_id) for rank, score, skill_id in found]


def test_search_with_bm25_finds_a_skill_by_its_own_description(
    capsys: pytest.CaptureFixture[str], files: Path, corpus: SkillCorpus
):
    skill = corpus.get(corpus.ids[40])
    arguments = ["--model", "bm25", "--corpus", str(files / "corpus.jsonl"), "--k", "3"]
    code, output, _ = run(capsys, "search", skill.description, *arguments)
    assert code == 0
    assert hits(output)[0][2] == skill.skill_id
    assert [rank for rank, _, _ in hits(output)] == [1, 2, 3]


def test_search_with_an_exported_model_prints_cosines_in_order_and_keeps_the_embeddings(
    capsys: pytest.CaptureFixture[str], files: Path, tiny_folder: Path, tmp_path: Path
):
    from models.backbone import Backbone
    from models.export import export_retriever
    from models.views import document_view, raw_view

    backbone = Backbone.load(tiny_folder)
    model, cache = export_retriever(backbone, tmp_path / "export", 128), tmp_path / "cache"
    small = SkillCorpus.from_jsonl(files / "small.jsonl")
    request = "write the notes of a meeting"
    arguments = ["--model", str(model), "--corpus", str(files / "small.jsonl"), "--cache-dir", str(cache)]
    code, output, _ = run(capsys, "search", request, *arguments)
    assert code == 0

    views = [raw_view(request), *(document_view(text) for text in small.documents())]
    vectors = backbone.encode(backbone.tokenizer.encode_views(views, 128), 2048)
    expected = dict(zip(small.ids, (vectors[1:] @ vectors[0]).tolist(), strict=True))
    printed = {skill_id: score for _, score, skill_id in hits(output)}
    assert list(printed) == sorted(expected, key=lambda skill_id: -expected[skill_id])
    assert printed == pytest.approx(expected, abs=1e-3)
    assert any(file.is_file() for file in cache.rglob("*"))
    assert hits(run(capsys, "search", request, *arguments)[1]) == hits(output)
