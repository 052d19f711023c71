"""Requests that people made, beside the pseudo-queries: how many find their skill, and what comes first instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import read_bench
from retrieval.retriever import Retriever


def real_requests(corpus: SkillCorpus, retriever: Retriever, bench: str | Path, depth: int) -> dict[str, Any]:
    """``requests``, shares ``first`` and ``found`` (a target first, or among the first ``depth``), and ``failed``: a row
    for each request that is not found, with its targets and the skill that comes first.

    Raises:
        ValueError: a target that the corpus lacks.
    """
    queries = read_bench(bench)
    targets = [[s for s, grade in query.qrels.items() if grade > 0] for query in queries]
    for query, own in zip(queries, targets, strict=True):
        lacking = [skill_id for skill_id in own if skill_id not in corpus]
        if lacking:
            raise ValueError(
                f"{bench}: query {query.query_id!r} has target {lacking[0]!r}; expected one of the library's {len(corpus)} skills"
            )
    ranking = retriever.search([query.query for query in queries], depth)
    first = found = 0
    failed = []
    for query, own, ids in zip(queries, targets, ranking.ids, strict=True):
        hit = any(skill_id in own for skill_id in ids)
        first += bool(ids) and ids[0] in own
        found += hit
        if not hit:
            failed.append(
                {"query_id": query.query_id, "query": query.query, "targets": own, "instead": ids[0] if ids else None}
            )
    n = len(queries)
    return {
        "bench": str(bench),
        "requests": n,
        "depth": depth,
        "first": first / n,
        "found": found / n,
        "failed": failed,
    }
