"""From folders, files and datasets of skills to one cleaned corpus file (C.2): ``skillreason ingest``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.cleaning import CleaningRules, DroppedRecord, RawSkill, Reason, clean
from data_pipeline.corpus import SkillCorpus, metadata_from_row
from data_pipeline.rows import RecordError, iterate_jsonl, read_rows
from data_pipeline.skill_md import parse_skill_md
from models.folders import write_json

_NEVER_SKILLS = {".git", "node_modules", "__pycache__", ".venv"}
_ID_KEYS = ("skill_id", "id")
_BODY_KEYS = ("body", "content")


@dataclass(frozen=True)
class IngestReport:
    """What ``ingest`` read, kept and dropped. ``sources`` maps each PATH to the number of records read from it."""

    out: str
    collected: int
    kept: int
    dropped: dict[str, int]
    sources: dict[str, int]
    records: list[DroppedRecord]

    def to_dict(self) -> dict[str, Any]:
        """The report as it stands in its JSON file."""
        return asdict(self)


def ingest(
    paths: Sequence[str],
    out: Path | str,
    report: Path | str | None = None,
    rules: CleaningRules | None = None,
    progress: bool = True,
) -> IngestReport:
    """Read, clean and merge skills from ``paths`` into the corpus file ``out``, and write a report beside it.

    A path is a folder (every SKILL.md below it; the id is the path of the skill's folder below the given one), a
    SKILL.md, a corpus file (.jsonl, .jsonl.gz or .parquet with ``skill_id``, ``name``, ``description``, ``body``), or
    ``hf:owner/name[:split]``, a Hugging Face dataset with those columns (split ``train``). An id met twice, in one path
    or in two, is dropped as a duplicate that names where the first one came from. ``out`` ends in .jsonl, .jsonl.gz or
    .parquet and is written in one move; the report goes to ``report``, or to ``<out>.report.json``.

    Raises:
        FileNotFoundError: a path does not exist, or a folder has no SKILL.md.
        RecordError: a damaged gzip or Parquet file, whose loss nobody could count.
        ValueError: an unknown kind of path, or nothing left to keep (the report is written all the same).
    """
    out = Path(out)
    sources: dict[str, int] = {}
    raw: list[RawSkill] = []
    for path in paths:
        before = len(raw)
        raw.extend(tqdm(read_raw(path), desc=f"reading {path}", unit=" skills", disable=not progress))
        sources[path] = sources.get(path, 0) + len(raw) - before
    result = clean(raw, rules)
    outcome = IngestReport(str(out), len(raw), len(result.kept), result.counts, sources, result.dropped)
    report_path = Path(report) if report is not None else out.with_name(out.name + ".report.json")
    write_json(report_path, outcome.to_dict())
    if not result.kept:
        raise ValueError(
            f"no skill left of {len(raw)} read: {result.reasons or 'the sources are empty'}; see {report_path}"
        )
    SkillCorpus(result.kept).to_jsonl(out)
    return outcome


def read_raw(path: str) -> Iterator[RawSkill]:
    """The records of one PATH of ``ingest``, uncleaned, in a stable order."""
    if path.startswith("hf:"):
        return _read_dataset(path)
    source = Path(path)
    if source.is_dir():
        return _read_folder(source)
    if not source.exists():
        raise FileNotFoundError(
            f"{path}: no such file or folder; expected a folder, a corpus file or hf:owner/name[:split]"
        )
    if source.name.lower() == "skill.md":
        return iter([_read_skill_file(source, source.resolve().parent.name, source.name)])
    if source.name.lower().endswith(".parquet"):
        return (_raw_from_row(path, row, value) for row, value in read_rows(source))
    if source.name.lower().endswith((".jsonl", ".jsonl.gz")):
        return _read_jsonl(path)
    raise ValueError(
        f"{path}: unknown kind of source; expected a folder, SKILL.md, .jsonl, .jsonl.gz, .parquet or hf:owner/name[:split]"
    )


def _read_folder(root: Path) -> Iterator[RawSkill]:
    found = False
    for file in skill_files(root):
        found = True
        relative = file.relative_to(root)
        skill_id = relative.parent.as_posix() if relative.parent.parts else root.resolve().name
        yield _read_skill_file(file, skill_id, relative.as_posix())
    if not found:
        raise FileNotFoundError(f"{root}: no SKILL.md in this folder or below it")


def skill_files(root: Path) -> Iterator[Path]:
    """Every SKILL.md below ``root``. Linked folders are not followed: they would give one skill two ids, or never end."""
    for folder, subfolders, files in os.walk(root):
        # The order of the file system must not decide which of two records wins.
        subfolders[:] = sorted(name for name in subfolders if name not in _NEVER_SKILLS)
        yield from (Path(folder, name) for name in sorted(files) if name.lower() == "skill.md")


def _read_skill_file(file: Path, skill_id: str, path: str) -> RawSkill:
    if file.exists() and not file.is_file():  # a pipe or a device would never end
        return RawSkill(str(file), None, skill_id, problem=(Reason.UNREADABLE, "cannot be read: no regular file"))
    try:
        data = file.read_bytes()
    except OSError as error:
        return RawSkill(str(file), None, skill_id, problem=(Reason.UNREADABLE, f"cannot be read: {error.strerror}"))
    return parse_skill_md(data, skill_id, str(file), path)


def _read_jsonl(path: str) -> Iterator[RawSkill]:
    for row, value in iterate_jsonl(path):
        if isinstance(value, RecordError):
            unreadable = "unreadable bytes" in value.problem
            yield RawSkill(
                path,
                row,
                problem=(Reason.UNREADABLE if unreadable else Reason.MALFORMED_RECORD, value.problem),
            )
        else:
            yield _raw_from_row(path, row, value)


def _read_dataset(path: str) -> Iterator[RawSkill]:
    name, _, split = path.removeprefix("hf:").partition(":")
    if name.count("/") != 1 or not all(name.split("/")):
        raise ValueError(f"{path}: expected hf:owner/name or hf:owner/name:split")
    import datasets

    rows: Any = datasets.load_dataset(name, split=split or "train")
    for row, value in enumerate(rows, start=1):
        yield _raw_from_row(path, row, {key: item for key, item in value.items() if item is not None})


def _raw_from_row(file: str, row: int, value: Mapping[str, Any]) -> RawSkill:
    id_key = next((key for key in _ID_KEYS if key in value), "skill_id")
    body_key = next((key for key in _BODY_KEYS if key in value), "body")
    known = (id_key, "name", "description", body_key)
    skill_id = value.get(id_key)
    if isinstance(skill_id, int) and not isinstance(skill_id, bool):
        skill_id = str(skill_id)
    return RawSkill(
        file,
        row,
        skill_id,
        value.get("name"),
        value.get("description"),
        value.get(body_key),
        metadata_from_row(value, {*known, "skill_id", "body"}),
    )
