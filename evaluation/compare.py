"""Two systems on one benchmark: differences with paired intervals and p-values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.report import align_table
from evaluation.results import StoredResult, read_result
from evaluation.significance import LEVEL, RESAMPLES, bootstrap_means, intervals, paired_p_value

DEPTHS = (1, 5, 10)
METRICS = ("recall@1", "recall@5", "recall@10", "ndcg@10", "mrr")
"""Compared where the results name no headline metrics of their own."""


def compare(
    first: str | Path, second: str | Path, metrics: Sequence[str] | None = None, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Compare two result files of the same benchmark, the second minus the first.

    Returns:
        ``first``, ``second`` (``file`` and ``model``), ``n_queries``, ``level`` and ``metrics``: by name ``first``, ``second``,
        ``difference``, ``interval`` (bootstrap of the paired differences), ``p_value`` (two-sided paired randomization test,
        not corrected for the number of metrics) and on how many queries the second is ``better``, ``worse`` and ``equal``.

    Raises:
        ValueError: files of other benchmarks (other queries or labels), an unknown metric, no result file.
        FileNotFoundError: no such file.
    """
    a, b = read_result(first), read_result(second)
    _check_same(a, b)
    scores_a, scores_b = a.scores(DEPTHS), b.scores(DEPTHS)
    wanted = list(metrics or a.headline or METRICS)
    unknown = next((name for name in wanted if name not in scores_a.names), None)
    if unknown is not None:
        raise ValueError(f"no metric {unknown!r} in {a.path}; expected some of {', '.join(scores_a.names)}")
    row_of = {query_id: row for row, query_id in enumerate(scores_b.query_ids)}
    order = [row_of[query_id] for query_id in scores_a.query_ids]
    found: dict[str, dict[str, Any]] = {}
    for name in wanted:
        column = scores_a.names.index(name)
        left, right = scores_a.values[:, column], scores_b.values[order, column]
        applies = np.isfinite(left)
        gaps = (right - left)[applies]
        gaps[np.abs(gaps) < 1e-12] = 0.0  # sums in another order are no difference
        low, high = intervals(bootstrap_means(gaps[:, None], resamples=resamples))[0]
        found[name] = {
            "first": float(left[applies].mean()),
            "second": float(right[applies].mean()),
            "difference": float(gaps.mean()),
            "interval": [low, high],
            "p_value": paired_p_value(gaps),
            "better": int((gaps > 0).sum()),
            "worse": int((gaps < 0).sum()),
            "equal": int((gaps == 0).sum()),
        }
    return {
        "first": {"file": str(a.path), "model": a.model},
        "second": {"file": str(b.path), "model": b.model},
        "n_queries": len(a.query_ids),
        "level": LEVEL,
        "metrics": found,
    }


def comparison_table(comparison: Mapping[str, Any]) -> str:
    """The comparison as Markdown, in percent and points."""
    head = ["Metric", "A", "B", "B − A", f"{comparison['level']:.0%} interval", "p", "better", "worse", "equal"]
    rows = [
        [
            name,
            f"{100 * row['first']:.2f}",
            f"{100 * row['second']:.2f}",
            f"{100 * row['difference']:+.2f}",
            f"[{100 * row['interval'][0]:+.2f}, {100 * row['interval'][1]:+.2f}]",
            "< 0.001" if row["p_value"] < 0.001 else f"{row['p_value']:.3f}",
            *(str(row[key]) for key in ("better", "worse", "equal")),
        ]
        for name, row in comparison["metrics"].items()
    ]
    sides = [f"{letter}: {comparison[side]['model']}" for letter, side in (("A", "first"), ("B", "second"))]
    return f"{', '.join(sides)}; {comparison['n_queries']:,} queries\n\n{align_table([head, *rows])}"


def _check_same(a: StoredResult, b: StoredResult) -> None:
    only = next((query_id for query_id in a.query_ids if query_id not in b.qrels), None)
    only = only if only is not None else next((query_id for query_id in b.query_ids if query_id not in a.qrels), None)
    if only is not None:
        where = (a, b) if only in a.qrels else (b, a)
        raise ValueError(
            f"query {only!r} is in {where[0].path} and not in {where[1].path}; expected two results of one benchmark"
        )
    for query_id in a.query_ids:
        if a.qrels[query_id] != b.qrels[query_id] or a.target_ids(query_id) != b.target_ids(query_id):
            raise ValueError(
                f"query {query_id!r} has other labels in {a.path} than in {b.path}; expected two results of one benchmark"
            )
