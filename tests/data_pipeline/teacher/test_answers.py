"""From a model's text to a checked value."""

from __future__ import annotations

import json

import jsonschema
import pytest

from data_pipeline.teacher.answers import read_answer, relaxed_schema
from data_pipeline.teacher.forms import FLAG, form, one_of, several, text

SCHEMA = form(keep=FLAG, label=one_of(("a", "b")), words=several(text(10), 2))
GOOD = '{"keep": true, "label": "a", "words": ["x", "y"]}'


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"\n  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f'<think>maybe {{"keep": false}}</think>\n\n{GOOD}',
    ],
)
def test_one_object_is_read(answer: str):
    assert read_answer(answer, SCHEMA).value == {"keep": True, "label": "a", "words": ["x", "y"]}


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot do that.",
        f"Here you are: {GOOD}",
        f"{GOOD} {GOOD}",
        GOOD[:-5],
        "[]",
        '"text"',
        '{"keep": true, "keep": true, "label": "a", "words": ["x", "y"]}',
        '{"keep": NaN, "label": "a", "words": ["x", "y"]}',
        "[" * 100_000,
        '{"keep": ' + "9" * 10_000 + "}",
    ],
)
def test_anything_else_is_invalid_json(answer: str):
    read = read_answer(answer, SCHEMA)
    assert (read.value, read.reason) == (None, "invalid_json")
    assert read.problem


@pytest.mark.parametrize(
    "change, told",
    [
        ({"keep": "yes"}, "$.keep"),
        ({"keep": 1}, "$.keep"),
        ({"label": "c"}, "$.label"),
        ({"words": ["x"]}, "$.words"),
        ({"words": ["x", "x"]}, "$.words"),
        ({"words": ["x", "   "]}, "$.words[1]"),
        ({"words": ["x", "y" * 11]}, "$.words[1]"),
        ({"secret": 1}, "secret"),
        ({"words": ["x", "\x00"]}, "control"),
        ({"words": ["x", "\ud800"]}, "surrogate"),
    ],
)
def test_a_value_outside_of_the_schema_is_refused_with_its_place(change: dict[str, object], told: str):
    read = read_answer(json.dumps(json.loads(GOOD) | change), SCHEMA)
    assert (read.value, read.reason) == (None, "schema_violation")
    assert told in read.problem


def test_a_missing_key_is_named():
    assert "'label'" in read_answer('{"keep": true, "words": ["x", "y"]}', SCHEMA).problem


def test_the_task_may_refuse_what_the_schema_takes():
    read = read_answer(GOOD, SCHEMA, lambda value: "keep must be false" if value["keep"] else None)
    assert (read.value, read.reason, read.problem) == (None, "check_failed", "keep must be false")


def test_a_problem_is_told_in_a_few_words_however_long_the_answer():
    assert len(read_answer(json.dumps({"label": "x" * 100_000}), SCHEMA).problem) <= 300


def test_the_relaxed_schema_keeps_types_and_values_and_leaves_ranges_to_us():
    relaxed = relaxed_schema(SCHEMA)
    assert relaxed["properties"]["words"] == {"type": "array", "items": {"type": "string"}}
    assert relaxed["properties"]["label"] == {"type": "string", "enum": ["a", "b"]}
    assert relaxed["required"] == ["keep", "label", "words"]
    assert relaxed["additionalProperties"] is False
    jsonschema.Draft202012Validator.check_schema(relaxed)


def test_a_property_may_have_the_name_of_a_keyword():
    assert relaxed_schema(form(pattern=text(5)))["properties"] == {"pattern": {"type": "string"}}
