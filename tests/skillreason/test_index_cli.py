"""``skillreason index``: what a user sees of building, updating and looking into an index."""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest

from skillreason.cli import main

SKILLS = Path(str(resources.files("data_pipeline.sample_library"))) / "skills"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SKILLS / "media", tmp_path / "skills"))


def test_a_folder_of_skills_is_built_shown_and_updated(library, tmp_path, capsys):
    index = tmp_path / "index"
    status, out, _ = run(capsys, "index", "build", "--model", "bm25", "--skills", library, "--out", index)
    assert status == 0
    assert "with 12 skills" in out

    status, out, _ = run(capsys, "index", "info", index, "--verify")
    assert status == 0
    assert "model       BM25 alone" in out
    assert "12 of the skills have none" in out
    assert "verified: all files of version" in out

    shutil.rmtree(library / "loudness-compliance-leveler")
    status, out, _ = run(capsys, "index", "update", "--index", index, "--skills", library, "--dry-run")
    assert status == 0
    assert "1 removed\n  - loudness-compliance-leveler\n" in out
    assert "nothing was written (--dry-run)" in out

    status, out, _ = run(capsys, "index", "update", "--index", index, "--skills", library)
    assert status == 0
    assert "with 11 skills" in out

    status, out, _ = run(capsys, "index", "update", "--index", index, "--skills", library)
    assert out.endswith("up to date\n")


def test_a_model_is_shown_with_its_vectors(library, tmp_path, capsys, tiny_folder):
    from models.backbone import Backbone
    from models.export import export_retriever

    model = export_retriever(Backbone.load(tiny_folder), tmp_path / "model", 64)
    arguments = ("--skills", library, "--out", tmp_path / "index", "--cache-dir", tmp_path / "cache", "--kind", "hnsw")
    status, out, _ = run(capsys, "index", "build", "--model", model, *arguments)
    assert status == 0
    assert "12 encoded, 0 already known" in out
    _, out, _ = run(capsys, "index", "info", tmp_path / "index")
    assert "32 components, hnsw; hnsw (M 32, efConstruction 64, efSearch 16) has recall@10 1.000" in out
    status, out, err = run(capsys, "index", "info", tmp_path / "index", "--json", "--verify")
    assert json.loads(out)["n_skills"] == 12
    assert "the model gives the same vectors for 12 skills" in err


def test_errors_are_one_line(library, tmp_path, capsys):
    status, _, err = run(capsys, "index", "info", tmp_path / "none")
    assert status == 1
    assert err.startswith(f"error: {tmp_path / 'none'}: no index here")
    status, _, err = run(capsys, "index", "build", "--model", "bm25", "--out", tmp_path / "index")
    assert (status, err) == (1, "error: expected either folders of skills (--skills) or a corpus file (--corpus)\n")
    status, _, err = run(capsys, "index", "update", "--index", tmp_path, "--skills", library, "--watch", "--dry-run")
    assert status == 1
    assert "--watch goes with neither" in err
