"""Templates by a teacher model: what it is shown, what is refused of its answers, and what becomes of the rest."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from data_pipeline.skill2query.graph import Capability, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form
from data_pipeline.skill2query.style import mimic_style
from data_pipeline.skill2query.teacher_templates import graph_tasks, graph_templates, template_problem
from data_pipeline.teacher import OfflineTeacher, TeacherTask
from data_pipeline.teacher.answers import read_answer
from data_pipeline.teacher.untrusted import DATA_RULES


def task_for(graph: SkillGraph) -> TeacherTask:
    (task,) = graph_tasks(graph, mimic_style(graph), graph.capabilities, 4)
    return task


def row(template: str, capability: str = "c1", form: str = "wh") -> dict[str, str]:
    return {"capability": capability, "form": form, "template": template}


def test_the_prompt_shows_capabilities_their_slots_style_and_examples_as_data(seating: SkillGraph) -> None:
    task = task_for(seating)
    assert DATA_RULES in task.system
    assert '"id": "c2"' in task.prompt
    assert '"slot": "guest_file"' in task.prompt
    assert '"values": [\n     "svg",\n     "pdf"\n    ]' in task.prompt
    assert "1. Print the cards for guests.csv in svg format" in task.prompt
    assert '"median words": 8' in task.prompt
    assert seating.skill_id not in task.prompt


def test_five_capabilities_make_one_task(seating: SkillGraph) -> None:
    many = replace(seating, capabilities=tuple(Capability(f"c{i}", f"do thing {i}", "list") for i in range(12)))
    tasks = list(graph_tasks(many, mimic_style(many), many.capabilities, 4))
    assert [len(task.inputs["slots"]) for task in tasks] == [5, 5, 2]
    assert len({task.task_id for task in tasks}) == 3
    assert tasks[2].schema["properties"]["templates"]["maxItems"] == 8


def test_an_answer_becomes_templates_bound_to_capability_and_parameters(seating: SkillGraph) -> None:
    task = task_for(seating)
    answer = {
        "templates": [
            row("How can {n} people sit at {k} tables?"),
            row("Print cards for {guest_file}.", "c2", "imperative"),
        ]
    }
    read = read_answer(json.dumps(answer), task.schema, task.check)
    assert read.value is not None, read.problem
    first, second = graph_templates(task, read.value, "openai:some")
    assert (first.capability_id, first.form, first.slots, first.writer) == (
        "c1",
        Form.WH,
        {"n": "p1", "k": "p2"},
        "openai:some",
    )
    assert (second.capability_id, second.slots) == ("c2", {"guest_file": "p3"})
    assert first.template_id != second.template_id


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (row("How can {guests} people sit here?"), "slot {guests}; expected one of n, k"),
        (row("How can I print {format} cards?"), "slot {format}"),
        (row("How many people fit", form="wh"), "not a sentence of form wh"),
        (row("What seats how many people?", form="imperative"), "not a sentence of form imperative"),
        (row("How does the table-planner seat people?"), "the skill's name"),
        (row("How do `people` sit down here?"), "markup"),
        (row("How {do people sit?"), "braces that are no slot"),
        (row("How?"), "1 words; expected 3 to 40"),
    ],
)
def test_templates_that_break_a_rule_are_refused_with_the_rule(
    seating: SkillGraph, bad: dict[str, str], problem: str
) -> None:
    task = task_for(seating)
    read = read_answer(json.dumps({"templates": [bad]}), task.schema, task.check)
    assert read.reason == "check_failed"
    assert problem in read.problem
    assert read.problem.startswith("templates[0]")


@pytest.mark.parametrize("capability", ["c3", "", "c1, c2"])
def test_a_template_is_for_exactly_one_of_the_capabilities(seating: SkillGraph, capability: str) -> None:
    task = task_for(seating)
    answer = {"templates": [row("How many people sit at {k} tables?", capability)]}
    assert read_answer(json.dumps(answer), task.schema, task.check).reason == "schema_violation"


def test_a_missing_required_slot_is_left_to_the_static_validation(seating: SkillGraph) -> None:
    task = task_for(seating)
    assert read_answer(json.dumps({"templates": [row("How many people fit in here?")]}), task.schema, task.check).value


def test_any_slot_is_taken_where_none_are_listed() -> None:
    assert template_problem("Seat {whoever} at the table.", Form.IMPERATIVE, "planner", None) is None


def test_the_offline_teacher_has_no_rule_for_it(seating: SkillGraph) -> None:
    result = OfflineTeacher().complete(task_for(seating))
    assert (result.status, result.reason) == ("failed", "unknown_kind")
