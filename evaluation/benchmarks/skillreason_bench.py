"""SkillReason-Bench (C.5): a table of requests with one target each, and the shared corpus; columns by any of several names."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from data_pipeline.records import BenchQuery
from evaluation.benchmarks.base import Benchmark, Expected, Protocol, differences
from evaluation.benchmarks.labels import Asked, Grade, ask_once, join
from evaluation.benchmarks.tables import find_table, read_json, read_skills, read_table

NAME = "skillreason-bench"
PROTOCOL = Protocol("one target a request: recall is the hit rate, NDCG is binary")
EXPECTED = Expected(queries=3729, skills=61228, words=33.2)
COLUMNS_FILE = "columns.json"


@dataclass(frozen=True)
class Columns:
    """File and column names that are tried, the first that exists wins. C.5 names the parts of a record, not its columns; so a
    file ``columns.json`` in the folder may name others, such as ``{"query": ["user_request"], "corpus": ["pool"]}``.

    ``corpus`` and ``queries`` are files without their suffix.
    """

    corpus: tuple[str, ...] = ("corpus", "skills", "skill_corpus", "skill_pool")
    queries: tuple[str, ...] = ("queries", "bench", "benchmark", "test")
    query_id: tuple[str, ...] = ("query_id", "id", "_id", "qid")
    query: tuple[str, ...] = ("query", "request", "user_request", "text")
    target: tuple[str, ...] = ("skill_id", "target_skill_id", "target_id", "gold_skill_id", "positive_id", "skill_ids")
    domain: tuple[str, ...] = ("domain", "category")
    skill_id: tuple[str, ...] = ("skill_id", "id", "_id")
    body: tuple[str, ...] = ("body", "document", "content", "skill_md", "text")


def load_skillreason_bench(folder: Path, name: str, split: str | None) -> Benchmark:
    """Read the requests and the corpus of a folder (or of its ``data/``); counts are compared for the benchmark's own name.

    Args:
        folder: the data set's folder.
        name: what results call it.
        split: the file of the requests without its suffix, if not one of :class:`Columns`.

    Raises:
        RecordError: a missing column (the message lists those found), a repeated id, a target that the corpus lacks.
        ValueError: ``columns.json`` names something that there is not.
        FileNotFoundError: a file is missing.
    """
    columns = read_columns(folder)
    root = next((path for path in (folder, folder / "data") if _has(path, columns.corpus)), folder)
    corpus = read_skills(find_table(root, *columns.corpus), columns.skill_id, columns.body)
    table = find_table(root, *((split,) if split else columns.queries))
    asked = ask_once(
        Asked(row, row.text(*columns.query_id), row.text(*columns.query), row.text(*columns.domain, empty=True))
        for row in read_table(table)
    )
    grades = [
        Grade(item.row, item.query_id, skill_id, 1, item.row.key(columns.query_id), item.row.key(columns.target))
        for item in asked
        for skill_id in item.row.texts(*columns.target)
    ]
    queries: list[BenchQuery]
    queries, notes = join(asked, grades, corpus)
    bench = Benchmark(name, corpus, queries, PROTOCOL, str(folder))
    if name == NAME:
        notes += differences(bench, EXPECTED)
    return replace(bench, notes=tuple(notes))


def read_columns(folder: Path) -> Columns:
    """The names to try, those of ``columns.json`` in place of the usual ones."""
    path = folder / COLUMNS_FILE
    if not path.is_file():
        return Columns()
    known = [field.name for field in fields(Columns)]
    value = read_json(path)
    if not isinstance(value, dict) or not all(key in known for key in value):
        raise ValueError(f"{path}: found {json.dumps(value)[:200]}; expected an object with some of {', '.join(known)}")
    given = {key: (item,) if isinstance(item, str) else tuple(item) for key, item in value.items()}
    return replace(Columns(), **given)


def _has(folder: Path, stems: tuple[str, ...]) -> bool:
    try:
        find_table(folder, *stems)
    except FileNotFoundError:
        return False
    return True
