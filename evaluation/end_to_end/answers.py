"""The file of a model's answers: it only grows, survives a kill at any moment, and tells a run what need not be asked again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FILE_NAME = "answers.jsonl"


@dataclass(frozen=True)
class Asked:
    """What decides an answer: the model, the prompt and how it is decoded."""

    model: str
    prompt_sha256: str
    decoding: str

    @classmethod
    def of(cls, model: str, prompt_sha256: str, decoding: Mapping[str, Any]) -> Asked:
        return cls(model, prompt_sha256, json.dumps(decoding, sort_keys=True))


@dataclass(frozen=True)
class AnswerRow:
    """A line of the file: one task under one condition.

    ``text`` is the model's, as it came; ``finish`` is ``stop``, ``length`` (cut at the token limit) or ``refusal``.
    """

    instance: str
    suite: str
    condition: str
    model: str
    prompt_sha256: str
    decoding: Mapping[str, Any]
    skills: tuple[str, ...]
    cut_skills: int
    text: str = ""
    finish: str = ""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def asked(self) -> Asked:
        return Asked.of(self.model, self.prompt_sha256, self.decoding)


class AnswerFile:
    """Opened by one run at a time; a context manager.

    Attributes:
        damaged: lines that could not be read and were passed over, such as one that a kill has torn.
    """

    def __init__(self, folder: str | Path) -> None:
        """Read what is there.

        Raises:
            ValueError: another run is writing to the file.
        """
        self.path = Path(folder) / FILE_NAME
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            raise ValueError(f"{self.path}: another run is writing to it; wait for it, or give another --out") from None
        self.damaged = 0
        self._rows: dict[tuple[str, str, Asked], AnswerRow] = {}
        self._texts: dict[Asked, AnswerRow] = {}
        data = self.path.read_bytes()
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.split(b"\n"):
            if line.strip():
                self._read(line)

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)

    def get(self, row: AnswerRow) -> AnswerRow | None:
        """The answer to the same instance, condition and question as an unanswered row, or None."""
        return self._rows.get((row.instance, row.condition, row.asked))

    def same_prompt(self, row: AnswerRow) -> AnswerRow | None:
        """The unanswered row with the answer that another condition got for the same prompt (appended to the file), or None."""
        known = self._texts.get(row.asked)
        if known is None:
            return None
        answered = replace(
            row,
            text=known.text,
            finish=known.finish,
            input_tokens=known.input_tokens,
            output_tokens=known.output_tokens,
        )
        self.add(answered)
        return answered

    def add(self, row: AnswerRow) -> None:
        """Append an answer. What was paid for is safe already, in the client's own store: this need not wait for the disk."""
        line = json.dumps(asdict(row)).encode() + b"\n"  # ASCII: half surrogate pairs can be written too
        data = (b"\n" if self._torn else b"") + line
        self._torn = True
        if os.write(self._handle, data) != len(data):
            raise OSError(f"{self.path}: could not be written to the end; is the disk full?")
        self._torn = False
        self._keep(row)

    def _read(self, line: bytes) -> None:
        try:
            value = json.loads(line)
            value["skills"] = tuple(value["skills"])
            row = AnswerRow(**value)
            if not isinstance(row.text, str) or not isinstance(row.decoding, dict):
                raise TypeError
            self._keep(row)
        except (ValueError, TypeError, KeyError):
            self.damaged += 1

    def _keep(self, row: AnswerRow) -> None:
        self._rows[row.instance, row.condition, row.asked] = row
        self._texts.setdefault(row.asked, row)
