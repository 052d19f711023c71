"""A run's folder: where everything a run writes lies, and how it is found again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from configs import ConfigError, to_yaml
from configs.schema import GrpoConfig, RerankerConfig, RunConfig, Stage1Config
from data_pipeline.records import Stage1Record, record_to_row
from models.folders import atomic_write_text, remove_leftovers
from objectives.checkpoint import checkpoint_step, list_checkpoints, read_checkpoint_state

logger = logging.getLogger(__name__)

CACHE_S = 90.0
"""NFS keeps what it knows of a folder for up to a minute (``acdirmax``)."""

AnyConfig = Stage1Config | GrpoConfig | RerankerConfig
C = TypeVar("C", bound=AnyConfig)


@dataclass(frozen=True)
class RunFolder:
    """``runs/<name>/``: config.yaml, metrics.jsonl, events.jsonl, checkpoints/, export/, plots/.

    Attributes:
        checkpoints: a local folder, or a URL of any file system that fsspec knows.
    """

    root: Path
    checkpoints: str

    @classmethod
    def of(cls, run: RunConfig) -> RunFolder:
        """Absolute paths: Ray actors run in folders of their own."""
        root = (Path(run.root) / run.name).resolve()
        if "://" in run.checkpoints:
            return cls(root, run.checkpoints)
        return cls(root, str(Path(run.checkpoints).resolve() if run.checkpoints else root / "checkpoints"))

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def timeline(self) -> Path:
        return self.root / "timeline.jsonl"

    @property
    def export(self) -> Path:
        return self.root / "export"

    @property
    def causal_lm(self) -> Path:
        return self.export / "causal_lm"

    @property
    def plots(self) -> Path:
        return self.root / "plots"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs out of the folder, and clear away what killed ones left half-written in it.

        The lock is the operating system's and ends with the process, however that ends.

        Raises:
            ConfigError: another process trains in this folder.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("a+", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                handle.seek(0)
                raise ConfigError(
                    f"another process trains in {self.root} ({handle.read().strip()}); stop it, or give another run.name"
                ) from error
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}")
            handle.flush()
            folders = [self.root, self.export] + ([] if "://" in self.checkpoints else [Path(self.checkpoints)])
            leftovers = [name for folder in folders for name in remove_leftovers(folder)]
            if leftovers:
                logger.info("removed what killed processes left in %s: %s", self.root, ", ".join(leftovers))
            yield

    def write_config(self, config: AnyConfig) -> None:
        """Write the resolved configuration."""
        atomic_write_text(self.root / "config.yaml", to_yaml(config))

    def latest_checkpoint(self) -> str | None:
        """The newest complete checkpoint, if the run has one."""
        found = list_checkpoints(self.checkpoints)
        return found[-1] if found else None

    def newest_checkpoint(self, saved: int) -> str | None:
        """As :meth:`latest_checkpoint`, but waits for one of update ``saved`` or later, which another node may have written.

        An older one, or none, where that takes longer than :data:`CACHE_S`.
        """

        def seen() -> bool:
            found = self.latest_checkpoint()
            return (checkpoint_step(found) if found else 0) >= saved

        wait_until(seen)
        return self.latest_checkpoint()

    def checkpoint_to_resume(self, identity: dict[str, Any]) -> str | None:
        """The newest checkpoint, refused when it was written by a run with another :func:`run_identity`."""
        checkpoint = self.latest_checkpoint()
        if checkpoint is not None:
            check_identity(self, read_checkpoint_state(checkpoint)["progress"].get("identity", {}), identity)
        return checkpoint


def wait_until(seen: Callable[[], bool]) -> bool:
    """Look for a file until it is seen, for as long as network file systems keep what they have cached."""
    deadline = time.monotonic() + CACHE_S
    while not (found := seen()) and time.monotonic() < deadline:
        time.sleep(min(1.0, CACHE_S))
    return found


def check_input_files(config: AnyConfig) -> None:
    """Refuse file names that are wrong before anything starts.

    Raises:
        ConfigError: naming the key and the file that does not exist.
    """
    for prefix, section, name in _input_files(config):
        file = getattr(section, name)
        if file and not Path(file).is_file():
            raise ConfigError(f"{prefix}.{name} is {file!r}: no such file")


def _input_files(config: AnyConfig) -> list[tuple[str, Any, str]]:
    """Section by name and itself, and key, of every file that a run reads."""
    files: list[tuple[str, Any, str]] = [("data", config.data, "train_file")]
    if isinstance(config, RerankerConfig):
        return [*files, ("data", config.data, "corpus_file")]
    return [*files, ("data", config.data, "exclusions_file"), ("validation", config.validation, "corpus_file")]


def with_absolute_paths(config: C) -> C:
    """A copy whose local files and folders are absolute: Ray actors run in folders of their own."""
    config = deepcopy(config)
    keys: list[tuple[Any, str]] = [
        (config.model, "path"),
        (config.run, "root"),
        *((section, key) for _, section, key in _input_files(config)),
    ]
    if isinstance(config, GrpoConfig):
        keys.append((config.reward, "retriever_path"))
    if config.run.checkpoints and "://" not in config.run.checkpoints:
        keys.append((config.run, "checkpoints"))
    for section, key in keys:
        value = getattr(section, key)
        if value and (section is config.run or Path(value).exists()):  # a hub id stays one
            setattr(section, key, str(Path(value).resolve()))
    return config


def run_identity(config: Stage1Config | GrpoConfig, records: Sequence[Stage1Record]) -> dict[str, Any]:
    """What must not change between a run and its resumption: the batches, what is in them, and the model it began with."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record_to_row(record), sort_keys=True).encode())
    exclusions = config.data.exclusions_file
    return {
        "stage": "stage1" if isinstance(config, Stage1Config) else "grpo",
        "data.train_batch_size": config.data.train_batch_size,
        "data.sampler": config.data.sampler if isinstance(config, Stage1Config) else "separated",
        "run.seed": config.run.seed,
        "records of data.train_file": f"{len(records)} ({digest.hexdigest()[:16]})",
        "data.exclusions_file": file_digest(Path(exclusions)) if exclusions else "",
        "model.path": model_digest(config.model.path),
    }


def model_digest(path: str) -> str:
    """A local folder's weights by content, a hub id by its name."""
    weights = sorted(Path(path).glob("*.safetensors"))
    return " ".join(file_digest(file) for file in weights) if weights else path


def file_digest(file: Path) -> str:
    """Of a file's content."""
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
