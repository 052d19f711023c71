"""What befell a run: one line an event in ``events.jsonl``, over all its restarts."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

from models.folders import atomic_write_text
from trainers.tracking import read_metrics

logger = logging.getLogger(__name__)


class EventLog:
    """Appends to a run's ``events.jsonl``; the driver alone writes it. A last line that a crash cut short is dropped."""

    def __init__(self, file: Path):
        self.file = file
        rows = read_metrics(file)
        if rows:
            atomic_write_text(file, "".join(json.dumps(row) + "\n" for row in rows))
        self._rows = rows

    def add(self, event: str, detail: str, **fields: str | int | float) -> None:
        """Log an event and append ``{"time", "event", "detail", **fields}``; the time is UTC."""
        logger.warning("%s: %s", event, detail)
        row = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, "detail": detail, **fields}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")
        self._rows.append(row)

    def count(self, event: str) -> int:
        """How often it happened, in earlier processes of the run too."""
        return sum(row["event"] == event for row in self._rows)

    def total(self, field: str) -> float:
        """The sum of a field over all events that have it."""
        return float(sum(row.get(field, 0.0) for row in self._rows))
