"""A small library, pipelines on it, and a teacher whose answers a test writes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.pipeline import ALL_STAGES, Pipeline, load_pipeline_config
from data_pipeline.pipeline import asking as asking_module
from data_pipeline.teacher import OfflineTeacher, TeacherConfig, TeacherResult, TeacherTask, Usage

_TOPIC_LIST = """
charts tables budgets invoices contracts recipes seating routes lessons minutes captions backups indexes forms menus gardens
paintings bridges engines telescopes violins
"""
TOPICS = _TOPIC_LIST.split()
_SYLLABLE_LIST = "ka lo mi ter sun pra vel do gri nu bas fen ol ri tam zu hes wo"
SYLLABLES = _SYLLABLE_LIST.split()


def skill(number: int, category: str) -> Skill:
    """A skill in words of its own, so that no two are near copies."""
    words = random.Random(number)
    made = ["".join(words.choices(SYLLABLES, k=3)) for _ in range(40)]
    topic = TOPICS[number]
    sentence = " ".join(made[:12])
    body = (
        f"# {topic}\n\n## When to use\n- check the {topic} of a customer against {sentence}\n"
        f"- repair broken {' '.join(made[12:20])} before a deadline\n\n## Steps\n1. Collect {' '.join(made[20:30])}.\n"
        f"2. Compare {' '.join(made[30:])} with the {topic}.\n"
    )
    description = f"Handle {topic} that hold {' '.join(made[:4])}."
    return Skill(f"{category}/{topic}-helper", f"{topic} helper {number}", description, body, {})


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """21 skills of three categories."""
    corpus = SkillCorpus([skill(i, ("office", "home", "craft")[i % 3]) for i in range(21)])
    corpus.to_jsonl(tmp_path / "library.jsonl")
    return tmp_path / "library.jsonl"


@pytest.fixture
def build(library: Path, tmp_path: Path) -> Callable[..., Pipeline]:
    """A pipeline on the library with these overrides, in ``tmp_path/<out>``."""

    def make(*overrides: str, out: str = "out") -> Pipeline:
        config = load_pipeline_config(None, [f"out={tmp_path / out}", f"sources=[{library}]", *overrides])
        return Pipeline(ALL_STAGES, config, config.out)

    return make


class Scripted(OfflineTeacher):
    """The offline teacher, but for answers that a test gives by task kind; None stands for a failure."""

    def __init__(self, answers: dict[str, Any], left_over: int | None = None):
        super().__init__()
        self.answers = answers
        self.left_over = left_over
        self.asked: list[str] = []

    def run(self, tasks: Iterable[TeacherTask], progress: bool = False) -> Iterator[TeacherResult]:
        for number, task in enumerate(tasks):
            self.asked.append(task.task_id)
            if self.left_over is not None and number >= self.left_over:
                yield TeacherResult(task.task_id, task.kind, "not_asked", self.name, reason="budget")
            elif task.kind in self.answers:
                value = self.answers[task.kind](task)
                if value is None:
                    yield TeacherResult(task.task_id, task.kind, "failed", self.name, reason="invalid_json")
                else:
                    yield TeacherResult(task.task_id, task.kind, "ok", self.name, value)
            else:
                yield super().complete(task)

    @property
    def usage(self) -> Usage:
        return Usage(calls=len(self.asked))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Scripted]]:
    """Let pipelines ask scripted teachers: ``script({kind: answer})``, and other answers for a role by ``judge_a={kind: …}``.

    The result holds the teachers by role; ``"default"`` is the one of all others.
    """

    def install(answers: dict[str, Any], left_over: int | None = None, **roles: dict[str, Any]) -> dict[str, Scripted]:
        teachers = {"default": Scripted(answers, left_over)}
        teachers |= {role: Scripted({**answers, **own}) for role, own in roles.items()}

        def open_teacher(config: TeacherConfig, folder: Path, prefix: str) -> Scripted:
            return teachers.get(prefix.removeprefix("teachers."), teachers["default"])

        monkeypatch.setattr(asking_module, "open_teacher", open_teacher)
        return teachers

    return install
