"""How fast and how much a teacher may be asked: rate limits, waits after failures, and the budget."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from data_pipeline.teacher.cache import ResponseCache
from data_pipeline.teacher.config import TeacherConfig

MINUTE = 60.0
BYTES_PER_TOKEN = 3
"""English text has about four bytes a token: three leaves a margin, code and other scripts need it."""


@dataclass
class Use:
    """An amount that counts in a rate window from ``time`` on."""

    time: float
    amount: float
    counted: bool = True


class RateWindow:
    """At most ``limit`` units in any 60 seconds; 0: no limit. A single amount above the limit passes alone."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock = limit, clock
        self._uses: deque[Use] = deque()  # oldest first
        self._total = 0.0
        self._guard = threading.Lock()

    def take(self, amount: float) -> Use | float:
        """The use where ``amount`` is free now (it counts from then on), or the seconds until it may be."""
        with self._guard:
            now = self._clock()
            while self._uses and self._uses[0].time <= now - MINUTE:
                oldest = self._uses.popleft()
                self._total -= oldest.amount
                oldest.counted = False
            if self._limit and self._uses and self._total + amount > self._limit:
                return max(self._uses[0].time + MINUTE - now, 0.001)
            use = Use(now, amount)
            self._uses.append(use)
            self._total += amount
            return use

    def correct(self, use: Use, amount: float) -> None:
        """Replace an estimate by what was used in truth; 0 gives it back."""
        with self._guard:
            if use.counted:
                self._total += amount - use.amount
                use.amount = amount


class Throttle:
    """Requests and tokens per minute, and the pause that an endpoint asks for: shared by all calls of a teacher."""

    def __init__(self, config: TeacherConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = RateWindow(config.requests_per_minute, clock)
        self._tokens = RateWindow(config.tokens_per_minute, clock)
        self._clock, self._paused_until = clock, 0.0

    def take(self, tokens: int) -> Use | float:
        """The use of ``tokens`` by one request that may be sent now, or the seconds to wait before asking again."""
        pause = self._paused_until - self._clock()
        if pause > 0:
            return pause
        request = self._requests.take(1)
        if not isinstance(request, Use):
            return request
        use = self._tokens.take(tokens)
        if not isinstance(use, Use):
            self._requests.correct(request, 0)
        return use

    def correct(self, use: Use, tokens: int) -> None:
        """Replace the estimate of a request by the tokens it used."""
        self._tokens.correct(use, tokens)

    def pause(self, seconds: float) -> None:
        """Nobody asks for so long: one call was told to wait, and the others would be told the same."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)


def backoff(config: TeacherConfig, retry: int, draw: Callable[[], float] = random.random) -> float:
    """Seconds before retry number ``retry`` (from 0): ``backoff_s`` · 2^retry up to ``backoff_max_s``, half of it at random."""
    longest = min(config.backoff_s * 2.0 ** min(retry, 32), config.backoff_max_s)
    return longest * (0.5 + 0.5 * draw())


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait in seconds that an answer's headers (names in lower case) ask for: seconds, milliseconds or a date; or None."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < 1e9:
            return seconds
    try:
        return max(parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time(), 0.0)
    except (KeyError, ValueError, TypeError):
        return None


class Budget:
    """What may still be spent. A call is admitted at its estimate, so that calls in flight never take more than is left."""

    def __init__(self, config: TeacherConfig, cache: ResponseCache) -> None:
        self._config, self._cache = config, cache
        self._reserved_input = self._reserved_output = self._calls = 0
        self._guard = threading.Lock()

    def admit(self, input_tokens: int, output_tokens: int) -> bool | None:
        """True: admitted, give it back with ``settle``. None: not now, calls in flight may turn out cheaper. False: never."""
        with self._guard:
            spent_input, spent_output = self._cache.spent(self._config.kind, self._config.model)
            total_input = spent_input + self._reserved_input + input_tokens
            total_output = spent_output + self._reserved_output + output_tokens
            if self._fits(total_input, total_output):
                self._reserved_input += input_tokens
                self._reserved_output += output_tokens
                self._calls += 1
                return True
            return None if self._calls else False

    def settle(self, input_tokens: int, output_tokens: int) -> None:
        """End a call that was admitted at these estimates; what it cost stands in the cache by now."""
        with self._guard:
            self._reserved_input -= input_tokens
            self._reserved_output -= output_tokens
            self._calls -= 1

    def _fits(self, input_tokens: int, output_tokens: int) -> bool:
        config = self._config
        if config.budget_tokens and input_tokens + output_tokens > config.budget_tokens:
            return False
        cost = cost_usd(config, input_tokens, output_tokens)
        return not config.budget_usd or (cost is not None and cost <= config.budget_usd)


def cost_usd(config: TeacherConfig, input_tokens: int, output_tokens: int) -> float | None:
    """Money by the configured prices, cached input at full price; None where a price is not known."""
    if config.price_input_per_million is None or config.price_output_per_million is None:
        return None
    return (input_tokens * config.price_input_per_million + output_tokens * config.price_output_per_million) / 1e6


def estimate_tokens(*texts: str) -> int:
    """A cautious guess of the tokens of a prompt, for limits and for endpoints that do not count."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN + 16
