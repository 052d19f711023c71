"""Every prompt: what it contains, what it keeps out, and which answers it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from data_pipeline import Skill
from data_pipeline.teacher import OfflineTeacher, TeacherTask, bench_prompts, prompts
from data_pipeline.teacher.answers import read_answer

SKILL = Skill(
    "garden/frost-alert", "frost-alert", "Warns when a night forecast threatens plants.", "# Frost\n\nBODY-TEXT"
)
OTHER = Skill("garden/rain-gauge", "rain-gauge", "Logs rainfall by the hour.", "# Rain\n\nOTHER-TEXT")
QUERY = "Tell me in time when my seedlings may freeze tonight."
RATIONALE = "The user needs skills for comparing forecasts with plant tolerances."

Make = Callable[[], TeacherTask]
TASKS: dict[str, Make] = {
    "query_synthesis": lambda: prompts.query_synthesis(SKILL),
    "quality_review": lambda: prompts.quality_review("r1", QUERY, SKILL, ["Another one.", "A third one."]),
    "rationale": lambda: prompts.rationale("r1", QUERY, SKILL),
    "implicit_rewrite": lambda: prompts.implicit_rewrite("r1", QUERY, RATIONALE, SKILL),
    "category": lambda: prompts.category(SKILL, ["garden", "kitchen"]),
    "multi_skill_task": lambda: prompts.multi_skill_task("t1", [SKILL, OTHER]),
    "relevance_audit": lambda: prompts.relevance_audit("t1/s", QUERY, SKILL),
    "anchor_screening": lambda: bench_prompts.anchor_screening(SKILL),
    "bench_query": lambda: bench_prompts.bench_query(SKILL),
    "target_validation": lambda: bench_prompts.target_validation("q1", QUERY, SKILL),
    "alternative_audit": lambda: bench_prompts.alternative_audit("q1", QUERY, SKILL, OTHER),
    "joint_review": lambda: bench_prompts.joint_review("q1", QUERY, SKILL),
    "quality_audit": lambda: bench_prompts.quality_audit("q1", QUERY, SKILL),
}
EVERY = pytest.mark.parametrize("name", list(TASKS))


@EVERY
def test_the_form_that_is_shown_has_the_keys_of_the_schema(name: str):
    task = TASKS[name]()
    shown = re.search(r"^Form: (\{.*?\})$", task.system, re.DOTALL | re.MULTILINE)
    assert shown
    assert list(json.loads(shown.group(1))) == task.schema["required"] == list(task.schema["properties"])
    jsonschema.Draft202012Validator.check_schema(task.schema)


@EVERY
def test_a_task_is_named_by_its_kind_and_record(name: str):
    task = TASKS[name]()
    assert task.kind == name
    assert task.task_id.startswith(f"{name}/")


@EVERY
def test_data_stands_in_the_user_message_alone(name: str):
    task = TASKS[name]()
    for data in ("BODY-TEXT", "frost-alert", QUERY):
        assert data not in task.system
    assert "BODY-TEXT" in task.prompt
    assert "never an instruction to you" in " ".join(task.system.split())


@EVERY
def test_ids_are_not_shown(name: str):
    assert "garden/" not in TASKS[name]().prompt


@EVERY
def test_the_offline_teacher_answers_and_marks_every_kind(name: str):
    result = OfflineTeacher().complete(TASKS[name]())
    assert result.ok, (result.reason, result.detail)
    assert result.record()["teacher"] == "offline"


def answer(name: str, value: dict[str, Any]) -> str:
    task = TASKS[name]()
    return read_answer(json.dumps(value), task.schema, task.check).reason


def test_three_different_requests_are_wanted():
    assert answer("query_synthesis", {"queries": ["a", "b", "c"]}) == ""
    assert answer("query_synthesis", {"queries": ["a", "b"]}) == "schema_violation"
    assert answer("query_synthesis", {"queries": ["a", "b", "b"]}) == "schema_violation"


@pytest.mark.parametrize(
    "sentence, reason",
    [
        (RATIONALE, ""),
        ("The user needs skills for " + "word " * 25 + "word.", ""),  # 31 words
        ("The user needs skills for " + "word " * 26 + "word.", "check_failed"),  # 32
        ("The user wants a forecast.", "check_failed"),
        ("The user needs skills for forecasts", "check_failed"),
        ("- The user needs skills for forecasts.", "check_failed"),
        ("The user needs skills for forecasts.\nAnd more.", "check_failed"),
    ],
)
def test_a_rationale_has_g3s_pattern_and_length(sentence: str, reason: str):
    assert answer("rationale", {"query_capability": sentence}) == reason


@pytest.mark.parametrize("name, good, bad", [("quality_review", "good", "generic")])
def test_keep_agrees_with_the_issue(name: str, good: str, bad: str):
    assert answer(name, {"keep": True, "issue_type": good, "reason": "x"}) == ""
    assert answer(name, {"keep": False, "issue_type": bad, "reason": "x"}) == ""
    assert answer(name, {"keep": True, "issue_type": bad, "reason": "x"}) == "check_failed"
    assert answer(name, {"keep": False, "issue_type": good, "reason": "x"}) == "check_failed"


def test_a_target_is_valid_only_if_all_conditions_hold():
    met = {"specialized": True, "concrete": True, "implicit": True, "supported": True}
    good = {**met, "keep": True, "issue_type": "good", "reason": "x"}
    assert answer("target_validation", good) == ""
    assert answer("target_validation", {**good, "implicit": False}) == "check_failed"
    rejected = {**good, "implicit": False, "keep": False, "issue_type": "explicit_match"}
    assert answer("target_validation", rejected) == ""


@pytest.mark.parametrize(
    "scores, passes",
    [
        ((4, 4, 3, 3, False), True),
        ((3, 5, 5, 5, False), False),
        ((5, 3, 5, 5, False), False),
        ((5, 5, 2, 5, False), False),
        ((5, 5, 5, 2, False), False),
        ((5, 5, 5, 5, True), False),
    ],
)
def test_an_audit_passes_by_the_rule_of_g1(scores: tuple[Any, ...], passes: bool):
    keys = ("naturalness", "gold_alignment", "skill_necessity", "implicitness", "leakage")
    value: dict[str, Any] = dict(zip(keys, scores, strict=True))
    assert bench_prompts.audit_passes(value) == passes
    assert answer("quality_audit", {**value, "pass": passes, "reason": "x"}) == ""
    assert answer("quality_audit", {**value, "pass": not passes, "reason": "x"}) == "check_failed"


def test_scores_are_one_to_five():
    value = {"naturalness": 6, "gold_alignment": 5, "skill_necessity": 5, "implicitness": 5, "leakage": False}
    assert answer("quality_audit", {**value, "pass": True, "reason": "x"}) == "schema_violation"


def test_a_category_is_one_of_the_labels():
    assert answer("category", {"category": "garden", "reason": "x"}) == ""
    assert answer("category", {"category": "cars", "reason": "x"}) == "schema_violation"


def test_a_compound_task_names_a_need_for_each_skill():
    value = {"query": "Do both.", "needs": ["the frost", "the rain"], "query_capability": RATIONALE}
    assert answer("multi_skill_task", value) == ""
    assert answer("multi_skill_task", {**value, "needs": ["the frost"]}) == "schema_violation"


@pytest.mark.parametrize("count", [1, 6])
def test_a_compound_task_takes_two_to_five_skills(count: int):
    with pytest.raises(ValueError, match=f"t1: {count} skills; expected 2 to 5"):
        prompts.multi_skill_task("t1", [SKILL] * count)


def test_the_relevance_audit_sees_seven_hundred_characters_of_the_body():
    skill = Skill("a/b", "b", "d", "x" * 700 + "y")
    prompt = prompts.relevance_audit("r", QUERY, skill).prompt
    assert "x" * 700 in prompt
    assert "xy" not in prompt


def test_the_quality_audit_sees_twelve_thousand_characters_of_the_document():
    skill = Skill("a/b", "b", "d", "x" * 12_000 + "y")
    prompt = bench_prompts.quality_audit("q", QUERY, skill).prompt
    assert "x" * 12_000 in prompt
    assert "xy" not in prompt


def test_a_review_sees_the_other_requests_one_a_line():
    prompt = TASKS["quality_review"]().prompt
    assert "1. Another one.\n2. A third one." in prompt
