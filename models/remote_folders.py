"""Folders on any file system that fsspec knows, with one file that says that the others are there."""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from models.folders import atomic_folder


@contextlib.contextmanager
def published_folder(target: str, marker: str) -> Iterator[Path]:
    """Yield an empty local folder whose files lie at ``target``, a path or an fsspec URL, when the block ends.

    On the local disk this is :func:`atomic_folder`. Elsewhere, where there is no renaming, the file ``marker`` is taken away
    before the others are written and written after them: without it the folder is not complete.
    """
    files, root = url_to_fs(target)
    if isinstance(files, LocalFileSystem):
        with atomic_folder(root) as scratch:
            yield scratch
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield Path(scratch)
        if files.exists(posixpath.join(root, marker)):
            files.rm_file(posixpath.join(root, marker))
        files.makedirs(root, exist_ok=True)
        for file in sorted(Path(scratch).iterdir(), key=lambda path: (path.name == marker, path.name)):
            files.put_file(str(file), posixpath.join(root, file.name))


@contextlib.contextmanager
def local_copy(folder: str) -> Iterator[Path]:
    """A local folder as it is, or a temporary copy of the files at an fsspec URL."""
    files, root = url_to_fs(folder)
    if isinstance(files, LocalFileSystem):
        yield Path(root)
        return
    with tempfile.TemporaryDirectory() as scratch:
        for file in files.ls(root, detail=False):
            files.get_file(file, os.path.join(scratch, posixpath.basename(file)))
        yield Path(scratch)


def remove_folder(folder: str, marker: str) -> None:
    """Delete a published folder, its marker first: half deleted, it is not taken for a complete one."""
    files, root = url_to_fs(folder)
    files.rm_file(posixpath.join(root, marker))
    files.rm(root, recursive=True)
