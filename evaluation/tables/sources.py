"""Finding what tables are made of: results of ours under files and folders, told apart by their keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STUDY, GRID = "study.json", "grid.json"
RUN_METRICS = "metrics.jsonl"

Found = tuple[Path, dict[str, Any]]
"""A file and what it holds."""


@dataclass
class Sources:
    """Everything found, each kind in the order of its paths.

    Attributes:
        results: of ``skillreason evaluate``, those of studies and grids not among them.
        rescored: of ``skillreason rescore --out``.
        studies, grids: of ``skillreason ablate`` and ``skillreason grid``.
        end_to_end, latencies: of the commands of these names.
        runs: folders with ``metrics.jsonl``.
        passed_over: files of folders that are no result of ours, with the reason.
    """

    results: list[Found] = field(default_factory=list)
    rescored: list[Found] = field(default_factory=list)
    studies: list[Found] = field(default_factory=list)
    grids: list[Found] = field(default_factory=list)
    end_to_end: list[Found] = field(default_factory=list)
    latencies: list[Found] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)

    def empty(self) -> bool:
        """Whether nothing was found at all."""
        kinds = (self.results, self.rescored, self.studies, self.grids, self.end_to_end, self.latencies, self.runs)
        return not any(kinds)


def collect(paths: Iterable[str | Path]) -> Sources:
    """Look through files and, recursively, folders.

    The results that belong to a study or a grid stand in its table, so they are not taken for results of their own unless they
    are named themselves.

    Raises:
        FileNotFoundError: a path that is not there.
        ValueError: a named file that is no result of ours, or nothing found at all.
    """
    sources = Sources()
    seen: set[Path] = set()
    named = [Path(path) for path in paths]
    for path in named:
        if not path.exists():
            raise FileNotFoundError(f"no file or folder {path}; expected results of skillreason or folders with them")
        if path.is_file():
            _take(sources, path, seen, named=True)
        else:
            _search(sources, path, seen)
    if sources.empty():
        looked = ", ".join(map(str, named))
        raise ValueError(f"no result under {looked}; expected files of skillreason evaluate, ablate, grid, latency …")
    return sources


def _search(sources: Sources, folder: Path, seen: set[Path]) -> None:
    parts = sorted(folder.iterdir())
    owned = any(part.name in (STUDY, GRID) for part in parts)
    for part in parts:
        if part.name.startswith("."):
            continue
        if part.is_dir():
            if not (owned and part.name == "results"):
                _search(sources, part, seen)
        elif part.name == RUN_METRICS:
            if part.resolve() not in seen:
                seen.add(part.resolve())
                sources.runs.append(folder)
        elif part.suffix == ".json":
            _take(sources, part, seen, named=False)


def _take(sources: Sources, path: Path, seen: set[Path], *, named: bool) -> None:
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    if path.name == RUN_METRICS:
        sources.runs.append(path.parent)
        return
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        if named:
            raise ValueError(f"{path}: cannot be read as JSON ({error}); expected a result of skillreason") from error
        sources.passed_over.append(f"{path}: no JSON ({error})")
        return
    kind = kind_of(value)
    if kind:
        getattr(sources, kind).append((path, value))
    elif named:
        raise ValueError(f"{path}: not a result of skillreason evaluate, rescore, ablate, grid, end-to-end or latency")


def kind_of(value: Any) -> str:
    """The list of :class:`Sources` that a decoded file belongs to; empty for none."""
    if not isinstance(value, Mapping):
        return ""
    if _has(value, metrics=Mapping, queries=Sequence, benchmark=Mapping, model=str):
        return "results"
    if _has(value, tables=Mapping, seeds=Sequence):
        return "studies"
    if _has(value, rows=Sequence, rerank_depth=int):
        return "grids"
    if str(value.get("format", "")).startswith("skillreason-end-to-end") and _has(value, conditions=Sequence):
        return "end_to_end"
    if _has(value, paths=Sequence, protocol=Mapping):
        return "latencies"
    entries = list(value.values())
    if entries and all(isinstance(entry, Mapping) and _has(entry, recall=Sequence, file=str) for entry in entries):
        return "rescored"
    return ""


def _has(value: Mapping[str, Any], **kinds: type) -> bool:
    return all(isinstance(value.get(key), kind) for key, kind in kinds.items())
