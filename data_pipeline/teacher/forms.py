"""The parts that all prompts are made of: the frame around rules and data, and the forms of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.corpus import Skill
from data_pipeline.teacher.task import Check, TeacherTask
from data_pipeline.teacher.untrusted import DATA_RULES, cut, data_blocks

DOCUMENT_CHARS = 12_000
"""Of a skill's document that the teacher sees (A.1)."""
NAME_CHARS = 200
DESCRIPTION_CHARS = 2_000
REQUEST_CHARS = 4_000
QUERY_LIMIT = 2_000
"""Characters of a written request. D.1's own bounds are tighter; they are checked and counted row by row."""
REASON_LIMIT = 600
MAX_RATIONALE_WORDS = 31  # G.3: under 32
RATIONALE_PATTERN = re.compile(r"The user needs skills for \S[^\n]*\.")


def make_task(
    kind: str,
    record_id: str,
    rules: str,
    blocks: Mapping[str, str],
    order: str,
    schema: Mapping[str, Any],
    inputs: Mapping[str, Any],
    check: Check | None = None,
) -> TeacherTask:
    """A task whose system message holds everything that is ours, and whose user message holds the data of one record.

    ``order`` closes the user message: it says once more what is wanted, after whatever the data said.
    """
    return TeacherTask(
        task_id=f"{kind}/{record_id}",
        kind=kind,
        system=f"{rules.strip()}\n\n{DATA_RULES}\n\nReturn exactly one JSON object of the form shown, and no markdown.",
        prompt=f"{data_blocks(blocks)}\n\n{order}",
        schema=schema,
        check=check,
        inputs=inputs,
    )


def skill_blocks(skill: Skill, prefix: str = "skill", document_chars: int = DOCUMENT_CHARS) -> dict[str, str]:
    """Name, description and document of a skill; never its id, which often names the repository."""
    return {
        f"{prefix} name": cut(skill.name, NAME_CHARS),
        f"{prefix} description": cut(skill.description, DESCRIPTION_CHARS),
        f"{prefix} document": cut(skill.body, document_chars),
    }


def request_block(query: str, name: str = "user request") -> dict[str, str]:
    """A user's request."""
    return {name: cut(query, REQUEST_CHARS)}


# -- forms of answers ----------------------------------------------------------------------------------------------------


def form(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly these keys, all required."""
    return {
        "type": "object",
        "properties": {name: dict(value) for name, value in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


def text(limit: int) -> dict[str, Any]:
    """A string with something in it."""
    return {"type": "string", "pattern": r"\S", "maxLength": limit}


def one_of(values: Sequence[str | int]) -> dict[str, Any]:
    """One of these values."""
    return {"type": "string" if isinstance(values[0], str) else "integer", "enum": list(values)}


def several(item: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A list of exactly so many different items."""
    return {"type": "array", "items": dict(item), "minItems": count, "maxItems": count, "uniqueItems": True}


FLAG = {"type": "boolean"}
REASON = text(REASON_LIMIT)
QUERY = text(QUERY_LIMIT)


def check_rationale(answer: Mapping[str, Any]) -> str | None:
    """The sentence pattern and length that G.3 demands of ``query_capability``."""
    sentence = answer["query_capability"]
    if not RATIONALE_PATTERN.fullmatch(sentence):
        return 'query_capability: expected one sentence "The user needs skills for <capability description>."'
    words = len(sentence.split())
    return None if words <= MAX_RATIONALE_WORDS else f"query_capability: {words} words; expected under 32"


def kept_only_as(good: str) -> Check:
    """``keep`` must agree with ``issue_type``: true with ``good``, false with every other."""

    def check(answer: Mapping[str, Any]) -> str | None:
        if answer["keep"] == (answer["issue_type"] == good):
            return None
        return f"keep and issue_type contradict each other; keep is true with {good} and false with every other type"

    return check
