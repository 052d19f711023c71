"""Bootstrap intervals against scipy's, pairing, suites, missing values; the randomization test against exact ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, bootstrap, permutation_test

from evaluation.significance import bootstrap_means, intervals, paired_p_value


def test_an_interval_agrees_with_scipys():
    values = np.random.default_rng(1).beta(2, 5, 300)
    (low, high), *_ = intervals(bootstrap_means(values[:, None], resamples=20_000))
    theirs = bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.001)


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for number in range(300):
        (low, high), *_ = intervals(bootstrap_means(rng.normal(0.5, 0.2, (60, 1)), resamples=400, seed=number))
        hits += low <= 0.5 <= high
    assert 0.90 <= hits / 300 <= 0.98


def test_columns_are_drawn_together():
    first = np.random.default_rng(4).random(50)
    samples = bootstrap_means(np.stack([first, first + 0.25, -first], axis=1), resamples=100)
    np.testing.assert_allclose(samples[:, 1] - samples[:, 0], 0.25)
    np.testing.assert_allclose(samples[:, 2], -samples[:, 0])


def test_the_same_seed_gives_the_same_draws_and_another_one_others():
    values = np.random.default_rng(5).random((30, 1))
    again = bootstrap_means(values, resamples=300)
    np.testing.assert_array_equal(bootstrap_means(values, resamples=300), again)
    assert (bootstrap_means(values, resamples=300, seed=1) != again).any()


def test_resamples_that_fill_no_chunk_are_all_there():
    assert bootstrap_means(np.ones((3, 2)), resamples=251).tolist() == [[1.0, 1.0]] * 251


def test_a_missing_value_leaves_the_query_out_of_its_mean():
    values = np.array([[1.0], [np.nan], [1.0], [np.nan]])
    samples = bootstrap_means(values, resamples=500)
    assert set(samples[np.isfinite(samples)]) == {1.0}
    # All four draws hit a query without a value in one of 16 resamples.
    assert np.isnan(samples).mean() == pytest.approx(1 / 16, abs=0.04)
    assert intervals(samples) == [(1.0, 1.0)]


def test_groups_weigh_alike_whatever_their_size():
    values = np.array([[0.0]] * 90 + [[1.0]] * 10)
    samples = bootstrap_means(values, ["big"] * 90 + ["small"] * 10, resamples=50)
    np.testing.assert_allclose(samples, 0.5)  # each group is drawn on its own, and is constant


@pytest.mark.parametrize("count", [3, 6, 9])
def test_the_p_value_is_exact_for_few_queries(count):
    differences = np.random.default_rng(count).normal(0.1, 0.3, count)
    exact = permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=10**9).pvalue
    assert paired_p_value(differences) == pytest.approx(exact)


def test_hits_and_misses_give_the_sign_test():
    differences = np.array([1.0] * 14 + [-1.0] * 4 + [0.0] * 100)
    assert paired_p_value(differences) == pytest.approx(binomtest(14, 18).pvalue, abs=0.006)


def test_equal_systems_do_not_differ():
    assert paired_p_value(np.zeros(40)) == 1.0
    assert paired_p_value(np.array([0.0, 0.5, 0.0])) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_means(np.zeros((0, 2))), "expected .queries, metrics., at least one query"),
        (lambda: bootstrap_means(np.zeros((2, 1)), resamples=0), "resamples is 0"),
        (lambda: bootstrap_means(np.zeros((2, 1)), ["a"]), "1 groups for 2 queries"),
        (lambda: intervals(np.zeros((2, 1)), 95), "level is 95; expected a share between 0 and 1"),
        (lambda: paired_p_value(np.array([0.1, np.nan])), "expected|must be a list of finite numbers"),
        (lambda: paired_p_value(np.zeros(0)), "must be a list of finite numbers"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
