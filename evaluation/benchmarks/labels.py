"""Joining a table of requests with a table of grades (qrels), as BEIR folders and SkillRet have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import BenchQuery
from evaluation.benchmarks.base import count_note
from evaluation.benchmarks.tables import Row


@dataclass(frozen=True)
class Asked:
    """A request before it has its grades."""

    row: Row
    query_id: str
    text: str
    domain: str = ""


@dataclass(frozen=True)
class Grade:
    """One line of qrels, and the columns its query and skill stand in."""

    row: Row
    query_id: str
    skill_id: str
    grade: int
    query_column: str
    skill_column: str


def read_grade(row: Row, query: Sequence[str], skill: Sequence[str], grade: Sequence[str]) -> Grade:
    """A line of qrels from columns by any of the given names; without a grade column the grade is 1.

    Raises:
        RecordError: a missing column, or a grade that is not a whole number >= 0.
    """
    value = 1
    if any(row.value.get(name) is not None for name in grade):
        column = row.key(grade)
        given = row.value[column]
        try:
            value = int(given)
            whole = float(given) == value and not isinstance(given, bool)
        except (TypeError, ValueError):
            whole = False
        if not whole or value < 0:
            raise row.error("expected a whole number >= 0", column, given)
    return Grade(row, row.text(*query), row.text(*skill), value, row.key(query), row.key(skill))


def ask_once(asked: Iterable[Asked]) -> list[Asked]:
    """The requests as a list; RecordError where an id occurs twice."""
    out: list[Asked] = []
    seen: dict[str, int] = {}
    for item in asked:
        if item.query_id in seen:
            raise item.row.error(f"duplicate query id, first seen in row {seen[item.query_id]}", "id", item.query_id)
        seen[item.query_id] = item.row.number
        out.append(item)
    return out


def join(asked: Sequence[Asked], grades: Iterable[Grade], corpus: SkillCorpus) -> tuple[list[BenchQuery], list[str]]:
    """Requests with their grades, and notes on requests that were left out because no skill is relevant to them.

    Raises:
        RecordError: a grade for a query or (above 0) a skill that there is not, or two grades for one pair.
        ValueError: no request with a relevant skill is left.
    """
    known = {item.query_id for item in asked}
    qrels: dict[str, dict[str, int]] = {}
    for item in grades:
        if item.query_id not in known:
            raise item.row.error(f"no such query among the {len(known)}", item.query_column, item.query_id)
        if item.skill_id not in corpus:
            if item.grade == 0:  # judged and not relevant: it cannot be found, and need not be
                continue
            raise item.row.error(
                f"no such skill among the {len(corpus)} of the corpus", item.skill_column, item.skill_id
            )
        given = qrels.setdefault(item.query_id, {})
        if given.setdefault(item.skill_id, item.grade) != item.grade:
            problem = f"query {item.query_id!r} has another grade for it, {given[item.skill_id]}, in an earlier row"
            raise item.row.error(problem, item.skill_column, item.skill_id)
    queries = [
        BenchQuery(item.query_id, item.text, qrels[item.query_id], item.domain)
        for item in asked
        if any(qrels.get(item.query_id, {}).values())
    ]
    if not queries:
        raise ValueError(f"none of {len(asked)} queries has a relevant skill; expected qrels with a grade above 0")
    return queries, [*count_note(len(asked) - len(queries), "queries without a relevant skill were left out")]
