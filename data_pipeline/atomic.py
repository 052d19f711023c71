"""Write files so that a reader, or a run killed half-way, never sees half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def atomic_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a binary handle on a temporary neighbour of ``path``; it takes the name only when the block succeeds.

    Missing parent folders are made. On an exception the temporary file is removed and ``path`` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented UTF-8 JSON, atomically; NaN and infinity are refused (ValueError)."""
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    with atomic_file(path) as handle:
        handle.write(text.encode("utf-8") + b"\n")
