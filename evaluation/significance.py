"""How sure a figure is: bootstrap intervals over queries, and the paired randomization test of two systems."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
SEED = 42
_CHUNK = 250
"""Resamples drawn at once: 250 of 5,400 queries are 10 MB."""


def bootstrap_means(
    values: np.ndarray, groups: Sequence[str] | None = None, resamples: int = RESAMPLES, seed: int = SEED
) -> np.ndarray:
    """Means of ``values[Q, M]`` over ``resamples`` draws of Q queries with replacement; ``[resamples, M]``.

    All columns see the same draws, so differences between columns are paired by query. NaN counts as "does not apply": a
    mean is taken over the drawn queries that have a value, and is NaN where a draw has none. With ``groups[Q]``, each group
    is drawn on its own, and the mean is the plain average of the groups' means (the macro average of several suites).

    Raises:
        ValueError: no query, no resample, or not one group for each query.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise ValueError(f"values have shape {list(values.shape)}; expected [queries, metrics], at least one query")
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}; expected at least 1")
    rng = np.random.default_rng(seed)
    if groups is None:
        return _means(values, resamples, rng)
    if len(groups) != len(values):
        raise ValueError(f"{len(groups)} groups for {len(values)} queries; expected one each")
    of_query = np.asarray(groups)
    names = list(dict.fromkeys(groups))
    return np.mean([_means(values[of_query == name], resamples, rng) for name in names], axis=0)


def intervals(samples: np.ndarray, level: float = LEVEL) -> list[tuple[float, float]]:
    """The percentile interval of each column of ``samples[resamples, M]`` that covers ``level`` of them.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a share between 0 and 1, such as 0.95")
    low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def paired_p_value(differences: np.ndarray, resamples: int = 9999, seed: int = SEED) -> float:
    """Two-sided p of ``differences[Q]`` (one system minus the other) having mean 0, by random changes of sign.

    Exact where there are no more than ``resamples`` ways to choose the signs, otherwise (1 + as extreme) / (1 + drawn), by
    scipy. Queries without a difference keep their place in the mean but need no sign: they are left out. NaN is refused.

    Raises:
        ValueError: no differences, or one that is not finite.
    """
    from scipy.stats import permutation_test

    differences = np.asarray(differences, dtype=np.float64)
    if differences.ndim != 1 or not len(differences) or not np.isfinite(differences).all():
        raise ValueError(
            "differences must be a list of finite numbers, one a query; leave out where a metric is missing"
        )
    changed = differences[differences != 0]
    if len(changed) < 2:
        return 1.0  # the sign of a single difference is as likely as the other; scipy wants two observations
    tested = permutation_test(
        (changed,),
        np.sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=_CHUNK,
        rng=np.random.default_rng(seed),
    )
    return float(tested.pvalue)


def _means(values: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    count = len(values)
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    out = np.empty((resamples, values.shape[1]))
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        # How often each query was drawn says all: the means are then one matrix product.
        drawn = rng.integers(count, size=(rows, count)) + count * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count).astype(np.float64)
        with np.errstate(invalid="ignore"):
            out[start : start + rows] = (times @ filled) / (times @ known)
    return out
