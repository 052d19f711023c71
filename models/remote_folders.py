"""Folders on any file system that fsspec knows, with one file that says that the others are there."""

from __future__ import annotations

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from models.folders import atomic_folder


class Publication:
    """A folder that is being published, see :func:`published_folder`.

    Attributes:
        sizes: bytes of the files so far, by name.
    """

    def __init__(self, scratch: Path, upload: Callable[[Path], None] | None):
        self.sizes: dict[str, int] = {}
        self._scratch, self._upload = scratch, upload

    def add(self, name: str, write: Callable[[Path], Any]) -> None:
        """Have ``write`` make the file ``name`` where it is told."""
        file = self._scratch / name
        write(file)
        self.sizes[name] = file.stat().st_size
        if self._upload is not None:
            self._upload(file)
            file.unlink()


@contextlib.contextmanager
def published_folder(target: str, marker: str) -> Iterator[Publication]:
    """A folder at ``target``, a path or an fsspec URL, that is complete when the block ends; the block adds its files.

    On the local disk this is :func:`atomic_folder`. Elsewhere, where there is no renaming, each file is uploaded as it is added,
    so that the scratch disk (``TMPDIR``) holds one at a time. The file ``marker`` is taken away before the first one and must
    be added last: without it the folder is not complete. When the block raises, what was uploaded is deleted again.
    """
    files, root = url_to_fs(target)
    if isinstance(files, LocalFileSystem):
        with atomic_folder(root) as scratch:
            yield Publication(scratch, None)
        return

    def upload(file: Path) -> None:
        files.put_file(str(file), posixpath.join(root, file.name))

    with tempfile.TemporaryDirectory() as scratch:
        if files.exists(posixpath.join(root, marker)):
            files.rm_file(posixpath.join(root, marker))
        files.makedirs(root, exist_ok=True)
        try:
            yield Publication(Path(scratch), upload)
        except BaseException:
            with contextlib.suppress(Exception):  # what failed counts, not that it cannot be tidied up either
                files.rm(root, recursive=True)
            raise


@contextlib.contextmanager
def local_copy(folder: str) -> Iterator[Path]:
    """A local folder as it is, or a temporary copy (in ``TMPDIR``) of the files at an fsspec URL."""
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
