"""Writing so that a reader never sees half: the old version stands until the new one is complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models.folders import atomic_folder, atomic_write_text, remove_leftovers, write_json


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


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
):
    if replaced:
        (tmp_path / "out").mkdir()
    done: list[tuple[str, str]] = []
    fsync, replace, rmtree = os.fsync, os.replace, shutil.rmtree

    def synced(descriptor: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        fsync(descriptor)

    def replacing(source: Path, target: Path) -> None:
        done.append(("name", Path(target).name))
        replace(source, target)

    def removing(path: Path, **options: Any) -> None:
        done.append(("delete", "old"))
        rmtree(path, **options)

    monkeypatch.setattr("models.folders.os.fsync", synced)
    monkeypatch.setattr("models.folders.os.replace", replacing)
    monkeypatch.setattr("models.folders.shutil.rmtree", removing)
    with atomic_folder(tmp_path / "out") as scratch:
        (scratch / "file").write_text("x")
        (scratch / "sub").mkdir()
        (scratch / "sub" / "deep").write_text("x")
    named = done.index(("name", "out"))
    assert {name for what, name in done[:named] if what == "sync"} == {scratch.name, "file", "sub", "deep"}
    assert done[named + 1] == ("sync", tmp_path.name)
    assert ("delete", "old") not in done[: named + 2]


def test_a_file_that_the_disk_does_not_take_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_text("old")

    def full_disk(descriptor: int) -> None:
        raise OSError("quota exceeded")

    monkeypatch.setattr("models.folders.os.fsync", full_disk)
    with pytest.raises(OSError, match="quota exceeded"), atomic_folder(tmp_path / "out") as scratch:
        (scratch / "new").write_text("new")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["old"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


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


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path):
    (tmp_path / "kept").mkdir()
    (tmp_path / ".kept").write_text("kept")
    script = (
        "import os, sys; from models.folders import atomic_file, atomic_folder\n"
        "with atomic_folder(sys.argv[1] + '/folder') as folder, atomic_file(sys.argv[1] + '/file') as handle:\n"
        "    (folder / 'half').write_text('x'); os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2], check=False)
    names = remove_leftovers(tmp_path)
    assert [name.split(".")[1] for name in names] == ["file", "folder"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".kept", "kept"]
    assert remove_leftovers(tmp_path / "nowhere") == []


@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_lost_in_the_middle_of_being_replaced_gets_its_name_back(tmp_path: Path, replaced: bool):
    old = tmp_path / ".export.old.k3v9.tmp" / "folder"
    old.mkdir(parents=True)
    (old / "file").write_text("old")
    if replaced:
        (tmp_path / "export").mkdir()
        (tmp_path / "export" / "file").write_text("new")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    assert (tmp_path / "export" / "file").read_text() == ("new" if replaced else "old")


def test_json_is_readable_and_refuses_what_other_readers_cannot_read(tmp_path: Path):
    write_json(tmp_path / "a.json", {"é": [1, None]})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "é": [\n    1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
