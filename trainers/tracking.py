"""Metrics: one row a step in ``metrics.jsonl``, and the same numbers as W&B curves."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from configs.schema import TrackingConfig
from models.folders import atomic_write_text


class Tracker:
    """Writes rows to ``metrics.jsonl`` and, unless disabled, to a W&B run (offline without an account).

    On resume, rows after the checkpoint's step are dropped, so that no step counts twice, and the W&B run id is kept.
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
        kept = [row for row in read_metrics(file) if row["step"] <= resume_step] if resume_step else []
        atomic_write_text(file, "".join(json.dumps(row) + "\n" for row in kept))
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
            self._run.log(metrics, step=step)

    def close(self) -> None:
        """Flush and close both."""
        self._handle.close()
        if self._run is not None:
            self._run.finish()


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line cut by a crash is left out."""
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
