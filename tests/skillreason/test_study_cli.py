"""``grid``, ``ablate``, and the prompts and rationales of ``evaluate`` and ``search``, from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.corpus import Skill, SkillCorpus
from skillreason.cli import main

WORDS = ("bars", "fields", "minutes", "routes")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """``corpus.jsonl`` of four skills, ``bench.jsonl``, and ``run/export``: an encoder with the LM beside it."""
    from models.backbone import Backbone
    from models.export import export_retriever

    folder = tmp_path_factory.mktemp("studies")
    SkillCorpus([Skill(f"s{n}", w, f"draw {w}", f"Draw {w}.") for n, w in enumerate(WORDS)]).to_jsonl(
        folder / "corpus.jsonl"
    )
    bench = [{"query_id": f"q{n}", "query": f"draw {w} for me", "skill_id": f"s{n}"} for n, w in enumerate(WORDS)]
    (folder / "bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bench))
    export_retriever(Backbone.load(tiny_folder), folder / "run" / "export", max_length=512)
    shutil.copytree(tiny_folder, folder / "run" / "export" / "causal_lm")
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def data(folder: Path) -> list[Any]:
    return ["--corpus", folder / "corpus.jsonl", "--bench", folder / "bench.jsonl"]


def test_a_policy_writes_the_rationales_that_its_encoder_reads(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
):
    from models.backbone import Backbone
    from models.encoder import load_encoder
    from models.views import privileged_view

    out = tmp_path / "self.json"
    arguments = ["--model", folder / "run", *data(folder), "--cache-dir", tmp_path / "cache", "--out", out]
    code, output, _ = run(capsys, "evaluate", *arguments, "--augment", "self")
    assert code == 0
    assert "rationales: 4 requests with, 0 without" in output
    result = json.loads(out.read_text())
    rows = [json.loads(line) for line in (tmp_path / "self.rationales.jsonl").read_text().splitlines()]
    assert result["seconds"]["generate"] == pytest.approx(sum(row["seconds"] for row in rows), abs=1e-3)
    # the LM's own code embeds the same views: one backbone, two faces
    backbone = Backbone.load(folder / "run" / "export" / "causal_lm")
    views = [privileged_view(row["query"], row["rationale"]) for row in rows]
    queries = backbone.encode(backbone.tokenizer.encode_views(views, 512), 4096).numpy()
    documents = load_encoder(folder / "run").encode_documents(
        SkillCorpus.from_jsonl(folder / "corpus.jsonl").documents()
    )
    for row, scores in zip(result["queries"], queries @ documents.T, strict=True):
        assert row["scores"] == pytest.approx(sorted(scores.tolist(), reverse=True), abs=1e-4)
    code, output, _ = run(capsys, "evaluate", *arguments, "--augment", "self")
    assert "(4 reused)" in output


def test_rationales_of_one_system_serve_another_with_the_same_file(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
):
    given = tmp_path / "given.jsonl"
    given.write_text("".join(json.dumps({"query_id": f"q{n}", "rationale": WORDS[n - 1]}) + "\n" for n in range(4)))
    code, _, _ = run(
        capsys, "evaluate", "--model", "bm25", *data(folder), "--out", tmp_path / "o.json", "--rationales", given
    )
    assert code == 0
    result = json.loads((tmp_path / "o.json").read_text())
    # a request's own word and its rationale's: the skills of both come first
    assert {tuple(sorted(row["ids"][:2])) for row in result["queries"]} == {
        *(("s0", "s3"), ("s0", "s1"), ("s1", "s2"), ("s2", "s3"))
    }


def test_prompts_are_given_on_the_command_line_and_stand_in_the_result(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
):
    out = tmp_path / "o.json"
    options = ("--query-prompt", r"find:\n", "--document-prompt", "none", "--similarity", "cosine")
    code, output, _ = run(
        capsys, "evaluate", "--model", folder / "run", *data(folder), "--cache-dir", tmp_path, "--out", out, *options
    )
    assert code == 0
    encoder = json.loads(out.read_text())["encoder"]
    assert (encoder["query"], encoder["query_source"]) == ("find:\n", "given")
    assert (encoder["document"], encoder["document_source"]) == ("", "given")
    assert encoder["max_length"] == 512
    assert r"prompts: query 'find:\n' (given)" in output


def test_a_search_may_write_a_rationale_first(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, folder: Path, tmp_path: Path
):
    caplog.set_level("INFO")
    arguments = ("--model", folder / "run", "--corpus", folder / "corpus.jsonl", "--cache-dir", tmp_path)
    code, output, _ = run(capsys, "search", "draw it", *arguments, "--augment", "self", "-k", 2)
    assert code == 0
    assert len([line for line in output.splitlines() if " s" in line[:22]]) == 2
    assert any(message.startswith("rationale: ") for message in caplog.messages)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--augment", "self"), "bm25 has no language model"),
        (("--augment", "oracle"), "augmentation is 'oracle'"),
        (("--augment", "teacher"), "offline teacher"),
        (("--augment", "teacher", "--teacher", "kind=openai"), "teacher.model"),
        (("--augment", "self", "--rationales", "x.jsonl"), "expected one of them"),
        (("--samples", "3"), "without --augment or --rationales"),
        (("--query-prompt", "x: "), "bm25 takes no query prompt"),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path, options: tuple[str, ...], message: str
):
    out = tmp_path / "o.json"
    code, _, errors = run(capsys, "evaluate", "--model", "bm25", *data(folder), "--out", out, *options)
    assert code == 1
    assert any(line.startswith("error: ") and message in line for line in errors.splitlines()), errors
    assert not out.exists()


def test_a_grid_prints_its_table_and_leaves_its_files(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path):
    file = tmp_path / "grid.yaml"
    file.write_text(
        f"retrievers: {{words: {{model: bm25}}, ours: {{model: {folder / 'run'}, label: Ours}}}}\n"
        f"benches: {{lib: {{bench: {folder / 'bench.jsonl'}, corpus: {folder / 'corpus.jsonl'}}}}}\n"
    )
    code, output, _ = run(capsys, "grid", file, f"out={tmp_path / 'out'}", f"cache_dir={tmp_path / 'cache'}")
    assert code == 0
    rows = [line.split("|")[1].strip() for line in output.splitlines() if line.startswith("|")]
    assert rows[2:] == ["words", "Ours"]
    assert "| words         | 100.0 |" in output  # every request names its skill's word
    for name in ("grid.json", "grid.md", "grid.png", "results/lib/ours x none.json"):
        assert (tmp_path / "out" / name).is_file()


def test_a_study_that_cannot_run_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code, _, errors = run(capsys, "ablate", "ablations_tiny", f"out={tmp_path / 'x'}", "only=[rwa]")
    assert code == 1
    assert any(line.startswith("error: only has 'rwa'") for line in errors.splitlines())
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_a_study_of_two_systems_trains_evaluates_and_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    stage1 = "stage1.set=[trainer.total_steps=3,trainer.test_freq=0,tracking.wandb=disabled,run.threads=1]"
    arguments = ("ablate", "ablations_tiny", f"out={tmp_path / 'x'}", stage1)
    assert run(capsys, *arguments, "only=[base,raw]")[0] == 0
    first = json.loads((tmp_path / "x" / "study.json").read_text())
    made = (tmp_path / "x" / "runs" / "raw-seed42" / "export" / "modules.json").stat().st_mtime_ns
    code, output, _ = run(capsys, *arguments, "only=[base,raw,raw-cot]")
    assert code == 0
    second = json.loads((tmp_path / "x" / "study.json").read_text())
    counts = [row["benches"]["sample"]["n"] for row in second["tables"]["table3"]]
    assert counts == [1, 1, 1, 0, 0, 0, 0]
    assert second["tables"]["table3"][:2] == first["tables"]["table3"][:2]
    assert (tmp_path / "x" / "runs" / "raw-seed42" / "export" / "modules.json").stat().st_mtime_ns == made
    assert "| + Raw CL " in output
