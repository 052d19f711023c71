"""Reading the tables of published benchmarks: JSONL, Parquet, JSON lists, shards, and columns by one of several names."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.corpus import Skill, SkillCorpus, metadata_from_row
from data_pipeline.rows import RecordError, read_rows

TABLE_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".json", ".json.zip")


@dataclass(frozen=True)
class Row:
    """A row with its place, for errors: ``file:number``, number from 1."""

    file: Path
    number: int
    value: Mapping[str, Any]

    def error(self, problem: str, key: str | None = None, value: Any = None) -> RecordError:
        """An error that names file, row, key and value."""
        return RecordError(self.file, self.number, problem, key, value)

    def key(self, names: Sequence[str]) -> str:
        """The first of ``names`` that the row has; RecordError with the columns it has instead."""
        for name in names:
            if self.value.get(name) is not None:
                return name
        found = ", ".join(self.value) or "no columns"
        raise self.error(f"missing column {' or '.join(names)}; this row has {found}")

    def text(self, *names: str, empty: bool = False) -> str:
        """Text of the first of ``names`` that the row has; whole numbers count as text, blank text only with ``empty``."""
        if empty and all(self.value.get(name) is None for name in names):
            return ""
        key = self.key(names)
        value = self.value[key]
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise self.error("expected text", key, value)
        if not empty and not value.strip():
            raise self.error("expected text that is not blank", key, value)
        return value

    def texts(self, *names: str) -> list[str]:
        """A list of texts, at least one; a single text counts as a list of one."""
        key = self.key(names)
        value = self.value[key]
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or not items or not all(isinstance(i, str) and i for i in items):
            raise self.error("expected a list of one or more texts", key, value)
        return list(dict.fromkeys(items))


def find_table(folder: Path, *stems: str) -> Path:
    """The table ``<stem><suffix>`` of a folder; FileNotFoundError with what would be accepted and what is there."""
    for stem in stems:
        for suffix in TABLE_SUFFIXES:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:20]) if folder.is_dir() else "no such folder"
    raise FileNotFoundError(
        f"{folder}: no table {' or '.join(stems)} ({', '.join(TABLE_SUFFIXES)}); the folder has: {there or 'nothing'}"
    )


def read_table(path: Path) -> Iterator[Row]:
    """The rows of a table, or of all shards of a folder in the order of their names.

    Raises:
        RecordError: a damaged row or file, or a JSON file that is no list of objects.
        FileNotFoundError: a folder without a shard.
    """
    if path.is_dir():
        shards = sorted(p for p in path.iterdir() if p.is_file() and p.name.lower().endswith(TABLE_SUFFIXES))
        if not shards:
            raise FileNotFoundError(f"{path}: no shard; expected files ending in {', '.join(TABLE_SUFFIXES)}")
        for shard in shards:
            yield from read_table(shard)
    elif path.name.lower().endswith((".json", ".json.zip")):
        for number, value in enumerate(_json_list(path), start=1):
            if not isinstance(value, dict):
                raise RecordError(path, number, f"a JSON {type(value).__name__}; expected an object with named keys")
            yield Row(path, number, value)
    else:
        for number, value in read_rows(path):
            yield Row(path, number, value)


def read_skills(path: Path, id_names: Sequence[str], body_names: Sequence[str]) -> SkillCorpus:
    """The corpus of a table with ``name``, ``description`` and the given id and body columns.

    Published corpora are taken as they are: a name, description or body may be missing, as long as not all three are.

    Raises:
        RecordError: a missing or repeated id, a field that is no text, or a skill without any text.
    """
    skills: list[Skill] = []
    seen: dict[str, int] = {}
    for row in read_table(path):
        skill_id = row.text(*id_names)
        if skill_id in seen:
            raise row.error(f"duplicate id, first seen in skill number {seen[skill_id]}", row.key(id_names), skill_id)
        seen[skill_id] = len(skills) + 1
        name = row.text("name", "title", empty=True)
        description = row.text("description", empty=True)
        body = row.text(*body_names, empty=True)
        if not (name.strip() or description.strip() or body.strip()):
            found = ", ".join(row.value)
            raise row.error(f"no text in name, description or {' or '.join(body_names)}; this row has {found}")
        known = {*id_names, *body_names, "name", "title", "description", "skill_id", "body"}
        skills.append(Skill(skill_id, name, description, body, metadata_from_row(row.value, known)))
    if not skills:
        raise RecordError(path, 1, "the corpus has no skills; expected at least one row")
    return SkillCorpus(skills)


def read_json(path: Path) -> Any:
    """A JSON file's value; RecordError where it is none."""
    try:
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                members = [name for name in archive.namelist() if name.endswith(".json") and "__MACOSX" not in name]
                if len(members) != 1:
                    raise RecordError(path, 1, f"holds {len(members)} JSON files; expected one")
                return json.loads(archive.read(members[0]))
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, zipfile.BadZipFile) as error:
        raise RecordError(path, 1, f"not valid JSON ({error}); fetch the file again") from error


def _json_list(path: Path) -> list[Any]:
    value = read_json(path)
    if not isinstance(value, list):
        raise RecordError(path, 1, f"a JSON {type(value).__name__}; expected a list of objects")
    return value
