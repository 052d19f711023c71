"""SKILL.md files: YAML frontmatter and a Markdown body."""

from __future__ import annotations

import datetime
import re
from typing import Any

import yaml

from data_pipeline.cleaning import RawSkill, Reason

_FRONTMATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_SCALARS = (str, int, float, bool, datetime.date)


def parse_skill_md(data: bytes, skill_id: str, file: str, path: str = "") -> RawSkill:
    """A SKILL.md file as a raw record; what is wrong with it becomes its ``problem``, never an exception.

    ``skill_id`` is the id its place in the library gives it, ``file`` how to name it in reports, ``path`` its path
    inside the library. ``name`` and ``description`` come from the frontmatter (safe YAML); its other plain values
    become metadata. A file without frontmatter has no name.
    """
    metadata = {"path": path} if path else {}
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return RawSkill(file, None, skill_id, metadata=metadata, problem=(Reason.UNREADABLE, f"not UTF-8: {error}"))
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    match = _FRONTMATTER.match(text)
    if match is None:
        if re.match(r"---[ \t]*\n", text):
            problem = Reason.MALFORMED_FRONTMATTER, "the frontmatter has no closing '---' line"
            return RawSkill(file, None, skill_id, metadata=metadata, problem=problem)
        return RawSkill(file, None, skill_id, body=text, metadata=metadata)
    front = _load_yaml(match.group(1))
    if isinstance(front, str):
        problem = Reason.MALFORMED_FRONTMATTER, front
        return RawSkill(file, None, skill_id, metadata=metadata, problem=problem)
    for key in ("name", "description"):
        if front.get(key) is not None and not isinstance(front[key], _SCALARS):
            detail = f"{key} is a {type(front[key]).__name__}; expected text"
            return RawSkill(file, None, skill_id, metadata=metadata, problem=(Reason.MALFORMED_FRONTMATTER, detail))
    name, description = (None if front.get(key) is None else str(front[key]) for key in ("name", "description"))
    return RawSkill(
        file, None, skill_id, name, description, text[match.end() :], _frontmatter_metadata(front) | metadata
    )


def _load_yaml(text: str) -> dict[str, Any] | str:
    """The frontmatter's mapping, or what is wrong with it."""
    try:
        front = yaml.safe_load(text)
    # Beside its own errors PyYAML raises ValueError for impossible dates and RecursionError for deep nesting.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return "not valid YAML: " + " ".join(str(error).split())[:300]
    if front is None:
        return {}
    if not isinstance(front, dict):
        return f"the frontmatter is a {type(front).__name__}; expected 'key: value' lines"
    return front


def _frontmatter_metadata(front: dict[str, Any]) -> dict[str, str]:
    """Plain values as text and flat lists joined by commas; nested ones are left out, since aliases can make them huge."""
    metadata: dict[str, str] = {}
    for key, value in front.items():
        if not isinstance(key, str) or key in ("skill_id", "name", "description", "body"):
            continue
        if isinstance(value, _SCALARS):
            metadata[key] = str(value)
        elif isinstance(value, list) and len(value) <= 100 and all(isinstance(item, _SCALARS) for item in value):
            metadata[key] = ", ".join(map(str, value))
    return metadata
