"""The persistent store of a teacher's answers: whatever was paid for once is never asked again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
FILE_NAME = "answers.sqlite3"
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, model TEXT NOT NULL, task TEXT NOT NULL, text TEXT NOT NULL, finish TEXT NOT NULL,
    input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (
    kind TEXT NOT NULL, model TEXT NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,
    PRIMARY KEY (kind, model)) WITHOUT ROWID;
"""
_held: dict[tuple[int, str], set[int]] = {}
_lock_files: dict[tuple[int, str], Any] = {}
_held_guard = threading.Lock()


@dataclass(frozen=True)
class Reply:
    """A model's answer as it came. ``finish`` is ``stop``, ``length`` (cut at the token limit) or ``refusal``."""

    text: str
    finish: str
    input_tokens: int
    output_tokens: int
    estimated: bool = False  # the endpoint did not count the tokens; not stored


def cache_key(
    kind: str, model: str, system: str, messages: Sequence[Mapping[str, str]], schema: Any, params: Mapping[str, Any]
) -> str:
    """SHA-256 of all that decides an answer. The address is no part of it: the same model may move to another port."""
    asked = [kind, model, system, [dict(m) for m in messages], schema, dict(params)]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


class ResponseCache:
    """Answers in one SQLite file; safe for many threads and processes, and against a kill at any moment.

    An answer is committed and synced before anybody reads it. SQLite's rollback journal (not its write-ahead log, which needs
    shared memory) works on network file systems too. ``claim`` keeps two processes from paying for the same question.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / FILE_NAME
        self._lock_path = os.path.realpath(self.folder / f"{FILE_NAME}.locks")
        self._guard = threading.Lock()
        self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, FORMAT):
                raise ValueError(f"{self.path}: answers of format {found}; expected {FORMAT}; name another folder")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("PRAGMA journal_mode=DELETE")
            self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={FORMAT}; COMMIT;")
        except sqlite3.Error as error:
            raise ValueError(f"{self.path}: {error}; expected a teacher's answers, or no file of this name") from error

    def get(self, key: str) -> Reply | None:
        """The stored answer, or None."""
        with self._guard:
            row = self._db.execute(
                "SELECT text, finish, input_tokens, output_tokens FROM answers WHERE key = ?", (key,)
            ).fetchone()
        return Reply(*row) if row else None

    def put(self, key: str, kind: str, model: str, task: str, reply: Reply) -> None:
        """Store an answer and what it cost, in one transaction; it is on disk when this returns."""
        row = (key, kind, model, task, reply.text, reply.finish, reply.input_tokens, reply.output_tokens)
        with self._guard, _Transaction(self._db):
            self._db.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._spend(kind, model, reply.input_tokens, reply.output_tokens)

    def put_lost(self, kind: str, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count a call whose answer never arrived, at its estimate: the endpoint may have charged for it."""
        with self._guard, _Transaction(self._db):
            self._spend(kind, model, input_tokens, output_tokens)

    def spent(self, kind: str, model: str) -> tuple[int, int]:
        """Input and output tokens of everything that was ever paid for with this model and file, by any process."""
        with self._guard:
            row = self._db.execute(
                "SELECT input_tokens, output_tokens FROM spent WHERE kind = ? AND model = ?", (kind, model)
            ).fetchone()
        return row or (0, 0)

    def _spend(self, kind: str, model: str, input_tokens: int, output_tokens: int) -> None:
        self._db.execute(
            "INSERT INTO spent VALUES (?, ?, ?, ?) ON CONFLICT (kind, model) DO UPDATE SET "
            "input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens",
            (kind, model, input_tokens, output_tokens),
        )

    def claim(self, key: str) -> bool:
        """True where the caller may ask this question now; False where another thread or process is asking it.

        A claim is a lock on one byte of a file, at an offset that the key chooses: the kernel frees it when its process dies.
        """
        offset, place = _offset(key), (os.getpid(), self._lock_path)
        with _held_guard:
            held = _held.setdefault(place, set())
            if offset in held:
                return False
            if place not in _lock_files:
                # Open for the life of the process: closing any handle of the file would free all locks of the process.
                _lock_files[place] = open(self._lock_path, "ab")  # noqa: SIM115
            try:
                fcntl.lockf(_lock_files[place], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError:
                return False
            held.add(offset)
            return True

    def release(self, key: str) -> None:
        """Give a claim back."""
        offset, place = _offset(key), (os.getpid(), self._lock_path)
        with _held_guard:
            fcntl.lockf(_lock_files[place], fcntl.LOCK_UN, 1, offset)
            _held[place].discard(offset)


class _Transaction:
    """All or nothing; on disk when the block ends."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self._db.execute("ROLLBACK" if kind else "COMMIT")


def _offset(key: str) -> int:
    return int(key[:15], 16)
