"""Versions appear whole or not at all, one process writes at a time, and a wrong file is named."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from serving.versions import (
    IndexBusyError,
    IndexCorruptError,
    IndexNotFoundError,
    check_files,
    current_version,
    file_digests,
    list_versions,
    new_version,
    version_folder,
    writing,
)


def write(root: Path, text: str, keep: int = 3) -> str:
    with writing(root), new_version(root, keep) as (version, folder):
        (folder / "data.txt").write_text(text)
    return version


def test_a_version_becomes_the_current_one(tmp_path):
    write(tmp_path, "first")
    second = write(tmp_path, "second")
    assert current_version(tmp_path) == second
    assert (version_folder(tmp_path, second) / "data.txt").read_text() == "second"


def test_a_version_that_fails_leaves_the_old_one_and_no_trace(tmp_path):
    first = write(tmp_path, "first")

    def fail(folder: Path) -> None:
        (folder / "data.txt").write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError), writing(tmp_path), new_version(tmp_path) as (_, folder):
        fail(folder)
    assert current_version(tmp_path) == first
    assert os.listdir(tmp_path / "versions") == [first]


def test_a_version_is_not_seen_before_it_is_complete(tmp_path):
    first = write(tmp_path, "first")
    with writing(tmp_path), new_version(tmp_path) as (version, folder):
        (folder / "data.txt").write_text("second")
        assert current_version(tmp_path) == first
        assert list_versions(tmp_path) == [first]
    assert current_version(tmp_path) == version


def test_old_versions_are_removed_and_the_newest_kept(tmp_path):
    written = [write(tmp_path, text, keep=2) for text in "abcd"]
    assert list_versions(tmp_path) == written[2:]


def test_fewer_than_two_versions_are_refused(tmp_path):
    with pytest.raises(ValueError, match="keep is 1; expected at least 2"), new_version(tmp_path, keep=1):
        pass


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path):
    with (
        writing(tmp_path),
        pytest.raises(IndexBusyError, match=f"pid {os.getpid()}.*--wait SECONDS"),
        writing(tmp_path),
    ):
        pass


def test_a_second_writer_may_wait(tmp_path):
    entered = threading.Event()

    def hold() -> None:
        with writing(tmp_path):
            entered.set()
            time.sleep(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait()
    started = time.monotonic()
    with writing(tmp_path, wait=30):
        assert time.monotonic() - started > 0.2
    holder.join()


def test_what_a_killed_writer_left_is_removed(tmp_path):
    write(tmp_path, "first")
    (tmp_path / "versions" / ".20261201T101500-042817.x.tmp").mkdir()
    (tmp_path / ".current.x.tmp").write_text("")
    with writing(tmp_path):
        pass
    assert list(tmp_path.rglob(".*.tmp")) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / ".mine.tmp").write_text("precious")
    with pytest.raises(ValueError, match=r"holds '\.mine\.tmp' and is no index"), writing(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".mine.tmp"]


def test_a_file_in_the_indexs_place_is_named(tmp_path):
    (tmp_path / "index").write_text("mine")
    with pytest.raises(NotADirectoryError, match="index is a file; expected a folder"), writing(tmp_path / "index"):
        pass


@pytest.mark.parametrize("folder", ["", "missing"])
def test_a_folder_without_an_index_is_named(tmp_path, folder):
    with pytest.raises(IndexNotFoundError, match=r"no index here.*skillreason index build"):
        current_version(tmp_path / folder)


@pytest.mark.parametrize("content", [b"", b"../../etc", b"\xff\xfe", b"20261201T101500-042817/.."])
def test_a_damaged_pointer_is_named(tmp_path, content):
    (tmp_path / "current").write_bytes(content)
    with pytest.raises(IndexCorruptError, match=r"current: .*expected"):
        current_version(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("other", "its content is not what was written"), ("longer text", "11 bytes, 5 were"), (None, "missing")],
)
def test_a_changed_file_is_named(tmp_path, content, message):
    (tmp_path / "sub").mkdir()
    for name in ("sub/a.txt", "sub/b.txt"):
        (tmp_path / name).write_text("right")
    digests = file_digests(tmp_path)
    check_files(tmp_path, digests)
    (tmp_path / "sub/b.txt").unlink()
    if content is not None:
        (tmp_path / "sub/b.txt").write_text(content)
    with pytest.raises(IndexCorruptError, match=rf"sub/b\.txt: {message}"):
        check_files(tmp_path, digests)
