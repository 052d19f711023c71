"""A run's folder: where everything a run writes lies, and how it is found again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import ConfigError, to_yaml
from configs.schema import GrpoConfig, RunConfig, Stage1Config
from data_pipeline.records import Stage1Record, record_to_row
from models.folders import atomic_write_text
from objectives.checkpoint import list_checkpoints, read_checkpoint_state


@dataclass(frozen=True)
class RunFolder:
    """``runs/<name>/``: config.yaml, metrics.jsonl, checkpoints/, export/, plots/."""

    root: Path
    checkpoints: Path

    @classmethod
    def of(cls, run: RunConfig) -> RunFolder:
        """Absolute paths: Ray actors run in folders of their own."""
        root = (Path(run.root) / run.name).resolve()
        return cls(root, Path(run.checkpoints).resolve() if run.checkpoints else root / "checkpoints")

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

    def checkpoint_to_resume(self, identity: dict[str, Any]) -> Path | None:
        """The newest checkpoint, refused when it was written by a run with another :func:`run_identity`."""
        checkpoint = self.latest_checkpoint()
        if checkpoint is not None:
            check_identity(self, read_checkpoint_state(checkpoint)["progress"].get("identity", {}), identity)
        return checkpoint


def check_input_files(config: Stage1Config | GrpoConfig) -> None:
    """Refuse file names that are wrong before anything starts.

    Raises:
        ConfigError: naming the key and the file that does not exist.
    """
    files = {
        "data.train_file": config.data.train_file,
        "data.exclusions_file": config.data.exclusions_file,
        "validation.corpus_file": config.validation.corpus_file,
    }
    for key, file in files.items():
        if file and not Path(file).is_file():
            raise ConfigError(f"{key} is {file!r}: no such file")


def use_absolute_paths(config: GrpoConfig) -> None:
    """Make local model folders absolute: Ray actors run in folders of their own."""
    for section, key in ((config.model, "path"), (config.reward, "retriever_path")):
        value = getattr(section, key)
        if value and Path(value).is_dir():
            setattr(section, key, str(Path(value).resolve()))


def run_identity(config: Stage1Config | GrpoConfig, records: Sequence[Stage1Record]) -> dict[str, Any]:
    """What must not change between a run and its resumption: the batches, what is in them, and the model it began with."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record_to_row(record), sort_keys=True).encode())
    exclusions = config.data.exclusions_file
    return {
        "stage": "stage1" if isinstance(config, Stage1Config) else "grpo",
        "data.train_batch_size": config.data.train_batch_size,
        "run.seed": config.run.seed,
        "records of data.train_file": f"{len(records)} ({digest.hexdigest()[:16]})",
        "data.exclusions_file": _file_digest(Path(exclusions)) if exclusions else "",
        "model.path": _model_digest(config.model.path),
    }


def _model_digest(path: str) -> str:
    """A local folder's weights by content, a hub id by its name."""
    weights = sorted(Path(path).glob("*.safetensors"))
    return " ".join(_file_digest(file) for file in weights) if weights else path


def _file_digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()[:16]


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
