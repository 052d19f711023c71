"""Rescoring with validated alternatives (A.2, Tables 7 and 8): a skill that does the job as well counts as its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from data_pipeline.rows import RecordError, read_rows
from evaluation.report import align_table
from evaluation.results import StoredResult
from evaluation.significance import bootstrap_means, intervals

DEPTHS = (1, 5)
"""The cutoffs of Tables 7 and 8: candidates were pooled from the top 5."""
POSITIVE = "positive"


@dataclass(frozen=True)
class Alternatives:
    """What a judge said of candidates.

    Attributes:
        path: the file of ``skillreason data alternatives``.
        valid: query id -> candidate -> the targets it can stand in for.
        judged: (query id, candidate) pairs that have a decision.
    """

    path: Path
    valid: Mapping[str, Mapping[str, frozenset[str]]]
    judged: frozenset[tuple[str, str]]


def read_alternatives(path: str | Path) -> Alternatives:
    """Read rows of ``query_id, target_id, skill_id, decision``; those decided ``positive`` are valid.

    Raises:
        RecordError: a missing key, or one that is no text.
    """
    valid: dict[str, dict[str, frozenset[str]]] = {}
    judged: set[tuple[str, str]] = set()
    for number, row in read_rows(path):
        for key in ("query_id", "target_id", "skill_id", "decision"):
            if not isinstance(row.get(key), str):
                expected = "expected text, as skillreason data alternatives writes it"
                raise RecordError(path, number, expected, key, row.get(key))
        query_id, skill_id = row["query_id"], row["skill_id"]
        judged.add((query_id, skill_id))
        if row["decision"] == POSITIVE:
            of_query = valid.setdefault(query_id, {})
            of_query[skill_id] = of_query.get(skill_id, frozenset()) | {row["target_id"]}
    return Alternatives(Path(path), valid, frozenset(judged))


def covered(ids: Sequence[str], targets: Sequence[str], valid: Mapping[str, frozenset[str]]) -> int:
    """How many targets a list covers: one by itself, or by an alternative that was validated for it.

    An alternative covers one target and a target is credited once, so this is the largest matching of the listed skills with
    the targets; it depends on which skills are listed, not on their order.
    """
    place = {target: column for column, target in enumerate(targets)}
    pairs = [
        (row, place[target])
        for row, skill_id in enumerate(ids)
        for target in ({skill_id} if skill_id in place else valid.get(skill_id, frozenset()))
        if target in place
    ]
    if len(targets) == 1 or len(pairs) <= 1:
        return min(len(pairs), 1)
    rows, columns = zip(*pairs, strict=True)
    graph = csr_array((np.ones(len(pairs), dtype=np.int8), (rows, columns)), shape=(len(ids), len(targets)))
    return int((maximum_bipartite_matching(graph, perm_type="column") >= 0).sum())


def rescore(result: StoredResult, alternatives: Alternatives, ks: Sequence[int] = DEPTHS) -> dict[str, Any]:
    """Recall of a result before and after, at each depth.

    Returns:
        ``file``, ``result`` (the two files), ``recall`` (a row a depth: ``k``, ``original``, ``expanded``, ``delta``, and
        ``interval``, the 95% bootstrap interval of the delta), ``valid`` (alternatives among the lists down to the deepest
        ``k``) and ``unjudged`` (skills there that are no target and that nobody judged: where there are many, the result
        was no part of the pool).

    Raises:
        ValueError: no depth or one below 1, an alternative for a query or a target that the result does not have.
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"depths are {list(ks)}; expected positive numbers, at least one")
    known = set(result.query_ids)
    for query_id, candidates in alternatives.valid.items():
        if query_id not in known:
            raise ValueError(
                f"{alternatives.path}: query_id {query_id!r} is not in {result.path}; expected one benchmark"
            )
        lacking = set().union(*candidates.values()) - set(result.target_ids(query_id))
        if lacking:
            raise ValueError(
                f"{alternatives.path}: query {query_id!r} has no target {min(lacking)!r} in {result.path}; "
                f"expected one of {', '.join(result.target_ids(query_id))}"
            )
    before, after = (np.zeros((len(result.query_ids), len(ks))) for _ in range(2))
    found = unjudged = 0
    for row, (query_id, ids) in enumerate(zip(result.query_ids, result.ranking.ids, strict=True)):
        targets = result.target_ids(query_id)
        valid = alternatives.valid.get(query_id, {})
        for column, k in enumerate(ks):
            before[row, column] = len(set(ids[:k]) & set(targets)) / len(targets)
            after[row, column] = covered(ids[:k], targets, valid) / len(targets)
        others = [skill_id for skill_id in ids[: max(ks)] if skill_id not in targets]
        found += sum(skill_id in valid for skill_id in others)
        unjudged += sum((query_id, skill_id) not in alternatives.judged for skill_id in others)
    bounds = intervals(bootstrap_means(after - before))
    rows = [
        {
            "k": k,
            "original": float(before[:, column].mean()),
            "expanded": float(after[:, column].mean()),
            "delta": float((after - before)[:, column].mean()),
            "interval": list(bounds[column]),
        }
        for column, k in enumerate(ks)
    ]
    return {
        "file": str(alternatives.path),
        "result": str(result.path),
        "recall": rows,
        "valid": found,
        "unjudged": unjudged,
    }


def rescoring_table(rescored: Mapping[str, Mapping[str, Any]]) -> str:
    """The layout of Tables 7 and 8 as Markdown, in percent: a line a retriever."""
    depths = [row["k"] for row in next(iter(rescored.values()))["recall"]]
    head = [f"{what} R@{k}" for k in depths for what in ("Original", "Expanded", "Δ")]
    rows = [
        [name, *(f"{100 * row[key]:{sign}.2f}" for row in value["recall"] for key, sign in _COLUMNS)]
        for name, value in rescored.items()
    ]
    return align_table([["Retriever", *head], *rows])


_COLUMNS = (("original", ""), ("expanded", ""), ("delta", "+"))
