"""What counts as the same input."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from data_pipeline.pipeline.digests import input_digest, model_digest


def test_a_file_counts_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"skills")
    assert input_digest(str(tmp_path / "a"), "sources") == hashlib.sha256(b"skills").hexdigest()


def test_a_folder_counts_by_the_names_and_bytes_of_its_files(tmp_path: Path) -> None:
    def digest() -> str:
        return input_digest(str(tmp_path), "sources")

    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "SKILL.md").write_text("one")
    first = digest()
    assert digest() == first
    (tmp_path / "x" / "SKILL.md").write_text("two")
    second = digest()
    (tmp_path / "x").rename(tmp_path / "y")
    assert len({first, second, digest()}) == 3


def test_a_hub_dataset_counts_by_its_name_and_a_missing_file_is_named() -> None:
    assert input_digest("hf:owner/skills:train", "sources") == "hf:owner/skills:train"
    with pytest.raises(FileNotFoundError, match=r"sources: nowhere: no such file or folder"):
        input_digest("nowhere", "sources")


def test_a_model_that_was_trained_on_in_the_same_folder_is_another_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1")
    first = model_digest(str(tmp_path))
    (tmp_path / "log.out").write_text("not part of the model")
    assert model_digest(str(tmp_path)) == first
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert model_digest(str(tmp_path)) != first
    assert model_digest("Qwen/Qwen3-Embedding-0.6B") == "Qwen/Qwen3-Embedding-0.6B"
    assert model_digest("") == ""


def test_of_a_folder_only_what_is_read_as_a_skill_counts(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "SKILL.md").write_text("one")
    before = input_digest(str(tmp_path), "sources")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "records.jsonl").write_text("{}")  # such as artifacts of the build itself
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "SKILL.md").write_text("not read")
    assert input_digest(str(tmp_path), "sources") == before


def test_a_skill_file_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "SKILL.md")
    assert len(input_digest(str(tmp_path), "sources")) == 64
