"""Writing so that a reader never sees half: the old version stands until the new one is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.folders import atomic_folder, atomic_write_text


def test_the_folder_appears_only_when_complete(tmp_path: Path):
    with atomic_folder(tmp_path / "out") as scratch:
        (scratch / "file").write_text("x")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "file").read_text() == "x"


def test_an_existing_folder_is_replaced_whole(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    with atomic_folder(tmp_path / "out") as scratch:
        (scratch / "new").write_text("new")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["new"]


def write_then_fail(target: Path) -> None:
    with atomic_folder(target) as scratch:
        (scratch / "new").write_text("half")
        raise RuntimeError("stop")


def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")
    with pytest.raises(RuntimeError, match="stop"):
        write_then_fail(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "old").read_text() == "old"


def test_text_is_written_into_folders_that_do_not_exist_yet(tmp_path: Path):
    atomic_write_text(tmp_path / "a" / "b.txt", "héllo")
    assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == "héllo"


def test_a_failing_write_leaves_the_old_text_and_nothing_else(tmp_path: Path):
    atomic_write_text(tmp_path / "b.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        atomic_write_text(tmp_path / "b.txt", "half of a surrogate pair \ud800")
    assert [p.name for p in tmp_path.iterdir()] == ["b.txt"]
    assert (tmp_path / "b.txt").read_text() == "old"
