"""What a stage makes of a teacher's answers, and what it says where there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.pipeline import PipelineError, load_pipeline_config
from data_pipeline.pipeline import asking as asking_module
from data_pipeline.pipeline.asking import ask_teacher, same_model_warning
from data_pipeline.teacher import TeacherConfig, TeacherResult, TeacherStopped, TeacherTask

Script = Callable[..., dict[str, Any]]
TASKS = [TeacherTask(f"k/{i}", "k", "", "", {}) for i in range(3)]


def test_failures_are_counted_by_reason_and_usage_is_kept(script: Script, tmp_path: Path) -> None:
    script({"k": lambda task: None if task.task_id == "k/1" else {"a": 1}})
    asked = ask_teacher(TeacherConfig(), tmp_path, "teacher", TASKS)
    assert [result.ok for result in asked.results] == [True, False, True]
    assert dict(asked.failed) == {"teacher_invalid_json": 1}
    assert asked.notes["teacher"] == "offline"
    assert asked.notes["usage"]["calls"] == 3


def test_an_endpoint_that_stops_is_a_message_and_no_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Refusing:
        def run(self, tasks: Iterable[TeacherTask], progress: bool) -> Iterator[TeacherResult]:
            raise TeacherStopped("the key was refused")

    monkeypatch.setattr(asking_module, "open_teacher", lambda *given: Refusing())
    with pytest.raises(PipelineError, match=r"^teachers\.review: the key was refused$"):
        ask_teacher(TeacherConfig(), tmp_path, "teachers.review", TASKS)


def test_judges_are_independent_where_no_builder_has_their_model() -> None:
    models = {"default": "m", "audit_a": "n", "audit_b": "m"}
    overrides = [
        f"teachers.{role}.{key}" for role, model in models.items() for key in ("kind=openai", f"model={model}")
    ]
    config = load_pipeline_config(None, ["out=x", "sources=[y]", *overrides])
    assert same_model_warning(config, ("audit_a",), ("audit_b",)) == []
    assert same_model_warning(config, ("audit_a", "audit_b"), ("screening", "judge_a")) == [
        "audit_b, screening, judge_a are all openai:m: their agreement is not independent"
    ]
