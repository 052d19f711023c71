"""From a model's text to a value that fits the schema, or to the reason why it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

from data_pipeline.teacher.task import Check

PROBLEM_CHARS = 300
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)  # reasoning models put it before the answer
_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*?)\n?```\Z", re.DOTALL)
# Kept where a string is checked by us; taken out of the schema that is sent, see relaxed_schema.
_UNSUPPORTED = {"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minimum", "maximum", "pattern"}


@dataclass(frozen=True)
class Answer:
    """A value, or a reason (``invalid_json``, ``schema_violation``, ``check_failed``) with the problem in words."""

    value: dict[str, Any] | None
    reason: str = ""
    problem: str = ""


def read_answer(text: str, schema: Mapping[str, Any], check: Check | None = None) -> Answer:
    """Read exactly one JSON object and hold it to the schema and the task's own rule.

    A leading ``<think>`` section and a code fence around the whole answer are taken off; nothing else is mended. Repeated keys,
    NaN, control characters and half surrogate pairs are refused: what is written here is read by other programs.
    """
    body = _THINKING.sub("", text).strip().removeprefix("\ufeff")
    fenced = _FENCED.match(body)
    try:
        value = json.loads(
            fenced.group(1) if fenced else body, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        return Answer(None, "invalid_json", _short(f"not one JSON object: {error}"))
    if not isinstance(value, dict):
        return Answer(None, "invalid_json", f"a JSON {type(value).__name__}; expected one object")
    error = best_match(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value))
    if error is not None:
        return Answer(None, "schema_violation", _short(f"{error.json_path}: {error.message}"))
    unwritable = _unwritable_text(value)
    if unwritable:
        return Answer(None, "schema_violation", unwritable)
    problem = check(value) if check else None
    return Answer(None, "check_failed", _short(problem)) if problem else Answer(value)


def relaxed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the schema that every provider's structured output takes: lengths, counts and ranges are left to us."""

    def relax(node: Any, is_property_map: bool = False) -> Any:
        if isinstance(node, Mapping):
            kept = {k: v for k, v in node.items() if is_property_map or k not in _UNSUPPORTED}
            return {k: relax(v, not is_property_map and k == "properties") for k, v in kept.items()}
        return [relax(item) for item in node] if isinstance(node, list | tuple) else node

    return relax(schema)


@lru_cache(maxsize=128)
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    parsed = json.loads(schema)
    jsonschema.Draft202012Validator.check_schema(parsed)
    return jsonschema.Draft202012Validator(parsed)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _unwritable_text(value: Any) -> str | None:
    if isinstance(value, str):
        if any(ord(c) < 32 and c not in "\n\t" for c in value):
            return "a string holds control characters; expected plain text"
        if any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            return "a string holds half of a surrogate pair; expected valid Unicode"
        return None
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((problem for item in items if (problem := _unwritable_text(item))), None)


def _short(text: str) -> str:
    return text if len(text) <= PROBLEM_CHARS else text[: PROBLEM_CHARS - 1] + "…"
