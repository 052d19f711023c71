"""A.1's baselines: the same system prompt and answer form for all methods; only what the teacher sees differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from data_pipeline import Skill
from data_pipeline.skill2query.baselines import baseline_task, baseline_templates, few_shot_examples
from data_pipeline.skill2query.filling import GenerationConfig
from data_pipeline.skill2query.generation import generate
from data_pipeline.skill2query.graph import Example, SkillGraph
from data_pipeline.skill2query.style import mimic_style
from data_pipeline.skill2query.teacher_templates import graph_tasks
from data_pipeline.teacher import TeacherTask

EXAMPLES = tuple(Example(f"e{i}", f"usage number {i}", "request") for i in range(8))
SKILL = Skill("shop/ferns", "ferns", "Sells ferns.", "# Ferns\n\nBODYTEXT with ways to sell ferns.")
GRAPH = SkillGraph("shop/ferns", "ferns", "Sells ferns.", examples=EXAMPLES)
BASELINES = ("zero_shot", "few_shot", "skillflow")


def task_of(method: str, seed: int = 0) -> TeacherTask:
    return baseline_task(SKILL, GRAPH, GenerationConfig(method=method, seed=seed))


def test_zero_shot_sees_name_and_description_alone() -> None:
    prompt = task_of("zero_shot").prompt
    assert "Sells ferns." in prompt
    assert "usage number" not in prompt
    assert "BODYTEXT" not in prompt


def test_few_shot_sees_three_usage_examples_besides() -> None:
    prompt = task_of("few_shot").prompt
    assert prompt.count("usage number") == 3
    assert "BODYTEXT" not in prompt


def test_skillflow_sees_the_whole_document() -> None:
    assert "BODYTEXT with ways to sell ferns." in task_of("skillflow").prompt


def test_all_methods_share_system_prompt_and_answer_form(seating: SkillGraph) -> None:
    ours = next(iter(graph_tasks(seating, mimic_style(seating), seating.capabilities, 4)))
    assert {task_of(method).system for method in BASELINES} == {ours.system}
    items = [task.schema["properties"]["templates"]["items"] for task in (ours, *map(task_of, BASELINES))]
    assert {tuple(item["required"]) for item in items} == {("capability", "form", "template")}


def test_examples_are_drawn_by_the_seed() -> None:
    assert few_shot_examples(GRAPH, 0) == few_shot_examples(GRAPH, 0)
    drawn = {tuple(few_shot_examples(GRAPH, seed)) for seed in range(20)}
    assert len(drawn) > 5
    assert all(len(set(texts)) == 3 for texts in drawn)


@pytest.mark.parametrize("count", [0, 2])
def test_a_document_with_fewer_examples_gives_those(count: int) -> None:
    graph = SkillGraph("shop/ferns", "ferns", "", examples=EXAMPLES[:count])
    assert few_shot_examples(graph, 0) == [example.text for example in EXAMPLES[:count]]


def test_the_structured_method_is_no_baseline() -> None:
    with pytest.raises(ValueError, match="'skill2query' is no baseline; expected zero_shot"):
        task_of("skill2query")


def test_a_slot_belongs_to_the_parameter_of_the_same_words(seating: SkillGraph) -> None:
    answer = {"templates": [{"capability": "", "form": "imperative", "template": "Print {guest_file} for {who}."}]}
    (template,) = baseline_templates(seating, "zero_shot", answer, "openai:x")
    assert template.slots == {"guest_file": "p3", "who": ""}
    assert template.capability_id == ""


@pytest.mark.parametrize("method", BASELINES)
def test_baselines_go_through_the_same_filling_and_checks(method: str, scripted_teacher: Callable[..., Any]) -> None:
    def script(task: TeacherTask) -> dict[str, Any]:
        texts = ["Show the ferns.", "Show the ferns in {city}."]
        return {"templates": [{"capability": "", "form": "imperative", "template": text} for text in texts]}

    made = list(generate([SKILL], GenerationConfig(method=method, combinations=2), scripted_teacher(script)))
    assert [query.valid for query in made] == [True, False, False]
    assert made[1].problems == ("name: {city} is no parameter of the skill",)
    assert made[1].slots["city"] in made[1].query
    assert {(query.method, query.capability_id, query.writer) for query in made} == {(method, "", "openai:scripted")}
