"""A human's decisions on the judges' queue: JSONL in, JSONL out, one line the moment it is made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.pipeline.dag import PipelineError
from data_pipeline.rows import RecordError, iterate_jsonl


def read_decisions(file: str | Path) -> dict[str, dict[str, Any]]:
    """Human decisions by query id; the last one of an id counts, and ``"keep": null`` takes the earlier ones back.

    A last line that a kill has cut is left out: its decision was never confirmed.

    Raises:
        PipelineError: not a .jsonl file, a row without query_id, or whose keep is not true, false or null.
        RecordError: another line that is not a JSON object.
    """
    _check_name(file)
    out: dict[str, dict[str, Any]] = {}
    for number, row in iterate_jsonl(file):
        if isinstance(row, RecordError):
            if row.problem.startswith("truncated"):
                continue
            raise row
        keep = row.get("keep", 0)
        if not isinstance(row.get("query_id"), str) or not (keep is None or isinstance(keep, bool)):
            raise PipelineError(f"{file}:{number}: expected query_id and keep (true, false, or null to take it back)")
        out.pop(row["query_id"], None)
        if keep is not None:
            out[row["query_id"]] = row
    return out


class DecisionLog:
    """A JSONL file that only grows; it is there from the start, and a decision is on the disk before :meth:`add` returns."""

    def __init__(self, file: str | Path):
        _check_name(file)
        self.file = Path(file)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch()
        old = self.file.read_bytes()
        if old and not old.endswith(b"\n"):
            last = old[old.rfind(b"\n") + 1 :]
            try:
                json.loads(last)
            except ValueError:
                os.truncate(self.file, len(old) - len(last))  # a line that a kill has cut would swallow the next one
            else:
                with self.file.open("ab") as handle:
                    handle.write(b"\n")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append one decision."""
        line = json.dumps(row, ensure_ascii=False).encode("utf-8") + b"\n"
        handle = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)


def _check_name(file: str | Path) -> None:
    # Lines are appended: neither a compressed stream nor a table can grow so.
    if not Path(file).name.lower().endswith(".jsonl"):
        raise PipelineError(f"{file}: decisions are kept as plain lines of JSON; expected a name ending in .jsonl")
