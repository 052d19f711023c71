"""Writing files and folders so that a reader, or a run killed half-way, never sees half of one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

_SUFFIX = ".tmp"
_OLD = re.compile(r"^\.(?P<name>.+)\.old\.[^.]+\.tmp$")


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder that takes ``path``'s place when the block ends, and vanishes when it raises.

    All of it is on the disk before it has the name, and the name before this returns: what it replaces may then be deleted.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=_SUFFIX, dir=target.parent))
    scratch.chmod(0o755)
    try:
        yield scratch
        for folder, _, names in os.walk(scratch):
            for name in names:
                _sync(os.path.join(folder, name))
            _sync(folder)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", suffix=_SUFFIX, dir=target.parent)) / "folder"
            os.replace(target, old)
            os.replace(scratch, target)
            _sync(target.parent)
            shutil.rmtree(old.parent)
        else:
            os.replace(scratch, target)
            _sync(target.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sync(path: str | Path) -> None:
    """Have the disk write a file, or the names in a folder; some file systems cannot be asked that of folders."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary handle on a temporary neighbour of ``path``; it takes the name only when the block succeeds.

    Missing parent folders are made. On an exception the temporary file is removed and ``path`` stays as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(prefix=f".{target.name}.", suffix=_SUFFIX, dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.chmod(scratch, 0o644)
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8 to a temporary name beside ``path`` and rename it into place."""
    content = text.encode("utf-8")
    with atomic_file(path) as handle:
        handle.write(content)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON, atomically; NaN and infinity are refused (ValueError)."""
    atomic_write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def remove_leftovers(folder: str | Path) -> list[str]:
    """Remove the temporary files and folders that killed processes left in ``folder``; returns their names.

    Only for a folder that no other process writes to at the moment. A folder that was just being replaced gets its name
    back where the new one is missing.
    """
    root = Path(folder)
    found = sorted(root.glob(f".*{_SUFFIX}")) if root.is_dir() else []
    for path in found:
        replaced = _OLD.match(path.name)
        if replaced and (path / "folder").is_dir() and not (root / replaced["name"]).exists():
            os.replace(path / "folder", root / replaced["name"])
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.name for path in found]
