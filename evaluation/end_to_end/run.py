"""End-to-end task accuracy (Table 5): a downstream model solves tasks without skills, with the right and with retrieved ones."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.teacher import ApiTeacher, TeacherConfig
from evaluation.end_to_end.answers import AnswerFile, AnswerRow
from evaluation.end_to_end.asking import collect_answers
from evaluation.end_to_end.checkers import Verdict, check
from evaluation.end_to_end.code_tests import check_code
from evaluation.end_to_end.conditions import Condition, fixed_condition, retrieved_condition
from evaluation.end_to_end.prompts import SKILL_CHARS, Shorten, by_characters, by_tokens, templates_sha256
from evaluation.end_to_end.sandbox import Limits, Sandbox
from evaluation.end_to_end.scoring import score_conditions
from evaluation.end_to_end.tasks import CODE_SUITE, TaskSet, read_tasks
from evaluation.results import write_result
from evaluation.significance import LEVEL, RESAMPLES, SEED

FORMAT = "skillreason-end-to-end-1"
RESULT_NAME = "result.json"


@dataclass
class DownstreamConfig(TeacherConfig):
    """The model that solves the tasks: a client as the teacher's, with defaults of its own. Greedy, as far as the server is."""

    kind: str = "openai"
    temperature: float | None = 0.0
    max_output_tokens: int = 4096
    structured: str = "none"


@dataclass(frozen=True)
class CodeConfig:
    """How code answers are tested; without it their suite is left out."""

    python: str | None = None
    isolated: bool = True
    workers: int = 2
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class EndToEndConfig:
    """What is run.

    Attributes:
        bench, split: see :func:`evaluation.end_to_end.tasks.read_tasks`.
        systems: retrieval systems, see :func:`evaluation.end_to_end.conditions.retrieved_condition`.
        fixed: ``none`` and ``gold``, or one of them.
        top_k: skills of each system that are shown.
        limit: at most so many instances of each suite; 0: all.
        seed: sent with every request, where not None; a server may ignore it.
        skill_chars: characters of a skill that are shown; not used with ``skill_tokens``.
        skill_tokens, tokenizer: the same in tokens.
        code: None: code suites are left out.
    """

    bench: str
    split: str | None = None
    systems: Sequence[str] = ()
    fixed: Sequence[str] = ("none", "gold")
    top_k: int = 1
    limit: int = 0
    seed: int | None = 42
    skill_chars: int = SKILL_CHARS
    skill_tokens: int = 0
    tokenizer: str = ""
    code: CodeConfig | None = None


def run_end_to_end(
    config: EndToEndConfig,
    model: DownstreamConfig,
    out: str | Path,
    cache_dir: str | Path | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Ask, score, and write ``result.json``; return it.

    ``out`` also gets ``answers.jsonl`` and the client's store of what was paid for. The same command again asks only for what is
    missing there; an identical prompt of two conditions is asked once.

    Args:
        config: what is run.
        model: the downstream model: its endpoint, limits, retries and budget.
        out: folder of this model's runs.
        cache_dir: the embedding cache of retrieval models.
        progress: show progress bars.

    Raises:
        ValueError: a key, file or benchmark that cannot be used; the message names it.
        TeacherStopped: the endpoint cannot be worked with; what was answered is kept.
        SandboxError: code is to be run, and the isolation cannot be had.
    """
    shorten = _shorten(config)
    if model.kind == "offline":
        raise ValueError("downstream.kind is offline; expected openai or anthropic: the tasks are solved by a model")
    seeded = config.seed is not None and model.kind == "openai"  # the other protocol knows no seed
    extra = {**({"seed": config.seed} if seeded else {}), **model.extra}
    model = replace(model, extra=extra)
    decoding = {"temperature": model.temperature, "max_tokens": model.max_output_tokens, **extra}
    sandbox = None
    if config.code is not None:
        sandbox = Sandbox(config.code.limits, config.code.python, config.code.isolated)
        sandbox.check()
    tasks, notes = _chosen(config)
    conditions = [fixed_condition(kind, tasks) for kind in dict.fromkeys(config.fixed)]
    conditions += [retrieved_condition(s, tasks, config.top_k, cache_dir, progress) for s in config.systems]
    _check_conditions(conditions)
    with AnswerFile(out) as file:
        if file.damaged:
            notes.append(f"{file.path}: {file.damaged} damaged lines passed over")
        teacher = ApiTeacher(model, Path(out) / "cache", prefix="downstream")
        rows = collect_answers(file, teacher, decoding, tasks, conditions, shorten, progress)
        usage = teacher.usage.to_dict()
    verdicts = _verdicts(tasks, rows, sandbox, config.code, progress)
    statuses = {
        c.name: [v.status if (v := verdicts.get((c.name, t.instance_id))) else "missing" for t in tasks.tasks]
        for c in conditions
    }
    scored = score_conditions(tasks.tasks, statuses)
    for row, condition in zip(scored["conditions"], conditions, strict=True):
        row |= _shown(condition, tasks, [rows.get((condition.name, task.instance_id)) for task in tasks.tasks])
        if row["missing"]:
            notes.append(f"{condition.name}: {row['missing']} of {len(tasks.tasks)} instances have no answer")
    result: dict[str, Any] = {
        "format": FORMAT,
        "model": model.model,
        "endpoint": model.base_url,
        "decoding": decoding,
        "prompts_sha256": templates_sha256(),
        "bench": config.bench,
        "benchmark": {"name": tasks.name, "split": config.split, "limit": config.limit, "n_skills": len(tasks.corpus)},
        "top_k": config.top_k,
        "skill_limit": {"tokens": config.skill_tokens, "tokenizer": config.tokenizer}
        if config.skill_tokens
        else {"characters": config.skill_chars},
        "code": sandbox.describe() if sandbox else None,
        "n_instances": len(tasks.tasks),
        "intervals": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED},
        **scored,
        "usage": usage,
        "notes": notes,
        "instances": _instance_rows(tasks, conditions, rows, verdicts),
    }
    write_result(Path(out) / RESULT_NAME, result, "instances")
    return result


def _shorten(config: EndToEndConfig) -> Shorten:
    for key in ("limit", "skill_tokens"):
        if getattr(config, key) < 0:
            raise ValueError(f"{key} is {getattr(config, key)}; expected at least 0")
    if config.skill_chars < 1:
        raise ValueError(f"skill_chars is {config.skill_chars}; expected at least 1")
    if not config.skill_tokens:
        return by_characters(config.skill_chars)
    if not config.tokenizer:
        raise ValueError("skill_tokens is set; expected tokenizer, the folder or hub id of the model that counts them")
    return by_tokens(config.skill_tokens, config.tokenizer)


def _chosen(config: EndToEndConfig) -> tuple[TaskSet, list[str]]:
    tasks = read_tasks(config.bench, config.split)
    notes = list(tasks.notes)
    code = sum(task.suite == CODE_SUITE for task in tasks.tasks)
    if code and config.code is None:
        tasks = tasks.only(lambda task: task.suite != CODE_SUITE)
        notes.append(f"{CODE_SUITE} left out ({code} instances): its answers are programs, which --run-code would run")
    if config.limit:
        tasks = tasks.first(config.limit)
        notes.append(f"at most {config.limit} instances of each suite")
    if not tasks.tasks:
        raise ValueError(f"{config.bench}: nothing to ask: only {CODE_SUITE} was chosen, and that needs --run-code")
    return tasks, notes


def _check_conditions(conditions: Sequence[Condition]) -> None:
    if not conditions:
        raise ValueError("no condition; expected none, gold or at least one retrieval system")
    seen: dict[str, str] = {}
    for condition in conditions:
        if condition.name in seen:
            raise ValueError(
                f"two conditions are called {condition.name!r} ({seen[condition.name]} and {condition.source}); expected "
                "names of their own: NAME=SOURCE"
            )
        seen[condition.name] = condition.source or condition.kind


def _verdicts(
    tasks: TaskSet,
    rows: dict[tuple[str, str], AnswerRow],
    sandbox: Sandbox | None,
    code: CodeConfig | None,
    progress: bool,
) -> dict[tuple[str, str], Verdict]:
    """The verdict of every answer; the same program for the same task is run once."""
    by_id = {task.instance_id: task for task in tasks.tasks}
    out = {key: check(by_id[row.instance], row.text) for key, row in rows.items() if row.suite != CODE_SUITE}
    programs = {(row.instance, row.text) for row in rows.values() if row.suite == CODE_SUITE}
    if not programs or sandbox is None or code is None:
        return out
    todo = sorted(programs)
    with ThreadPoolExecutor(max(code.workers, 1)) as pool:
        found = pool.map(lambda item: check_code(by_id[item[0]], item[1], sandbox), todo)
        tested = dict(zip(todo, tqdm(found, total=len(todo), desc="unit tests", disable=not progress), strict=True))
    out |= {key: tested[row.instance, row.text] for key, row in rows.items() if row.suite == CODE_SUITE}
    return out


def _shown(condition: Condition, tasks: TaskSet, rows: Sequence[AnswerRow | None]) -> dict[str, Any]:
    """What a condition showed: ``gold_shown`` is the share of instances with at least one annotated skill shown."""
    hits = sum(bool(set(task.gold_ids) & set(condition.skills[task.instance_id])) for task in tasks.tasks)
    answered = [row for row in rows if row is not None]
    return {
        "kind": condition.kind,
        "source": condition.source,
        "gold_shown": hits / len(tasks.tasks),
        "cut_skills": sum(row.cut_skills for row in answered),
        "cut_answers": sum(row.finish == "length" for row in answered),
        "refused": sum(row.finish == "refusal" for row in answered),
    }


def _instance_rows(
    tasks: TaskSet,
    conditions: Sequence[Condition],
    rows: dict[tuple[str, str], AnswerRow],
    verdicts: dict[tuple[str, str], Verdict],
) -> list[dict[str, Any]]:
    out = []
    for task in tasks.tasks:
        for condition in conditions:
            row, verdict = (
                rows.get((condition.name, task.instance_id)),
                verdicts.get((condition.name, task.instance_id)),
            )
            value: dict[str, Any] = {"instance": task.instance_id, "suite": task.suite, "condition": condition.name}
            value["skills"] = list(condition.skills[task.instance_id])
            if row is None or verdict is None:
                value["status"] = "missing"
            else:
                value |= {
                    "status": verdict.status,
                    "answer": verdict.answer,
                    "rule": verdict.rule,
                    "finish": row.finish,
                }
            out.append(value)
    return out
