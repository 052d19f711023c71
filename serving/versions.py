"""Versioned folders: whole versions side by side, one pointer to the current one, one writer at a time.

    library.index/
      current                        the id of the version that readers open; replaced in one move
      versions/20261201T101500-042817/
      .lock                          held by the process that writes, and by nobody after its end

A version is complete before it has its name and never changes afterwards, so readers need no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from models.folders import atomic_folder, atomic_write_text, remove_leftovers

CURRENT = "current"
VERSIONS = "versions"
KEEP = 3
"""Versions kept by default, the current one included."""
MIN_KEEP = 2
"""A reader that is just opening the version before must be able to finish."""
_LOCK = ".lock"
_ID = re.compile(r"\d{8}T\d{6}-\d{6}")
"""UTC to the microsecond: ids sort by age, and an index that is built anew gets another id than it had."""


class IndexNotFoundError(FileNotFoundError):
    """There is no index in the folder."""


class IndexCorruptError(ValueError):
    """A file of an index is missing or is not what was written; the message names it."""


class IndexBusyError(OSError):
    """Another process writes to the index."""


def current_version(root: str | Path) -> str:
    """The id of the version that readers open.

    Raises:
        IndexNotFoundError: the folder holds no index.
        IndexCorruptError: the pointer names nothing that could be a version.
    """
    path = Path(root) / CURRENT
    try:
        version = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        raise IndexNotFoundError(
            f"{root}: no index here (no file {CURRENT!r} in it); expected a folder that skillreason index build wrote"
        ) from None
    except UnicodeDecodeError as error:
        raise IndexCorruptError(f"{path}: not text ({error}); expected the id of a version") from error
    if not _ID.fullmatch(version):
        raise IndexCorruptError(f"{path}: {version[:80]!r} is no version id; expected one like 20261201T101500-042817")
    return version


def version_folder(root: str | Path, version: str) -> Path:
    """Where a version lies."""
    return Path(root) / VERSIONS / version


def list_versions(root: str | Path) -> list[str]:
    """Ids of all complete versions, oldest first."""
    folder = Path(root) / VERSIONS
    return sorted(path.name for path in folder.iterdir() if _ID.fullmatch(path.name)) if folder.is_dir() else []


@contextlib.contextmanager
def writing(root: str | Path, wait: float = 0.0) -> Iterator[None]:
    """Be the only process that writes to the index; the kernel gives the lock back when the process ends, however it ends.

    What killed writers left half-written is removed.

    Args:
        wait: seconds to wait for another writer; infinity: for ever.

    Raises:
        IndexBusyError: another process writes to it still; its number is named.
        ValueError, NotADirectoryError: the folder is there, holds something else, and is no index; or is a file.
    """
    folder = Path(root)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; expected a folder for the index")
    folder.mkdir(parents=True, exist_ok=True)
    others = [path.name for path in folder.iterdir() if path.name not in (CURRENT, VERSIONS, _LOCK)]
    if others and not (folder / VERSIONS).is_dir():
        raise ValueError(f"{folder} holds {min(others)!r} and is no index; expected a new or empty folder, or an index")
    until = time.monotonic() + wait
    with open(folder / _LOCK, "a+", encoding="utf-8") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    handle.seek(0)
                    owner = handle.read().strip() or "unknown"
                    raise IndexBusyError(
                        f"{folder}: another process (pid {owner}) is writing to this index; wait for it, or give --wait SECONDS"
                    ) from None
                time.sleep(min(0.2, max(0.0, until - time.monotonic())))
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        remove_leftovers(folder)
        remove_leftovers(folder / VERSIONS)
        yield


@contextlib.contextmanager
def new_version(root: str | Path, keep: int = KEEP) -> Iterator[tuple[str, Path]]:
    """Yield the id and the empty folder of a version that becomes the current one when the block ends.

    The caller is :func:`writing`. A block that raises leaves everything as it was. Old versions beyond ``keep`` are removed.

    Raises:
        ValueError: ``keep`` is below 2.
    """
    check_keep(keep)
    version = f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
    with atomic_folder(version_folder(root, version)) as folder:
        yield version, folder
    atomic_write_text(Path(root) / CURRENT, version + "\n")
    others = [name for name in list_versions(root) if name != version]
    for name in others[: max(0, len(others) - (keep - 1))]:
        shutil.rmtree(version_folder(root, name), ignore_errors=True)


def check_keep(keep: int) -> None:
    """Raise ValueError unless so many versions may be kept."""
    if keep < MIN_KEEP:
        raise ValueError(f"keep is {keep}; expected at least {MIN_KEEP}: a reader may be opening the version before")


def file_digests(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 (hex) of every file below ``folder``, by its relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in paths
    }


def check_files(folder: Path, digests: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the files of a version with what was written.

    Raises:
        IndexCorruptError: one is missing, shorter, longer or different; the message names it.
    """
    for name, written in digests.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != written["bytes"]:
                raise IndexCorruptError(f"{path}: {size} bytes, {written['bytes']} were written; build the index again")
            if _sha256(path) != written["sha256"]:
                raise IndexCorruptError(f"{path}: its content is not what was written; build the index again")
        except FileNotFoundError:
            raise IndexCorruptError(f"{path}: missing; build the index again") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
