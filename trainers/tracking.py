"""Metrics: one row a step in ``metrics.jsonl``, and the same numbers as W&B curves."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs.schema import TrackingConfig
from models.folders import atomic_write_text

logger = logging.getLogger(__name__)

UPDATE = "trainer/update"
"""The x axis of every W&B curve. W&B's own step only counts up: rows logged again after a resume would be ignored under it."""


class Tracker:
    """Writes rows to ``metrics.jsonl`` and, unless disabled, to a W&B run (offline without an account).

    On resume, rows after the checkpoint's step are dropped, so that no step counts twice, and the W&B run id is kept. W&B
    cannot take rows back: there, the updates that are made again appear twice, at the same place of the x axis.
    """

    def __init__(
        self,
        file: Path,
        config: TrackingConfig,
        name: str,
        settings: dict[str, Any],
        *,
        resume_step: int = 0,
        run_id="",
    ):
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        if resume_step == 0 and file.is_file() and file.stat().st_size:
            file.replace(file.with_name(file.name + ".old"))  # a run begun anew: what was logged before is kept aside
        keep_rows_until(file, resume_step)
        self._handle = file.open("a", encoding="utf-8")
        self._run: Any = None
        if config.wandb != "disabled":
            import wandb

            os.environ.setdefault("WANDB_SILENT", "true")
            self._run = wandb.init(
                project=config.project,
                name=name,
                mode=config.wandb,  # type: ignore[arg-type]
                dir=str(file.parent),
                config=settings,
                id=run_id or None,
                resume="allow" if run_id else None,
            )
            self._run.define_metric(UPDATE, hidden=True)
            self._run.define_metric("*", step_metric=UPDATE)
        self.run_id: str = self._run.id if self._run is not None else ""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Add one row; values that are not finite are an error of the caller's and refused.

        Raises:
            ValueError: naming the key and value.
        """
        for key, value in metrics.items():
            if not math.isfinite(value):
                raise ValueError(f"metric {key} at step {step} is {value}; expected a finite number")
        self._handle.write(json.dumps({"step": step, **metrics}) + "\n")
        self._handle.flush()
        if self._run is not None:
            self._to_wandb(lambda run: run.log({**metrics, UPDATE: step}))

    def rewind(self, step: int) -> None:
        """Drop the rows after ``step``, as on a resume: those updates will be made again."""
        self._handle.close()
        keep_rows_until(self.file, step)
        self._handle = self.file.open("a", encoding="utf-8")

    def close(self) -> None:
        """Flush and close both."""
        self._handle.close()
        if self._run is not None:
            self._to_wandb(lambda run: run.finish())

    def _to_wandb(self, send: Callable[[Any], Any]) -> None:
        """W&B gets a copy, so its end is not the run's: a stopped Ray job's processes all get SIGTERM, W&B's own among them."""
        try:
            send(self._run)
        except Exception as error:  # whatever its client raises
            logger.warning("W&B was lost (%r); metrics go on in %s alone", error, self.file)
            self._run = None


def wandb_environment() -> dict[str, str]:
    """W&B's settings in this process's environment, for a process of the same run on another machine."""
    # WANDB_SERVICE is the address of this machine's own W&B process
    return {name: value for name, value in os.environ.items() if name.startswith("WANDB_") and name != "WANDB_SERVICE"}


def keep_rows_until(file: Path, step: int) -> None:
    """Drop the rows of a file of steps that come after ``step``; leaves an empty file where there was none."""
    kept = [row for row in read_metrics(file) if row["step"] <= step]
    atomic_write_text(file, "".join(json.dumps(row) + "\n" for row in kept))


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl`` or ``events.jsonl``; a last line cut by a crash is left out."""
    if not file.is_file():
        return []
    rows = []
    lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{file}:{number}: not JSON: {error}") from error
    return rows


def reward_ends(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Mean total reward over the first (``start``) and the last (``end``) quarter of Stage II's updates.

    Raises:
        ValueError: no row has ``reward/total/mean``.
    """
    values = [row["reward/total/mean"] for row in rows if "reward/total/mean" in row]
    if not values:
        raise ValueError("no update of Stage II is logged; expected rows with reward/total/mean")
    quarter = max(1, len(values) // 4)
    return {"start": sum(values[:quarter]) / quarter, "end": sum(values[-quarter:]) / quarter}
