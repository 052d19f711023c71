"""How a stage asks a teacher: what it answered, what it could not, and a clean stop where the budget ends."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.pipeline.config import PipelineConfig
from data_pipeline.pipeline.dag import PipelineError, StageContext
from data_pipeline.teacher import TeacherConfig, TeacherResult, TeacherStopped, TeacherTask, open_teacher

logger = logging.getLogger(__name__)


class BudgetSpent(PipelineError):
    """The teacher's budget is used up. What was answered is kept: the same command goes on with a larger budget."""


@dataclass
class Asked:
    """A stage's answers in the order of its tasks.

    Attributes:
        results: one a task.
        failed: tasks without a usable answer, by reason, as ``teacher_<reason>``.
        notes: who was asked and what it took, for the manifest.
    """

    results: list[TeacherResult]
    failed: Counter[str] = field(default_factory=Counter)
    notes: dict[str, Any] = field(default_factory=dict)


def ask(context: StageContext, role: str, tasks: Iterable[TeacherTask]) -> Asked:
    """Put every task to the role's teacher. Answers lie in ``<out>/.teacher`` and are never asked for twice.

    Raises:
        BudgetSpent: tasks were left over.
        PipelineError: the endpoint cannot be worked with; what it answered is kept.
    """
    config = context.config
    return ask_teacher(config.teacher(role), Path(config.out) / ".teacher", f"teachers.{role}", tasks, context.progress)


def ask_teacher(
    config: TeacherConfig, folder: Path, prefix: str, tasks: Iterable[TeacherTask], progress: bool = False
) -> Asked:
    """:func:`ask` outside a stage: ``folder`` holds the answers, ``prefix`` is what messages call the configuration."""
    teacher = open_teacher(config, folder, prefix)
    try:
        results = list(teacher.run(tasks, progress))
    except TeacherStopped as error:
        raise PipelineError(f"{prefix}: {error}") from error
    left = sum(result.status == "not_asked" for result in results)
    if left:
        raise BudgetSpent(
            f"the budget of {prefix} is spent: {len(results) - left} of {len(results)} tasks are answered and kept; raise "
            "budget_tokens or budget_usd and run the same command again"
        )
    failed = Counter(f"teacher_{result.reason}" for result in results if not result.ok)
    return Asked(results, failed, {"teacher": teacher.name, "usage": teacher.usage.to_dict()})


def same_model_warning(config: PipelineConfig, roles: Sequence[str], others: Sequence[str]) -> list[str]:
    """What is not independent: roles that one model plays together with some of the others. Each is logged, too."""
    found = []
    for name in dict.fromkeys(config.teacher(role).name for role in roles):
        mine = [role for role in roles if config.teacher(role).name == name]
        theirs = [role for role in others if config.teacher(role).name == name]
        if theirs:
            found.append(f"{', '.join([*mine, *theirs])} are all {name}: their agreement is not independent")
            logger.warning("%s", found[-1])
    return found
