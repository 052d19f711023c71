"""A skill's graph written by hand, and a teacher that answers from a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Example, Parameter, ParameterType, SkillGraph
from data_pipeline.teacher import TeacherResult, TeacherTask, Usage
from data_pipeline.teacher.answers import read_answer

USES, SETS = EdgeType.USES_PARAMETER, EdgeType.SETS_PARAMETER


@pytest.fixture
def seating() -> SkillGraph:
    """A.3's own case, with a second capability that has a file, a format, a switch and a limit."""
    return SkillGraph(
        skill_id="events/table-planner",
        name="table-planner",
        description="Seats guests.",
        capabilities=(
            Capability("c1", "seat guests at round tables", "description"),
            Capability("c2", "print name cards for all the guests", "list"),
        ),
        parameters=(
            Parameter("p1", "n", ParameterType.INTEGER, required=True, minimum=1, maximum=5),
            Parameter("p2", "k", ParameterType.INTEGER, required=True, minimum=1, maximum=2),
            Parameter("p3", "guest_file", ParameterType.PATH, required=True),
            Parameter("p4", "format", ParameterType.ENUM, default="pdf", values=("svg", "pdf")),
            Parameter("p5", "include_titles", ParameterType.BOOLEAN),
        ),
        examples=(
            Example("e1", "Print the cards for guests.csv in svg format", "request"),
            Example("e2", "planner print guests.csv", "command"),
        ),
        edges=(
            Edge("c1", "p1", USES),
            Edge("c1", "p2", USES),
            Edge("c2", "p3", USES),
            Edge("c2", "p4", USES),
            Edge("c2", "p5", USES),
            Edge("e1", "p3", SETS, "guests.csv"),
            Edge("e1", "p4", SETS, "svg"),
        ),
    )


class ScriptedTeacher:
    """Answers a task with what the script makes of it, through the same reader as a real model's answer."""

    name = "openai:scripted"

    def __init__(self, script: Callable[[TeacherTask], dict[str, Any]]) -> None:
        self.script = script
        self.asked: list[TeacherTask] = []

    @property
    def usage(self) -> Usage:
        return Usage(calls=len(self.asked))

    def run(self, tasks: Iterable[TeacherTask], progress: bool = False) -> Iterator[TeacherResult]:
        for task in tasks:
            yield self.complete(task)

    def complete(self, task: TeacherTask) -> TeacherResult:
        self.asked.append(task)
        answer = read_answer(json.dumps(self.script(task)), task.schema, task.check)
        if answer.value is None:
            return TeacherResult(task.task_id, task.kind, "failed", self.name, None, answer.reason, answer.problem)
        return TeacherResult(task.task_id, task.kind, "ok", self.name, answer.value)


@pytest.fixture
def scripted_teacher() -> type[ScriptedTeacher]:
    return ScriptedTeacher
