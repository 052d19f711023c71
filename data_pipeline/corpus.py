"""The skill corpus: an ordered list of skills with unique, stable ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from data_pipeline.rows import RecordError, read_rows, write_rows
from models.views import DEFAULT_FORMAT, serialize_document

_TEXT_KEYS = ("skill_id", "name", "description", "body")
INDEX_TEXT = "index_text"
"""Key of a row whose document is not put together from its fields, but stands there: what ``skill2query augment`` writes."""


@dataclass(frozen=True)
class Skill:
    """One skill document (C.2). ``metadata`` holds what else is known: repository, path, license, ..."""

    skill_id: str
    name: str
    description: str
    body: str
    metadata: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def document(self) -> str:
        """The serialized text that retrievers see: ``name | description[:300] | body[:2500]`` (E.1)."""
        return self.serialize()

    def serialize(self, document_format: str = DEFAULT_FORMAT) -> str:
        """The text that retrievers of a document format see; a row's own ``index_text``, where it has one, for all of them."""
        own = self.metadata.get(INDEX_TEXT)
        return own or serialize_document(self.name, self.description, self.body, document_format)


class SkillCorpus(Sequence[Skill]):
    """Skills in a fixed order, addressed by position or by id. ``skill_id in corpus`` asks by id."""

    def __init__(self, skills: Iterable[Skill]) -> None:
        """Raise ValueError where an id is empty or occurs twice."""
        self._skills = list(skills)
        self.ids: list[str] = [skill.skill_id for skill in self._skills]
        self._position: dict[str, int] = {}
        for position, skill_id in enumerate(self.ids):
            if not skill_id:
                raise ValueError(f"skill number {position} has an empty skill_id; every skill needs a stable id")
            if skill_id in self._position:
                first = self._position[skill_id]
                raise ValueError(f"skill_id {skill_id!r} occurs twice (numbers {first} and {position}); ids are unique")
            self._position[skill_id] = position

    def __len__(self) -> int:
        return len(self._skills)

    @overload
    def __getitem__(self, index: int) -> Skill: ...
    @overload
    def __getitem__(self, index: slice) -> list[Skill]: ...
    def __getitem__(self, index: int | slice) -> Skill | list[Skill]:
        return self._skills[index]

    def __contains__(self, item: object) -> bool:
        if isinstance(item, Skill):
            return item.skill_id in self._position and self.get(item.skill_id) == item
        return isinstance(item, str) and item in self._position

    def position(self, skill_id: str) -> int:
        """The row of a skill in ``ids``, ``documents()`` and every embedding matrix made from them."""
        try:
            return self._position[skill_id]
        except KeyError:
            raise KeyError(f"no skill {skill_id!r} among the {len(self)} skills of this corpus") from None

    def get(self, skill_id: str) -> Skill:
        """The skill of that id; KeyError naming it where the corpus has none."""
        return self._skills[self.position(skill_id)]

    def document(self, skill_id: str, document_format: str = DEFAULT_FORMAT) -> str:
        """The serialized document (E.1) of that id; KeyError naming it where the corpus has none."""
        return self.get(skill_id).serialize(document_format)

    def documents(self, document_format: str = DEFAULT_FORMAT) -> list[str]:
        """The serialized documents (E.1) of all skills, in corpus order."""
        return [skill.serialize(document_format) for skill in self._skills]

    @classmethod
    def from_jsonl(cls, path: str | Path) -> SkillCorpus:
        """Read ``skill_id, name, description, body`` rows from .jsonl, .jsonl.gz or .parquet; other keys become metadata.

        Raises RecordError naming file, row, key and value for a missing, mistyped or empty field or a repeated id.
        A library that has not been cleaned goes through ``ingest`` first.
        """
        seen: dict[str, int] = {}
        skills: list[Skill] = []
        for row, value in read_rows(path):
            skill = _skill_from_row(path, row, value)
            if skill.skill_id in seen:
                problem = f"duplicate id, first seen in row {seen[skill.skill_id]}; ids are unique"
                raise RecordError(path, row, problem, "skill_id", skill.skill_id)
            seen[skill.skill_id] = row
            skills.append(skill)
        if not skills:
            raise RecordError(path, 1, "the file has no skills; expected at least one row")
        return cls(skills)

    def to_jsonl(self, path: str | Path) -> None:
        """Write .jsonl, .jsonl.gz or .parquet by suffix, atomically; metadata keys stand beside the four text fields."""
        write_rows(path, (skill_to_row(skill) for skill in self._skills))


def skill_to_row(skill: Skill) -> dict[str, str]:
    """The flat row of a skill as it stands in a corpus file."""
    extra = {key: value for key, value in skill.metadata.items() if key not in _TEXT_KEYS}
    row = {
        "skill_id": skill.skill_id,
        "name": skill.name,
        "description": skill.description,
        "body": skill.body,
    }
    return row | extra


def metadata_from_row(row: Mapping[str, Any], known: Iterable[str] = _TEXT_KEYS) -> dict[str, str]:
    """Every other scalar key of a row as text; empty values and nested ones are left out."""
    skip = set(known)
    return {
        str(key): value if isinstance(value, str) else str(value)
        for key, value in row.items()
        if key not in skip and isinstance(value, str | int | float | bool) and value != ""
    }


def _skill_from_row(path: str | Path, row: int, value: Mapping[str, Any]) -> Skill:
    for key in _TEXT_KEYS:
        if key not in value:
            raise RecordError(path, row, f"missing key {key!r}; a skill has {', '.join(_TEXT_KEYS)}")
        text = value[key]
        if not isinstance(text, str):
            raise RecordError(path, row, "expected a string", key, text)
        if key in ("skill_id", "name") and not text.strip():
            raise RecordError(path, row, "expected a non-empty string", key, text)
    if not value["description"].strip() and not value["body"].strip():
        raise RecordError(path, row, "description and body are both empty; a skill needs a document", "body", "")
    return Skill(value["skill_id"], value["name"], value["description"], value["body"], metadata_from_row(value))
