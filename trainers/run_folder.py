"""A run's folder: where everything a run writes lies, and how it is found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from configs import to_yaml
from configs.schema import GrpoConfig, RunConfig, Stage1Config
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
