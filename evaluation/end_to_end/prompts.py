"""What a downstream model is told: our templates, one a suite, and the skills in front of the question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from data_pipeline.corpus import Skill
from data_pipeline.teacher.untrusted import clean_text
from evaluation.end_to_end.tasks import Task

SKILL_CHARS = 24_000
"""Of each skill's text that are shown."""
CUT_NOTE = "\n[The rest of this skill is left out.]"

_ROLE = (
    "You solve the task that the user gives you, by yourself and in one answer: you have no tools and cannot ask back."
)
_REASON = "Reason step by step. End with one line of its own in exactly this form, in plain text without LaTeX:\nANSWER: <answer>"
_TEXT = f"{_ROLE} {_REASON}\nThe answer is"
SYSTEM = {
    "theoremqa": f"{_TEXT} a number such as 0.25, a list of numbers such as [2, 3], True or False, or an option such as (b).",
    "logicbench": f"{_TEXT} Yes or No; where the question lists choices, it is one of them, such as choice_2.",
    "toolqa": f"{_TEXT} as short as it can be: a name, a number, a date or a time, without explanation.",
    "medcalcbench": (
        f"{_TEXT} a number without a unit; a date in the form MM/DD/YYYY; or weeks and days, such as (20 weeks, 3 days), where "
        "the question asks for them."
    ),
    "champ": f"{_TEXT} a number, a formula such as n*(n+1)/2, Yes or No, or a short phrase.",
    "bigcodebench": (
        f"{_ROLE} Answer with one complete, self-contained Python program in a single ```python block, imports included. Write "
        "no tests and no example calls."
    ),
}
SKILL_HEAD = "Skill that may help with the task:"
SKILLS_HEAD = "Skills that may help with the task:"
TASK_HEAD = "Task:"


@dataclass(frozen=True)
class Prompt:
    """A prompt with its identity.

    Attributes:
        system, user: the two messages.
        sha256: of both; what an answer is kept under.
        skills: ids of the skills that are shown, in order.
        cut: how many of them were shortened.
    """

    system: str
    user: str
    sha256: str
    skills: tuple[str, ...]
    cut: int


Shorten = Callable[[str], tuple[str, bool]]
"""A skill's text as it is shown, and whether something is missing."""


def templates_sha256() -> str:
    """The identity of all templates: results of different ones are not comparable."""
    parts = [SYSTEM, SKILL_HEAD, SKILLS_HEAD, TASK_HEAD, CUT_NOTE]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def build_prompt(task: Task, skills: Sequence[Skill], shorten: Shorten) -> Prompt:
    """The prompt of a task with skills in the given order, or with none."""
    parts: list[str] = []
    cut = 0
    for number, skill in enumerate(skills, start=1):
        text, missing = shorten(skill_text(skill))
        cut += missing
        parts.append(f"--- skill {number} ---\n{text}\n--- end of skill {number} ---")
    head = [SKILL_HEAD if len(skills) == 1 else SKILLS_HEAD, *parts, TASK_HEAD] if skills else []
    user = "\n\n".join([*head, clean_text(task.question).strip()])
    system = SYSTEM[task.suite]
    digest = hashlib.sha256(f"{system}\0{user}".encode()).hexdigest()
    return Prompt(system, user, digest, tuple(skill.skill_id for skill in skills), cut)


def skill_text(skill: Skill) -> str:
    """Name, description and body, each where it is there, without what a reader cannot see. Never the id: it names the suite."""
    parts = [f"# {skill.name.strip()}" if skill.name.strip() else "", skill.description.strip(), skill.body.strip()]
    return clean_text("\n\n".join(part for part in parts if part))


def by_characters(limit: int) -> Shorten:
    """Keep the first ``limit`` characters."""

    def shorten(text: str) -> tuple[str, bool]:
        return (text, False) if len(text) <= limit else (text[:limit].rstrip() + CUT_NOTE, True)

    return shorten


def by_tokens(limit: int, tokenizer: str) -> Shorten:
    """Keep the first ``limit`` tokens of the tokenizer in a local folder or of a hub id.

    Raises:
        OSError, ValueError: there is no such tokenizer, or no fast one.
    """
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer, use_fast=True)
    if not loaded.is_fast:
        raise ValueError(f"{tokenizer}: no fast tokenizer; expected one, to know where in a text a token ends")

    def shorten(text: str) -> tuple[str, bool]:
        ends = loaded(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return (text, False) if len(ends) <= limit else (text[: ends[limit - 1][1]].rstrip() + CUT_NOTE, True)

    return shorten
