"""What keeps a client from taking more than its share: requests a second, and the size of a body and the time it takes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.problems import Problem

MAX_CLIENTS = 10_000
"""Buckets that are kept; of more clients the one that was quiet longest is forgotten, which gives it a full bucket again."""


class TokenBuckets:
    """A token bucket a client: ``burst`` requests at once, ``rate`` a second in the long run.

    Bounded in memory and without a lock: all calls come from one event loop. (The libraries at hand count in windows, which let
    twice the burst through at a window's edge.)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (tokens, when)

    def take(self, client: str) -> float:
        """Take a token: 0 where there was one, else the seconds until there is."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        tokens, before = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - before) * self._rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / self._rate


class BodyLimit:
    """ASGI middleware: 413 as soon as a body is known to be too large, 408 where it does not arrive in time.

    ``Content-Length`` is believed where it is too large; otherwise the bytes are counted while they arrive, so a body without a
    length, or with a false one, is not read further than the limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self.app, self.max_bytes, self.timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.max_bytes:
            await self.too_large().response()(scope, receive, send)
            return
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        received = 0
        whole = False

        async def limited() -> Message:
            nonlocal received, whole
            if whole:  # what comes now is the end of the connection, which may take as long as the search does
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise _Refused(
                    Problem(408, "slow_body", f"the body did not arrive within {self.timeout_s:g} s")
                ) from None
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise _Refused(self.too_large())
            whole = not message.get("more_body", False)
            return message

        await self.app(scope, limited, send)

    def too_large(self) -> Problem:
        """413, with the limit."""
        return Problem(413, "body_too_large", f"the body is too large; expected at most {self.max_bytes} bytes")


class _Refused(HTTPException):
    """Raised inside the application's ``receive``: FastAPI lets HTTPException through and makes a 400 of any other exception."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.status, problem.message)
        self.problem = problem
