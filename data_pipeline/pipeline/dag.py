"""Stages that read each other's artifacts: skipped when up to date, rerun when anything they read has changed."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from data_pipeline.pipeline.digests import artifact_digests, current_digests, input_digest
from data_pipeline.pipeline.manifests import MANIFEST, PipelineError, read_manifest, refuse_foreign
from models.folders import atomic_folder, remove_leftovers, write_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageContext:
    """What a stage's function gets.

    Attributes:
        config: the whole pipeline configuration; a stage may read only the sections and keys it declares.
        inputs: folder of every stage that it needs, by name.
        out: empty folder for its artifacts; it appears under the stage's name when the function returns.
        state: folder that outlives a killed run, for what must not be done twice; never an artifact.
        progress: whether to show progress bars.
    """

    config: Any
    inputs: Mapping[str, Path]
    out: Path
    state: Path
    progress: bool = False


@dataclass(frozen=True)
class StageReport:
    """What a stage tells about its run: counts, rejections by reason, and anything else worth keeping."""

    counts: Mapping[str, int] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        needs: stages whose artifacts it reads.
        keys: dotted configuration keys that decide its outcome; a section stands for everything below it.
        files: keys among them whose values are files (or lists of files): their content counts, not their name.
        version: raise it when the code changes what the stage writes.
    """

    name: str
    run: Callable[[StageContext], StageReport]
    needs: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    version: int = 1


@dataclass(frozen=True)
class StageStatus:
    """``state`` is done, stale (something it read has changed) or missing; ``why`` says what changed."""

    name: str
    state: str
    why: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)


class Pipeline:
    """Stages in an order in which each comes after what it needs.

    Raises:
        PipelineError: a stage twice, or one that needs a later or unknown stage.
    """

    def __init__(self, stages: Sequence[Stage], config: Any, out: str | Path):
        self.stages = {stage.name: stage for stage in stages}
        if len(self.stages) != len(stages):
            raise PipelineError("two stages have the same name")
        seen: set[str] = set()
        for stage in stages:
            unknown = [need for need in stage.needs if need not in seen]
            if unknown:
                raise PipelineError(f"stage {stage.name} needs {unknown[0]}, which does not come before it")
            seen.add(stage.name)
        self.config = config
        self.out = Path(out)

    def run(self, until: Sequence[str] = (), force: Sequence[str] = (), progress: bool = False) -> list[str]:
        """Run what is missing or stale among ``until`` (empty: all) and what they need; returns the stages that ran.

        A forced stage runs in any case, with what it needs, whether ``until`` leads to it or not.

        A stage whose new artifacts equal the old ones leaves those that read them up to date. What a stage raises ends the
        run; earlier stages keep their artifacts, and the failed one leaves none.

        Raises:
            PipelineError: an unknown stage name, an input file that is missing, another process in the same folder, or something
                of the user's own where a stage's artifacts would lie.
        """
        self._check_names([*until, *force])
        wanted = self._closure([*until, *force] if until else ())
        ran: list[str] = []
        with self._lock():
            remove_leftovers(self.out)
            for name in wanted:
                refuse_foreign(self.folder(name))
            for name in wanted:
                status = self._status(name)
                if status.state == "done" and name not in force:
                    logger.info("%s: up to date", name)
                    continue
                logger.info("%s: %s", name, "forced" if name in force else status.why or status.state)
                self._run_stage(self.stages[name], progress)
                ran.append(name)
        return ran

    def status(self) -> list[StageStatus]:
        """Every stage, in order. A stage after a stale one is judged by the artifacts that there are now."""
        return [self._status(name) for name in self.stages]

    def folder(self, name: str) -> Path:
        """Where a stage's artifacts lie."""
        return self.out / name

    def manifest(self, name: str) -> dict[str, Any]:
        """The manifest of a stage that has run.

        Raises:
            PipelineError: it has not, or its manifest cannot be read.
        """
        return read_manifest(self.folder(name))

    def _run_stage(self, stage: Stage, progress: bool) -> None:
        start = time.perf_counter()
        key = self._key(stage)
        state = self.out / ".state" / stage.name
        state.mkdir(parents=True, exist_ok=True)
        with atomic_folder(self.folder(stage.name)) as scratch:
            inputs = {need: self.folder(need) for need in stage.needs}
            report = stage.run(StageContext(self.config, inputs, scratch, state, progress))
            write_json(
                scratch / MANIFEST,
                {
                    "stage": stage.name,
                    **key,
                    "artifacts": artifact_digests(scratch, MANIFEST),
                    "counts": dict(report.counts),
                    "rejected": {reason: n for reason, n in sorted(report.rejected.items()) if n},
                    "notes": dict(report.notes),
                    "seconds": round(time.perf_counter() - start, 3),
                },
            )

    def _status(self, name: str) -> StageStatus:
        stage, folder = self.stages[name], self.folder(name)
        if not (folder / MANIFEST).is_file():
            return StageStatus(name, "missing")
        manifest = read_manifest(folder)
        absent = [need for need in stage.needs if not (self.folder(need) / MANIFEST).is_file()]
        if absent:
            return StageStatus(name, "stale", f"{absent[0]} has no artifacts", manifest)
        try:
            key = self._key(stage)
        except PipelineError as error:  # an input file that is gone: running the stage will say so too
            return StageStatus(name, "stale", str(error), manifest)
        for part, value in key.items():
            why = _difference(part, manifest.get(part), value)
            if why:
                return StageStatus(name, "stale", why, manifest)
        if manifest.get("artifacts") != current_digests(folder, manifest):
            return StageStatus(name, "stale", "its artifacts are not those it wrote", manifest)
        return StageStatus(name, "done", manifest=manifest)

    def _key(self, stage: Stage) -> dict[str, Any]:
        """All that decides a stage's artifacts: version, configuration, input files and the artifacts it reads."""
        return {
            "version": stage.version,
            "config": {key: plain(self._value(key)) for key in stage.keys if key not in stage.files},
            "files": {key: [self._digest(file, key) for file in _as_list(self._value(key))] for key in stage.files},
            "inputs": {need: read_manifest(self.folder(need))["artifacts"] for need in stage.needs},
        }

    def _digest(self, file: str, key: str) -> str:
        try:
            return input_digest(file, key)
        except FileNotFoundError as error:
            raise PipelineError(str(error)) from error

    def _value(self, key: str) -> Any:
        value = self.config
        for part in key.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        return value

    def _closure(self, until: Sequence[str]) -> list[str]:
        wanted = set(until) or set(self.stages)
        for name in reversed(self.stages):
            if name in wanted:
                wanted.update(self.stages[name].needs)
        return [name for name in self.stages if name in wanted]

    def _check_names(self, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in self.stages]
        if unknown:
            raise PipelineError(f"no stage {unknown[0]!r}; expected one of {', '.join(self.stages)}")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One process a folder; the kernel gives the lock back when the process ends, however it ends."""
        self.out.mkdir(parents=True, exist_ok=True)
        with open(self.out / ".lock", "a+", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "unknown"
                raise PipelineError(f"{self.out}: another process (pid {owner}) is running this pipeline") from None
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
            yield


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as JSON has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _difference(part: str, old: Any, new: Any) -> str:
    if old == new:
        return ""
    if isinstance(old, dict) and isinstance(new, dict):
        changed = next(key for key in [*new, *old] if old.get(key) != new.get(key))
        if part == "inputs":
            return f"artifacts of {changed} changed"
        if part == "files":
            return f"the content of {changed} changed"
        return f"{changed} was {old.get(changed)!r}, is {new.get(changed)!r}"
    return f"{part} was {old!r}, is {new!r}"


def _as_list(value: Any) -> list[str]:
    if value is None or value == "":
        return []
    return [str(value)] if isinstance(value, str | Path) else [str(item) for item in value]
