"""Work for a pool of equal actors: each takes the next piece when it is done, and a lost one's piece goes to another."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from actors.members import MAX_FAILURES, POLL_S, Member, Members, RoleError
from cluster.errors import LOST, is_device_failure, last_line, loss

HUNG_S, HUNG_FACTOR = 600.0, 20.0
"""A member counts as hung after ten minutes on one piece of work, or 20 times the slowest piece so far if that is longer: a first
piece may compile, later ones take seconds to minutes, and to kill a member that was only slow costs its whole piece."""


@dataclass(frozen=True)
class _Piece:
    index: int
    member: Member
    since: float


def piece_sizes(items: int, most: int) -> list[int]:
    """Into how many consecutive items each piece of work is cut: large pieces first, small ones to even out the end.

    They depend on the pool's configured size and not on the members it has, so that a piece, and with it the rounding of its
    batched matrix products, is the same whoever is there. A pool of one gets everything at once.
    """
    if most <= 1:
        return [items] if items else []
    sizes, least = [], -(-items // (8 * most))
    while items:
        sizes.append(min(items, max(least, -(-items // (2 * most)))))
        items -= sizes[-1]
    return sizes


class ElasticPool(Members):
    """:class:`actors.members.Members` that share work. Their methods must be free of side effects: a piece may run twice."""

    def __init__(self, *args: Any, **kwargs: Any):
        """As :class:`actors.members.Members`."""
        super().__init__(*args, **kwargs)
        self._slowest = 0.0

    def map(self, method: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method once for each tuple of arguments; results in that order. Members that come meanwhile take part.

        Raises:
            RoleError: a piece cost :data:`actors.members.MAX_FAILURES` members; or see :meth:`Members.wait_ready`.
            RayTaskError: the method raised, and not because its GPU failed.
        """
        results: dict[int, Any] = {}
        queue = deque(range(len(calls)))
        running: dict[Any, _Piece] = {}
        costs: Counter[int] = Counter()
        while len(results) < len(calls):
            with self._lock:
                if self._closed:
                    raise RoleError(
                        f"the {self.name} pool was stopped with {len(calls) - len(results)} pieces of work left"
                    )
                self.tend()
                self._hand_out(method, calls, queue, running)
            self._mind_the_least()
            waiting = [*running, *self._arriving()]
            if not waiting:
                time.sleep(0.2)
                continue
            done, _ = ray.wait(waiting, num_returns=1, timeout=POLL_S)
            for reference in [r for r in done if r in running]:
                piece = running.pop(reference)
                try:
                    results[piece.index] = ray.get(reference)
                    self._slowest = max(self._slowest, time.monotonic() - piece.since)
                except RayTaskError as error:
                    if not is_device_failure(error, memory=True):
                        raise
                    self._repeat(piece, queue, costs, *loss(error))
                except LOST as error:
                    self._repeat(piece, queue, costs, *loss(error))
            limit = max(HUNG_S, HUNG_FACTOR * self._slowest)
            for reference in [r for r, piece in running.items() if time.monotonic() - piece.since > limit]:
                self._repeat(running.pop(reference), queue, costs, "hung", f"no answer for {limit:.0f} s")
        return [results[index] for index in range(len(calls))]

    def call_all(self, method: str) -> None:
        """Call a method of every member and wait for all; those that are lost are replaced."""
        for name, reference in [(name, getattr(handle, method).remote()) for name, handle in self.handles().items()]:
            try:
                ray.get(reference, timeout=HUNG_S)
            except RayTaskError as error:
                if not is_device_failure(error, memory=True):
                    raise
                self.lose([name], f"lost in {method}: {loss(error)[1]}")
            except (*LOST, GetTimeoutError) as error:
                self.lose([name], f"lost in {method}: {last_line(error)}")

    def _hand_out(
        self, method: str, calls: Sequence[tuple[Any, ...]], queue: deque[int], running: dict[Any, _Piece]
    ) -> None:
        busy = {piece.member for piece in running.values()}
        for member in self._joined():
            if queue and member not in busy:
                index = queue.popleft()
                reference = getattr(member.handle, method).remote(*calls[index])
                running[reference] = _Piece(index, member, time.monotonic())

    def _repeat(self, piece: _Piece, queue: deque[int], costs: Counter[int], event: str, reason: str) -> None:
        with self._lock:
            self._lose(piece.member, event, reason)
            seconds = time.monotonic() - piece.since
            self._tell("redispatched", piece.member, f"piece {piece.index} of {piece.member.name}", seconds=seconds)
        costs[piece.index] += event != "left"
        if costs[piece.index] >= MAX_FAILURES:
            raise RoleError(
                f"{MAX_FAILURES} members of the {self.name} pool were lost with the same piece of work, the last one because: "
                f"{reason}"
            )
        queue.appendleft(piece.index)
