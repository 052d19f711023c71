"""SkillRet in its public layout: the subsets ``skills``, ``queries`` and ``qrels``, one table a split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from data_pipeline.corpus import SkillCorpus
from evaluation.benchmarks.base import Benchmark, Expected, Protocol, count_note, differences
from evaluation.benchmarks.labels import Asked, Grade, ask_once, join, read_grade
from evaluation.benchmarks.tables import find_table, read_skills, read_table

NAME = "skillret"
PROTOCOL = Protocol("fractional recall over all targets of a request, binary NDCG")
EXPECTED = Expected(queries=4997, skills=6660, words=172.9)
_HINT = "version 1.1 of the test split has 4,392 queries and 6,006 skills, Table 1 is about version 1.0"


def root_of(folder: Path) -> Path | None:
    """The folder that holds ``skills/`` and ``queries/``: the given one or its ``data/``; None where neither does."""
    for root in (folder, folder / "data"):
        if (root / "skills").is_dir() and (root / "queries").is_dir():
            return root
    return None


def load_skillret(folder: Path, split: str | None) -> Benchmark:
    """Read one split (default ``test``): ``skills`` (id, name, description, body or skill_md), ``queries`` (id, query,
    skill_ids), ``qrels`` (query_id, skill_id, relevance). Without ``qrels`` the ``skill_ids`` of the queries count.

    The domain of a request is the ``major`` category of its targets, or "several".

    Raises:
        RecordError: a broken row, a repeated id, labels that name an unknown query or skill.
        FileNotFoundError: a subset or the split is missing.
    """
    root = root_of(folder)
    if root is None:
        raise FileNotFoundError(f"{folder}: no skills/ and queries/ in it or in its data/; expected SkillRet's layout")
    split = split or "test"
    corpus = read_skills(find_table(root / "skills", split), ("id", "skill_id"), ("body", "skill_md"))
    rows = list(read_table(find_table(root / "queries", split)))
    asked = ask_once(Asked(row, row.text("id", "query_id"), row.text("query")) for row in rows)
    if (root / "qrels").is_dir():
        labels = read_table(find_table(root / "qrels", split))
        grades = [read_grade(row, ("query_id",), ("skill_id",), ("relevance",)) for row in labels]
    else:
        grades = [
            Grade(item.row, item.query_id, skill_id, 1, "id", "skill_ids")
            for item in asked
            for skill_id in item.row.texts("skill_ids")
        ]
    queries, notes = join(asked, grades, corpus)
    queries = [replace(query, domain=_domain(corpus, list(query.qrels))) for query in queries]
    disagreeing = _disagreeing(asked, {query.query_id: query.qrels for query in queries})
    notes += count_note(disagreeing, "queries have other skill_ids than qrels; the qrels count")
    bench = Benchmark(NAME, corpus, queries, PROTOCOL, str(folder))
    if split == "test":
        notes += differences(bench, EXPECTED, _HINT)
    return replace(bench, notes=tuple(notes))


def _domain(corpus: SkillCorpus, skill_ids: list[str]) -> str:
    majors = {corpus.get(skill_id).metadata.get("major", "") for skill_id in skill_ids}
    return majors.pop() if len(majors) == 1 else "several"


def _disagreeing(asked: list[Asked], qrels: dict[str, dict[str, int]]) -> int:
    with_both = [item for item in asked if item.query_id in qrels and item.row.value.get("skill_ids")]
    return sum(
        set(item.row.texts("skill_ids")) != {s for s, grade in qrels[item.query_id].items() if grade > 0}
        for item in with_both
    )
