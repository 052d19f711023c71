"""The tasks that a downstream model solves: SRA-Bench's instances with their answers, by suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data_pipeline.corpus import SkillCorpus
from evaluation.benchmarks.load import fetch
from evaluation.benchmarks.sra_bench import NAME, SUITES, load_sra_bench
from evaluation.benchmarks.tables import Row, read_table

CODE_SUITE = "bigcodebench"
ANSWER_TYPES = ("integer", "float", "bool", "option", "list of integer", "list of float")
"""TheoremQA's ``answer_type``."""
LOGIC_TYPES = ("BQA", "MCQA")
"""LogicBench's ``task_type``: yes or no, and ``choice_N``."""
OUTPUT_TYPES = ("decimal", "integer", "date")
"""MedCalc-Bench's ``output_type``."""


@dataclass(frozen=True)
class Task:
    """One instance.

    Attributes:
        instance_id: unique in the benchmark.
        suite: the suite's file name without its ending.
        question: what the model is asked.
        gold_ids: the annotated skills, in the order of the file.
        answer: the released ``eval_data``, checked by :func:`read_tasks`: ``answer`` as text and what the suite adds to it.
    """

    instance_id: str
    suite: str
    question: str
    gold_ids: tuple[str, ...]
    answer: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True)
class TaskSet:
    """Tasks with the skills that may be shown; ``notes`` says what is not as published."""

    name: str
    source: str
    corpus: SkillCorpus
    tasks: list[Task]
    notes: tuple[str, ...] = ()

    def suites(self) -> list[str]:
        """The suites in the order of their first task."""
        return list(dict.fromkeys(task.suite for task in self.tasks))

    def only(self, keep: Callable[[Task], bool]) -> TaskSet:
        """The tasks for which ``keep`` is true."""
        return replace(self, tasks=[task for task in self.tasks if keep(task)])

    def first(self, limit: int) -> TaskSet:
        """At most ``limit`` tasks of every suite, spread evenly over its file."""
        kept: set[str] = set()
        for suite in self.suites():
            ids = [task.instance_id for task in self.tasks if task.suite == suite]
            kept.update(ids[position * len(ids) // min(limit, len(ids))] for position in range(min(limit, len(ids))))
        return self.only(lambda task: task.instance_id in kept)


def read_tasks(bench: str | Path, split: str | None = None) -> TaskSet:
    """Read SRA-Bench's released layout (``corpus/``, ``instances/<suite>.json``) with ``eval_data`` of every instance.

    Args:
        bench: the folder, ``sra-bench=FOLDER``, or a name that is fetched from the hub (``sra-bench``, ``hf:owner/name``).
        split: one suite; all of them if None.

    Raises:
        RecordError: a broken row, or an answer that its suite's checker could never be right about: file, row, key and value.
        FileNotFoundError: a file is missing.
        ValueError: a suite without a checker.
        OSError: the hub cannot be reached.
    """
    text = str(bench).removeprefix(f"{NAME}=")
    folder = Path(text) if Path(text).is_dir() else None
    if folder is None:
        if "/" in text and not text.startswith("hf:"):
            raise FileNotFoundError(f"{text}: no such folder; expected SRA-Bench's corpus/ and instances/")
        folder, _ = fetch(text)
    loaded = load_sra_bench(folder, split)
    unknown = sorted({suite for suite in loaded.suites.values() if suite not in SUITES})
    if unknown:
        raise ValueError(
            f"{folder / 'instances'}: no checker for suite {unknown[0]!r}; expected one of {', '.join(SUITES)}; "
            "choose a suite with --split"
        )
    answers: dict[str, Mapping[str, Any]] = {}
    for suite in dict.fromkeys(loaded.suites.values()):
        for row in read_table(folder / "instances" / f"{suite}.json"):
            answers[row.text("instance_id", "id")] = _eval_data(row, suite)
    tasks = [
        Task(q.query_id, loaded.suites[q.query_id], q.query, loaded.target_ids(q), answers[q.query_id])
        for q in loaded.queries
    ]
    return TaskSet(NAME, str(folder), loaded.corpus, tasks, loaded.notes)


def _eval_data(row: Row, suite: str) -> dict[str, Any]:
    value = row.value.get("eval_data")
    if not isinstance(value, Mapping):
        raise row.error("expected an object with the released answer", "eval_data", value)
    inner = Row(row.file, row.number, value)
    if suite == CODE_SUITE:
        keys = ("test", "entry_point")
        return {key: inner.text(key) for key in keys} | {"code_prompt": inner.text("code_prompt", empty=True)}
    answer = value.get("answer")
    if isinstance(answer, bool | int | float):
        answer = str(answer)
    if not isinstance(answer, str) or (not answer.strip() and suite != "toolqa"):  # ToolQA's release has empty ones
        raise inner.error("expected text that is not blank", "eval_data.answer", answer)
    found: dict[str, Any] = {"answer": answer.strip()}
    if suite == "theoremqa":
        found["answer_type"] = _one_of(inner, "answer_type", ANSWER_TYPES)
    elif suite == "logicbench":
        found["task_type"] = _one_of(inner, "task_type", LOGIC_TYPES)
    elif suite == "medcalcbench":
        found["output_type"] = _one_of(inner, "output_type", OUTPUT_TYPES)
        calculator = value.get("calculator_id")
        if not isinstance(calculator, int):
            raise inner.error("expected a whole number", "eval_data.calculator_id", calculator)
        found |= {"calculator_id": calculator, **_limits(inner, found["output_type"])}
    return found


def _limits(row: Row, output_type: str) -> dict[str, float]:
    if output_type != "decimal":
        return {}
    limits: dict[str, float] = {}
    for key in ("lower_limit", "upper_limit"):
        try:
            limits[key] = float(row.value[key])
        except (KeyError, TypeError, ValueError):
            raise row.error("expected a number", f"eval_data.{key}", row.value.get(key)) from None
    low, high = sorted(limits.values())
    return {"lower_limit": low, "upper_limit": high}


def _one_of(row: Row, key: str, accepted: tuple[str, ...]) -> str:
    value = row.value.get(key)
    if value not in accepted:
        raise row.error(f"expected one of {', '.join(accepted)}", f"eval_data.{key}", value)
    return str(value)
