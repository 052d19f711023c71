"""A run's folder: where everything a run writes lies, and how it is found again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import ConfigError, to_yaml
from configs.schema import GrpoConfig, RunConfig, Stage1Config
from data_pipeline.records import Stage1Record
from models.folders import atomic_write_text
from objectives.checkpoint import list_checkpoints


@dataclass(frozen=True)
class RunFolder:
    """``runs/<name>/``: config.yaml, metrics.jsonl, checkpoints/, export/, plots/."""

    root: Path
    checkpoints: Path

    @classmethod
    def of(cls, run: RunConfig) -> RunFolder:
        root = Path(run.root) / run.name
        return cls(root, Path(run.checkpoints) if run.checkpoints else root / "checkpoints")

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def export(self) -> Path:
        return self.root / "export"

    @property
    def causal_lm(self) -> Path:
        return self.export / "causal_lm"

    @property
    def plots(self) -> Path:
        return self.root / "plots"

    def write_config(self, config: Stage1Config | GrpoConfig) -> None:
        """Write the resolved configuration."""
        atomic_write_text(self.root / "config.yaml", to_yaml(config))

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, if the run has one."""
        found = list_checkpoints(self.checkpoints)
        return found[-1] if found else None


def run_identity(config: Stage1Config | GrpoConfig, records: Sequence[Stage1Record]) -> dict[str, Any]:
    """What must not change between a run and its resumption: which batches there are, and of what."""
    digest = hashlib.sha256("\n".join(r.record_id for r in records).encode()).hexdigest()[:16]
    return {
        "stage": "stage1" if isinstance(config, Stage1Config) else "grpo",
        "data.train_batch_size": config.data.train_batch_size,
        "run.seed": config.run.seed,
        "records of data.train_file": f"{len(records)} ({digest})",
    }


def check_identity(run: RunFolder, saved: dict[str, Any], current: dict[str, Any]) -> None:
    """Refuse to resume a run with other data, batches or seed.

    Raises:
        ConfigError: naming the first key that differs and both values.
    """
    for key, value in current.items():
        if saved.get(key) != value:
            raise ConfigError(
                f"{run.root} has a checkpoint with {key} {saved.get(key)!r}, this run has {value!r}; "
                "give another run.name, or the settings it was begun with"
            )
