"""Rows of JSONL, gzipped JSONL and Parquet files, with errors that name file, row, key and value."""

from __future__ import annotations

import gzip
import io
import json
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from models.folders import atomic_file

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 100
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


class RecordError(ValueError):
    """A row that cannot be used; its text reads ``file:row: key = value: what is wrong, what would be accepted``.

    ``row`` counts from 1: the line of a JSONL file, the row of a Parquet file.
    """

    def __init__(self, file: str | Path, row: int, problem: str, key: str | None = None, value: Any = None) -> None:
        self.file, self.row, self.key, self.value, self.problem = str(file), row, key, value, problem
        at_key = "" if key is None else f"{key} = {_short.repr(value)}: "
        super().__init__(f"{file}:{row}: {at_key}{problem}")


def file_format(path: str | Path) -> str:
    """``.jsonl``, ``.jsonl.gz`` or ``.parquet``; ValueError for any other name."""
    for suffix in _SUFFIXES:
        if Path(path).name.lower().endswith(suffix):
            return suffix
    raise ValueError(f"{path}: unknown file format; expected a name ending in {', '.join(_SUFFIXES)}")


def iterate_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any] | RecordError]]:
    """Each non-blank line as (line number, object), or as (line number, error) where the line is not a JSON object.

    A damaged or truncated gzip stream is raised instead, since nobody can say how many rows it hides.
    """
    row = 0
    opener = gzip.open if file_format(path) == ".jsonl.gz" else open
    try:
        with opener(path, "rb") as handle:
            for row, value in parse_jsonl(path, handle):
                yield row, value
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(path, row + 1, f"truncated or damaged gzip stream ({error}); fetch the file again") from error


def parse_jsonl(file: str | Path, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any] | RecordError]]:
    """``iterate_jsonl`` for lines already at hand; ``file`` is how errors call them."""
    for row, line in enumerate(lines, start=1):
        if line.strip():
            yield row, _parse_line(file, row, line)


def _parse_line(path: str | Path, row: int, line: bytes) -> dict[str, Any] | RecordError:
    try:
        value = json.loads(line.decode("utf-8-sig" if row == 1 else "utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return RecordError(path, row, f"unreadable bytes ({error}); expected UTF-8")
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            return RecordError(path, row, "truncated: the file ends inside this record")
        return RecordError(path, row, f"not valid JSON ({error}); expected one JSON object per line")
    if not isinstance(value, dict):
        return RecordError(path, row, f"a JSON {type(value).__name__}; expected an object with named keys")
    return value


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def read_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each row as (row number from 1, object); the first unusable row raises RecordError."""
    kind = file_format(path)
    if not Path(path).exists():
        raise FileNotFoundError(f"no file {path}")
    if kind == ".parquet":
        yield from _read_parquet(path)
        return
    for row, value in iterate_jsonl(path):
        if isinstance(value, RecordError):
            raise value
        yield row, value


def _read_parquet(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    row += 1
                    yield row, {key: item for key, item in value.items() if item is not None}
    except (pyarrow.ArrowException, EOFError) as error:
        raise RecordError(path, row + 1, f"truncated or damaged Parquet file ({error})") from error


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows by the suffix of ``path``, atomically; the same rows give the same bytes."""
    kind = file_format(path)
    if kind == ".parquet":
        _write_parquet(path, [dict(row) for row in rows])
        return
    with atomic_file(path) as handle:
        if kind == ".jsonl":
            _write_lines(handle, rows)
        else:
            # No file name and no clock in the header: the same rows, the same bytes.
            with gzip.GzipFile(filename="", fileobj=handle, mode="wb", mtime=0) as compressed:
                _write_lines(compressed, rows)


def _write_lines(handle: Any, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        handle.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")


def _write_parquet(path: str | Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = pyarrow.table({key: _column(pyarrow, [row.get(key) for row in rows]) for key in columns})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer)
    with atomic_file(path) as handle:
        handle.write(buffer.getvalue())


def _column(pyarrow: Any, values: list[Any]) -> Any:
    # A dict column would become a struct with one field for every skill of the file; a map keeps its own keys.
    if any(isinstance(value, dict) for value in values):
        pairs = [None if value is None else list(value.items()) for value in values]
        return pyarrow.array(pairs, type=pyarrow.map_(pyarrow.string(), pyarrow.int64()))
    return pyarrow.array(values)
