"""The result of an evaluation: what is computed from rankings, its file, and reading it again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.benchmarks.base import Benchmark
from evaluation.metrics import Scores, score_queries
from evaluation.significance import LEVEL, RESAMPLES, SEED, bootstrap_means, intervals
from evaluation.slices import slice_labels, slice_rows
from models.folders import atomic_write_text
from retrieval.ranking import Ranking


@dataclass(frozen=True)
class StoredResult:
    """A result file as it is read again: rankings with the labels they are scored by.

    Attributes:
        path: the file.
        model: what was evaluated, ``retriever + rationales (source) × reranker`` where there were any.
        query_ids: ``[Q]``.
        ranking: their lists.
        qrels, targets: see :func:`evaluation.metrics.score_queries`.
        suites: the suite of each query id; empty where the benchmark has none.
        headline: the metrics with intervals.
    """

    path: Path
    model: str
    query_ids: list[str]
    ranking: Ranking
    qrels: dict[str, dict[str, int]]
    targets: dict[str, list[str]]
    suites: dict[str, str] = field(default_factory=dict)
    headline: list[str] = field(default_factory=list)

    def target_ids(self, query_id: str) -> list[str]:
        """The skills that answer a query."""
        return self.targets.get(query_id) or [s for s, grade in self.qrels[query_id].items() if grade > 0]

    def scores(self, ks: Sequence[int]) -> Scores:
        """The metrics of every query."""
        return score_queries(self.ranking, self.query_ids, self.qrels, ks, self.targets)


def score(benchmark: Benchmark, ranking: Ranking, ks: Sequence[int]) -> dict[str, Any]:
    """Everything that follows from the rankings of a benchmark's requests.

    ``metrics``; ``intervals`` (95% bootstrap intervals over queries of the protocol's headline metrics); ``suites`` and, where
    the protocol has it, ``macro`` (their plain average, with intervals); ``slices`` (:mod:`evaluation.slices`).
    """
    query_ids = [query.query_id for query in benchmark.queries]
    scores = score_queries(ranking, query_ids, benchmark.qrels, ks, benchmark.targets)
    headline = scores.select(benchmark.protocol.headline)
    value: dict[str, Any] = {
        "metrics": scores.means(),
        "intervals": {"level": LEVEL, "resamples": RESAMPLES, "seed": SEED, **_bounds(headline)},
    }
    suites = benchmark.suite_queries()
    if suites:
        parts = {suite: scores.select(None, set(ids)) for suite, ids in suites.items()}
        value["suites"] = [
            {"suite": suite, "n_queries": len(part.query_ids), "metrics": part.means()} for suite, part in parts.items()
        ]
        if benchmark.protocol.macro and len(parts) > 1:
            of_query = [benchmark.suites[query_id] for query_id in headline.query_ids]
            means = [headline.select(None, set(ids)).means() for ids in suites.values()]
            value["macro"] = {
                "metrics": {name: float(np.mean([mean[name] for mean in means])) for name in headline.names},
                "intervals": _bounds(headline, of_query),
            }
    labels = slice_labels(benchmark)
    if labels:
        value["slices"] = slice_rows(scores, labels, benchmark.protocol.headline)
    return value


def query_rows(benchmark: Benchmark, ranking: Ranking) -> list[dict[str, Any]]:
    """A row a request: ``query_id``, ``ids``, ``scores``, ``qrels``, and ``targets`` and ``suite`` where it has them."""
    rows = []
    for query, ids, scores in zip(benchmark.queries, ranking.ids, ranking.scores.tolist(), strict=True):
        row: dict[str, Any] = {"query_id": query.query_id, "ids": ids, "scores": scores[: len(ids)]}
        row["qrels"] = query.qrels
        if query.query_id in benchmark.targets:
            row["targets"] = list(benchmark.targets[query.query_id])
        if query.query_id in benchmark.suites:
            row["suite"] = benchmark.suites[query.query_id]
        rows.append(row)
    return rows


def write_result(path: str | Path, result: Mapping[str, Any], rows_key: str = "queries") -> None:
    """Write a result as JSON, atomically: indented, but each row of ``rows_key`` on a line: smaller and much faster."""
    head = {key: value for key, value in result.items() if key != rows_key}
    text = json.dumps(head, ensure_ascii=False, indent=2, allow_nan=False)
    rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False, allow_nan=False) for row in result[rows_key])
    atomic_write_text(path, f'{text[:-2]},\n  "{rows_key}": [\n{rows}\n  ]\n}}\n')


def read_result(path: str | Path) -> StoredResult:
    """Read what ``skillreason evaluate --out`` wrote.

    Raises:
        ValueError: not such a file, or one of an earlier version, without labels.
        FileNotFoundError: no such file.
    """
    file = Path(path)
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not a result of skillreason evaluate, but no JSON at all ({error})") from error
    return stored_result(file, value)


def stored_result(path: str | Path, value: Any) -> StoredResult:
    """The decoded value of a result file; ``path`` is how errors call it. Raises as :func:`read_result`."""
    file = Path(path)
    try:
        rows = [(str(row["query_id"]), list(row["ids"]), row.get("qrels"), row) for row in value["queries"]]
        model = str(value["model"])
        if value.get("augment"):
            model += f" + rationales ({value['augment']['source']})"
        if value.get("rerank"):
            model += f" × {value['rerank']['model']}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file}: not a result of skillreason evaluate ({type(error).__name__}: {error}); expected model and queries"
        ) from error
    bare = next((query_id for query_id, _, qrels, _ in rows if not qrels), None)
    if bare is not None or not rows:
        raise ValueError(
            f"{file}: query {bare!r} has no qrels beside its ids; run skillreason evaluate again to have them"
        )
    return StoredResult(
        file,
        model,
        [query_id for query_id, *_ in rows],
        Ranking([ids for _, ids, _, _ in rows], np.zeros((len(rows), 0))),
        {query_id: {str(s): int(g) for s, g in qrels.items()} for query_id, _, qrels, _ in rows},
        {query_id: list(row["targets"]) for query_id, _, _, row in rows if row.get("targets")},
        {query_id: str(row["suite"]) for query_id, _, _, row in rows if row.get("suite")},
        list(value.get("intervals", {}).get("metrics", {})),
    )


def _bounds(scores: Scores, groups: Sequence[str] | None = None) -> dict[str, Any]:
    found = intervals(bootstrap_means(scores.values, groups))
    return {"metrics": {name: list(pair) for name, pair in zip(scores.names, found, strict=True)}}
