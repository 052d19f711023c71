"""Alternatives among what several retrievers return (A.2): pooled top-5 lists, each pair judged once by a teacher."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_pipeline.corpus import SkillCorpus
from data_pipeline.pipeline.asking import Asked, ask_teacher
from data_pipeline.records import BenchQuery, read_bench
from data_pipeline.rows import file_format, write_rows
from data_pipeline.teacher import TeacherConfig, bench_prompts
from data_pipeline.teacher.task import TeacherTask

DEPTH = 5


@dataclass(frozen=True)
class Pooled:
    """A candidate that some retriever returns for a request, beside one of the request's targets."""

    query: BenchQuery
    target_id: str
    skill_id: str
    retrievers: tuple[str, ...]


@dataclass(frozen=True)
class AlternativesReport:
    """``predictions`` counts places of the lists that hold no target, ``pairs`` different (request, candidate) among them."""

    predictions: int
    pairs: int
    decisions: dict[str, int]
    failed: dict[str, int]
    teacher: dict[str, Any]


def audit_alternatives(
    bench_file: str | Path,
    corpus_file: str | Path,
    result_files: Sequence[str | Path],
    out: str | Path,
    teacher: TeacherConfig,
    cache: str | Path | None = None,
    *,
    depth: int = DEPTH,
    progress: bool = False,
) -> AlternativesReport:
    """Judge every candidate against every target of its request and write one row each to ``out``: ``query_id, target_id,
    skill_id, decision, reason, retrievers, teacher``.

    A request with several targets has a row for each: a valid alternative covers the target it was compared with (Table 8).

    Args:
        result_files: what ``skillreason evaluate --out`` wrote for each retriever.
        cache: folder of the teacher's answers (None: ``.teacher`` beside ``out``); what lies there is not asked again.

    Raises:
        ValueError: a result file that is none, of another benchmark, or with a skill that the corpus lacks.
        PipelineError: the budget is spent or the endpoint fails; what was answered is kept.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}; expected at least 1")
    file_format(out)  # a name that cannot be written is refused before anything is asked
    corpus = SkillCorpus.from_jsonl(corpus_file)
    queries = {query.query_id: query for query in read_bench(bench_file)}
    for query in queries.values():
        lacking = next((skill_id for skill_id in _targets(query) if skill_id not in corpus), None)
        if lacking is not None:
            raise ValueError(f"{bench_file}: {query.query_id!r} has target {lacking!r}, which {corpus_file} lacks")
    lists = read_results(result_files, queries, corpus, depth)
    predictions, pooled = pool(lists, queries, corpus)
    folder = Path(cache) if cache is not None else Path(out).parent / ".teacher"
    asked: Asked = ask_teacher(teacher, folder, "teacher", _tasks(pooled, corpus), progress)
    rows = [
        {
            "query_id": item.query.query_id,
            "target_id": item.target_id,
            "skill_id": item.skill_id,
            "decision": result.value["decision"],
            "reason": result.value["reason"],
            "retrievers": list(item.retrievers),
            "teacher": result.teacher,
        }
        for item, result in zip(pooled, asked.results, strict=True)
        if result.value
    ]
    write_rows(out, rows)
    decisions = Counter(row["decision"] for row in rows)
    pairs = len({(item.query.query_id, item.skill_id) for item in pooled})
    return AlternativesReport(predictions, pairs, dict(sorted(decisions.items())), dict(asked.failed), asked.notes)


def read_results(
    files: Sequence[str | Path], queries: Mapping[str, BenchQuery], corpus: SkillCorpus, depth: int
) -> dict[str, dict[str, list[str]]]:
    """Retriever -> request -> its ``depth`` best ids. A retriever is called by its model, or by its file where two share one."""
    loaded = [(Path(file), _read_result(Path(file))) for file in files]
    models = Counter(model for _, (model, _) in loaded)
    out: dict[str, dict[str, list[str]]] = {}
    for file, (model, rows) in loaded:
        name = model if models[model] == 1 else file.stem
        if name in out:
            raise ValueError(f"{file}: a second result called {name!r}; expected one file a retriever")
        out[name] = {}
        for row in rows:
            query_id, ids = row["query_id"], row["ids"][:depth]
            if query_id not in queries:
                raise ValueError(
                    f"{file}: query_id {query_id!r} is not in the benchmark; expected results on that benchmark"
                )
            lacking = next((skill_id for skill_id in ids if skill_id not in corpus), None)
            if lacking is not None:
                raise ValueError(f"{file}: {query_id!r} ranks {lacking!r}, which the corpus lacks")
            out[name][query_id] = ids
        missing = next((query_id for query_id in queries if query_id not in out[name]), None)
        if missing is not None:
            raise ValueError(
                f"{file}: no list for query_id {missing!r}; expected one for every request of the benchmark"
            )
    return out


def pool(
    lists: Mapping[str, Mapping[str, list[str]]], queries: Mapping[str, BenchQuery], corpus: SkillCorpus
) -> tuple[int, list[Pooled]]:
    """The number of non-target places, and the different candidates by request (benchmark order) and corpus order."""
    predictions = 0
    pooled: list[Pooled] = []
    for query_id, query in queries.items():
        targets = _targets(query)
        found: dict[str, list[str]] = {}
        for name, rankings in lists.items():
            for skill_id in rankings[query_id]:
                if skill_id not in targets:
                    predictions += 1
                    found.setdefault(skill_id, []).append(name)
        for skill_id in sorted(found, key=corpus.position):
            pooled += [Pooled(query, target, skill_id, tuple(found[skill_id])) for target in targets]
    return predictions, pooled


def _tasks(pooled: Sequence[Pooled], corpus: SkillCorpus) -> Iterator[TeacherTask]:
    for item in pooled:
        task = bench_prompts.alternative_audit(
            item.query.query_id, item.query.query, corpus.get(item.target_id), corpus.get(item.skill_id)
        )
        yield replace(task, task_id=f"{task.task_id}/{item.target_id}")


def _targets(query: BenchQuery) -> list[str]:
    return [skill_id for skill_id, grade in query.qrels.items() if grade > 0]


def _read_result(file: Path) -> tuple[str, list[dict[str, Any]]]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        rows = [{"query_id": row["query_id"], "ids": list(row["ids"])} for row in value["queries"]]
        for row in rows:
            if not all(isinstance(text, str) for text in (row["query_id"], *row["ids"])):
                raise TypeError("a query_id or id that is no text")
        return str(value["model"]), rows
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: not a result of skillreason evaluate ({type(error).__name__}: {error}); expected model and queries"
        ) from error
