"""The file of everything that a teacher could not answer, and why."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from data_pipeline.teacher.task import TeacherResult

FILE_NAME = "failures.jsonl"
RAW_CHARS = 2000


class FailureLog:
    """A JSONL file that only grows: ``task_id, kind, teacher, reason, detail, attempts, raw`` of each failed task.

    ``raw`` is the beginning of the last text that the model wrote. A failure that a resumed run meets again is not repeated.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._guard = threading.Lock()
        old = self.path.read_bytes() if self.path.exists() else b""
        self._known = set(old.splitlines())
        self._torn = bool(old) and not old.endswith(b"\n")  # by a kill in the middle of a line

    def add(self, result: TeacherResult, raw: str) -> None:
        """Append one failure; one write, so that lines of several processes do not mix."""
        row: dict[str, Any] = {
            "task_id": result.task_id,
            "kind": result.kind,
            "teacher": result.teacher,
            "reason": result.reason,
            "detail": result.detail,
            "attempts": result.attempts,
            "raw": raw[:RAW_CHARS],
        }
        line = json.dumps(row).encode()  # ASCII: half surrogate pairs of a broken answer can be written too
        with self._guard:
            if line in self._known:
                return
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(handle, (b"\n" if self._torn else b"") + line + b"\n")
            finally:
                os.close(handle)
            self._torn = False
            self._known.add(line)
