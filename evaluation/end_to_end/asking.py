"""Asks a downstream model what is not in the file of answers yet, every different prompt once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from data_pipeline.teacher import ApiTeacher, TeacherResult, TeacherTask
from evaluation.end_to_end.answers import AnswerFile, AnswerRow, Asked
from evaluation.end_to_end.conditions import Condition
from evaluation.end_to_end.prompts import Shorten, build_prompt
from evaluation.end_to_end.tasks import TaskSet

log = logging.getLogger("skillreason")

Answers = dict[tuple[str, str], AnswerRow]
"""By condition and instance."""


def collect_answers(
    file: AnswerFile,
    teacher: ApiTeacher,
    decoding: Mapping[str, Any],
    tasks: TaskSet,
    conditions: Sequence[Condition],
    shorten: Shorten,
    progress: bool = False,
) -> Answers:
    """The answer to every task under every condition; one that no answer arrived for is missing.

    Each answer is appended to the file as it comes. Conditions that show the same skills share an answer.

    Raises:
        TeacherStopped: the endpoint cannot be worked with; what was answered is in the file.
    """
    out: Answers = {}
    waiting: dict[Asked, list[AnswerRow]] = {}
    questions: list[TeacherTask] = []
    for condition in conditions:
        for task in tasks.tasks:
            skills = [tasks.corpus.get(skill_id) for skill_id in condition.skills[task.instance_id]]
            prompt = build_prompt(task, skills, shorten)
            empty = AnswerRow(
                task.instance_id,
                task.suite,
                condition.name,
                teacher.config.model,
                prompt.sha256,
                decoding,
                prompt.skills,
                prompt.cut,
            )
            row = file.get(empty) or file.same_prompt(empty)
            if row is not None:
                out[condition.name, task.instance_id] = row
                continue
            if empty.asked not in waiting:
                name = f"{task.instance_id}/{prompt.sha256[:12]}"
                questions.append(TeacherTask(name, task.suite, prompt.system, prompt.user, schema={}))
            waiting.setdefault(empty.asked, []).append(empty)
    log.info("%d answers at hand, %d different prompts to ask", len(out), len(questions))
    for members, result in zip(waiting.values(), teacher.run(questions, progress), strict=True):
        answer = _answer(result)
        for empty in members if answer else ():
            row = replace(empty, **answer)
            file.add(row)
            out[row.condition, row.instance] = row
    return out


def _answer(result: TeacherResult) -> dict[str, Any]:
    """The fields of a row that the model fills; none where no answer arrived. A refusal is an answer, which solves nothing."""
    if result.value is not None:
        return result.value
    return {"finish": "refusal"} if result.reason == "refused" else {}
