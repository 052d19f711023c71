"""From verdicts to accuracies: by suite, macro-averaged over suites, with intervals and paired tests between conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.end_to_end.tasks import Task
from evaluation.significance import bootstrap_means, intervals, paired_p_value

STATUSES = ("correct", "wrong", "unparsable", "missing")
"""``missing``: no answer arrived; the instance is left out of its condition's accuracy. An unparsable answer is not solved."""


def score_conditions(tasks: Sequence[Task], statuses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """``conditions`` and ``comparisons`` of a result.

    Args:
        tasks: ``[N]``, all suites together.
        statuses: by condition ``[N]``, each of :data:`STATUSES`.

    Returns:
        ``conditions``: by condition ``accuracy`` (plain average of the suites' accuracies, as in Table 5), its ``interval``, the
        four counts and ``suites``. ``comparisons``: each condition minus each one before it, on the instances that both answered.
        Accuracies are fractions; None where a suite has no answer at all.
    """
    suites = [task.suite for task in tasks]
    names = list(statuses)
    values = np.array([[_value(status) for status in statuses[name]] for name in names]).T.reshape(len(tasks), -1)
    samples = bootstrap_means(values, suites)
    conditions = []
    for column, name in enumerate(names):
        counts = Counter(statuses[name])
        rows = [_suite_row(suite, suites, values[:, column], statuses[name]) for suite in dict.fromkeys(suites)]
        means = [row["accuracy"] for row in rows]
        known = all(mean is not None for mean in means)
        conditions.append(
            {
                "name": name,
                "accuracy": float(np.mean(means)) if known else None,
                "interval": list(intervals(samples[:, [column]])[0]) if known else None,
                **{status: counts[status] for status in STATUSES},
                "suites": rows,
            }
        )
    pairs = [(first, second) for second in range(len(names)) for first in range(second)]
    comparisons = [_compare(names, values, suites, first, second) for first, second in pairs]
    return {"conditions": conditions, "comparisons": comparisons}


def _value(status: str) -> float:
    return np.nan if status == "missing" else float(status == "correct")


def _suite_row(suite: str, suites: Sequence[str], values: np.ndarray, statuses: Sequence[str]) -> dict[str, Any]:
    here = [position for position, name in enumerate(suites) if name == suite]
    counts = Counter(statuses[position] for position in here)
    part = values[here]
    answered = np.isfinite(part).any()
    interval = list(intervals(bootstrap_means(part[:, None]))[0]) if answered else None
    return {
        "suite": suite,
        "n": len(here),
        "accuracy": float(np.nanmean(part)) if answered else None,
        "interval": interval,
        **{status: counts[status] for status in STATUSES},
    }


def _compare(
    names: Sequence[str], values: np.ndarray, suites: Sequence[str], first: int, second: int
) -> dict[str, Any]:
    difference = values[:, second] - values[:, first]
    both = np.isfinite(difference)
    row: dict[str, Any] = {"first": names[first], "second": names[second], "n": int(both.sum())}
    of_suite = np.asarray(suites)[both]
    if set(of_suite) != set(suites):
        return row | {"difference": None, "interval": None, "p": None}
    difference = difference[both]
    # Weighted so that the plain mean is the macro average: the test then is of the figure that is reported.
    sizes = Counter(of_suite.tolist())
    weights = np.array([len(difference) / (len(sizes) * sizes[suite]) for suite in of_suite.tolist()])
    bounds = intervals(bootstrap_means(difference[:, None], of_suite.tolist()))[0]
    return row | {
        "difference": float(np.mean(difference * weights)),
        "interval": list(bounds),
        "p": paired_p_value(difference * weights),
    }
