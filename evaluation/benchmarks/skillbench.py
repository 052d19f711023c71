"""SkillBench as SkillRouter released it (B.4): tasks, graded relevance, and two pools of candidate skills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.records import BenchQuery
from data_pipeline.rows import RecordError
from evaluation.benchmarks.base import Benchmark, Expected, Protocol, count_note, differences
from evaluation.benchmarks.tables import Row, find_table, read_json, read_skills, read_table

NAME = "skillbench"
PROTOCOL = Protocol(
    "fractional recall and full coverage of the core targets; graded NDCG over the whole released relevance",
    ("recall@1", "recall@10", "multi_fc@10", "ndcg@10"),
)
POOLS = {"easy": 78361, "hard": 79141}
"""Skills by pool, from the release's manifest."""
_SUITES = {"single": 24, "multi": 51}
_GENERIC = "generic_only"


def is_skillbench(folder: Path) -> bool:
    """Whether a folder has the tasks and their relevance."""
    return (folder / "tasks.jsonl").is_file() and (folder / "relevance.json").is_file()


def load_skillbench(folder: Path, split: str | None) -> Benchmark:
    """Read ``tasks.jsonl`` (task_id, instruction_text), ``relevance.json`` (by task: task_type, core_gt_ids, relevance) and
    the pool ``easy/`` or ``hard/`` (skill_id, name, description, body).

    Tasks of type ``generic_only`` are left out. Targets are the ``core_gt_ids``; grades (3 for a skill of the task, 1 for a
    degraded copy of it) count in NDCG only. As in the release's own scoring, both are cut to the pool, and a task none of whose
    targets is in it is left out. A task belongs to the suite ``single`` or ``multi`` by its number of core targets.

    Args:
        folder: the data set's folder.
        split: ``easy`` or ``hard``.

    Raises:
        ValueError: no pool was chosen.
        RecordError: a broken task, skill or relevance entry.
        FileNotFoundError: a part is missing.
    """
    chosen = check_pool(folder, split)
    pool = folder / chosen
    corpus = read_skills(
        pool if pool.is_dir() else find_table(folder, chosen), ("skill_id", "id"), ("body", "content", "skill_md")
    )
    relevance = _relevance(folder / "relevance.json")
    queries: list[BenchQuery] = []
    targets: dict[str, tuple[str, ...]] = {}
    suites: dict[str, str] = {}
    left_out = {"generic": 0, "pool": 0, "grades": 0}
    for row in read_table(folder / "tasks.jsonl"):
        task_id = row.text("task_id", "id")
        if task_id not in relevance:
            raise row.error(f"{folder / 'relevance.json'} has no entry for this task", "task_id", task_id)
        if task_id in suites:
            raise row.error("duplicate task", "task_id", task_id)
        entry = relevance[task_id]
        if entry["task_type"] == _GENERIC:
            left_out["generic"] += 1
            continue
        core = entry["core_gt_ids"]
        here = tuple(skill_id for skill_id in core if skill_id in corpus)
        if not here:
            left_out["pool"] += 1
            continue
        grades = {skill_id: grade for skill_id, grade in entry["relevance"].items() if skill_id in corpus}
        left_out["grades"] += len(entry["relevance"]) - len(grades)
        ungraded = next((skill_id for skill_id in here if grades.get(skill_id, 0) < 1), None)
        if ungraded is not None:
            raise row.error(f"relevance.json grades its target {ungraded!r} 0; expected at least 1", "task_id", task_id)
        text, domain = row.text("instruction_text", "query"), row.text("domain", empty=True)
        queries.append(BenchQuery(task_id, text, grades, domain))
        targets[task_id] = here
        suites[task_id] = "single" if len(core) == 1 else "multi"
    if not queries:
        raise ValueError(f"{folder}: no task has a target in the pool {chosen}")
    name = f"{NAME}-{chosen}"
    bench = Benchmark(name, corpus, queries, PROTOCOL, str(folder), targets, suites)
    expected = Expected(75, POOLS[chosen], suites=_SUITES, source="B.4 and the release's manifest")
    notes = [
        *count_note(left_out["generic"], "generic-only tasks were left out"),
        *count_note(left_out["pool"], "tasks without a target in the pool were left out"),
        *count_note(left_out["grades"], "grades of skills that are not in the pool were left out"),
        *differences(bench, expected),
    ]
    return replace(bench, notes=tuple(notes))


def check_pool(where: str | Path, split: str | None) -> str:
    """The pool that was chosen; ValueError where none was, or one that there is not."""
    if split not in POOLS:
        raise ValueError(
            f"{where}: SkillBench has the pools easy and hard, found {split or 'none'}; choose with --split"
        )
    return split


def _relevance(path: Path) -> dict[str, dict[str, Any]]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise RecordError(path, 1, f"a JSON {type(value).__name__}; expected an object with an entry for every task")
    out = {}
    for number, (task_id, entry) in enumerate(value.items(), start=1):
        if not isinstance(entry, dict):
            raise RecordError(path, number, "expected an object", task_id, entry)
        row = Row(path, number, entry)
        grades = entry.get("relevance")
        if not isinstance(grades, Mapping) or not all(_is_grade(grade) for grade in grades.values()):
            raise row.error("expected an object {skill_id: whole number >= 0}", f"{task_id}.relevance", grades)
        task_type = row.text("task_type")
        core = row.texts("core_gt_ids", "gt_skill_ids") if task_type != _GENERIC else []
        out[task_id] = {
            "task_type": task_type,
            "core_gt_ids": core,
            "relevance": {k: int(v) for k, v in grades.items()},
        }
    return out


def _is_grade(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and int(value) == value
