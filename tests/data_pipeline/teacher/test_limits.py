"""Rates, waits and budgets, on a clock of the test's own."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.teacher import TeacherConfig
from data_pipeline.teacher.cache import Reply, ResponseCache
from data_pipeline.teacher.limits import Budget, RateWindow, Throttle, Use, backoff, cost_usd, retry_after


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 20)), min_size=1, max_size=60))
def test_no_sixty_seconds_hold_more_than_the_limit(steps: list[tuple[int, float]]):
    clock, used = Clock(), []
    window = RateWindow(100, clock)
    for amount, pause in steps:
        clock.now += pause
        while not isinstance(taken := window.take(amount), Use):
            assert taken > 0
            clock.now += taken
        used.append((clock.now, amount))
    for start, _ in used:
        assert sum(amount for at, amount in used if start <= at < start + 60) <= 100


def test_a_single_amount_above_the_limit_passes_alone():
    clock = Clock()
    window = RateWindow(100, clock)
    assert isinstance(window.take(500), Use)
    assert window.take(1) == 60


def test_a_correction_frees_what_was_not_used():
    window = RateWindow(100, Clock())
    use = window.take(90)
    assert isinstance(use, Use)
    assert not isinstance(window.take(50), Use)
    window.correct(use, 10)
    assert isinstance(window.take(50), Use)


def test_no_limit_never_waits():
    window = RateWindow(0, Clock())
    assert all(isinstance(window.take(10**9), Use) for _ in range(100))


def test_requests_and_tokens_are_limited_together():
    clock = Clock()
    throttle = Throttle(TeacherConfig(requests_per_minute=2, tokens_per_minute=100), clock)
    assert isinstance(throttle.take(80), Use)
    assert throttle.take(80) == 60  # tokens
    assert isinstance(throttle.take(20), Use)  # the refused one used up no request
    clock.now = 30
    assert throttle.take(0) == 30  # requests


def test_a_pause_holds_for_every_call():
    clock = Clock()
    throttle = Throttle(TeacherConfig(), clock)
    throttle.pause(7)
    throttle.pause(3)
    assert throttle.take(1) == 7


@pytest.mark.parametrize("retry, longest", [(0, 1.0), (1, 2.0), (3, 8.0), (10, 60.0), (5000, 60.0)])
def test_waits_double_up_to_a_limit_and_are_half_random(retry: int, longest: float):
    config = TeacherConfig(backoff_s=1.0, backoff_max_s=60.0)
    assert backoff(config, retry, lambda: 0.0) == longest / 2
    assert backoff(config, retry, lambda: 1.0) == longest


@pytest.mark.parametrize(
    "headers, seconds",
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers) == seconds


def test_retry_after_may_be_a_date():
    wait = retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)})
    assert wait == pytest.approx(100, abs=3)


def test_costs_are_per_million_tokens():
    config = TeacherConfig(price_input_per_million=3.0, price_output_per_million=15.0)
    assert cost_usd(config, 2_000_000, 100_000) == pytest.approx(6.0 + 1.5)


def test_a_cost_without_a_price_is_unknown():
    assert cost_usd(TeacherConfig(price_input_per_million=3.0), 1, 1) is None


def test_a_call_is_admitted_while_it_and_those_in_flight_fit(tmp_path: Path):
    config = TeacherConfig(kind="openai", model="m", budget_tokens=100)
    cache = ResponseCache(tmp_path)
    budget = Budget(config, cache)
    assert budget.admit(40, 10) is True
    assert budget.admit(40, 11) is None  # 101 with the one in flight
    assert budget.admit(40, 10) is True
    budget.settle(40, 10)
    cache.put("key", "openai", "m", "task", Reply("x", "stop", 20, 5))
    assert budget.admit(20, 5) is True  # 25 spent, 50 in flight
    budget.settle(20, 5)
    budget.settle(40, 10)
    assert budget.admit(70, 6) is False


def test_a_budget_in_money_follows_the_prices(tmp_path: Path):
    config = TeacherConfig(
        kind="openai", model="m", budget_usd=1.0, price_input_per_million=1.0, price_output_per_million=10.0
    )
    budget = Budget(config, ResponseCache(tmp_path))
    assert budget.admit(500_000, 60_000) is False  # 0.50 + 0.60
    assert budget.admit(500_000, 50_000) is True
