"""The members of a pool: Ray actors that are started where there is room, let in when they are ready, and replaced when lost."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayTaskError

from cluster.errors import LOST, cause, is_device_failure, last_line, loss

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two looks at what has changed."""

TICK_S = 5.0
"""Seconds between two lines that say what is being waited for."""

GRACE_S = 30.0
"""Seconds without enough members that are always allowed: Ray takes about as long to see that a node is gone."""

START_S = 1800.0
"""Seconds a member may take to start: a large model from a slow disk, and an engine that compiles."""

MAX_FAILURES = 3
"""Starts in one place that may fail in a row before it counts as broken, and members that one piece of work may cost before the
run ends: neither will heal itself."""

PAUSE_S = 60.0
"""Seconds, times its failures, after which a broken place is tried again, while the pool has members enough without it."""

Note = Callable[..., None]
"""``note(event, detail, **values)``: the run's account of events."""


class RoleError(ValueError):
    """A role that could not be started, or cannot go on; the message names it and what its process said."""


class Places(Protocol):
    """Where members go, see :class:`cluster.placement.Placement`."""

    def seat(self, role: str, number: int) -> Any: ...

    def leave(self, role: str, number: int) -> None: ...


@dataclass(eq=False)
class Member:
    """One place of a pool and what is in it: nothing yet, a starting actor, or (``joined``) one that works."""

    number: int
    name: str
    seat: Any
    handle: Any = None
    arriving: Any = None  # reference to what it does before it may work: starting, then being welcomed
    up: bool = False  # its process has started
    joined: bool = False
    node: str = ""
    since: float = field(default_factory=time.monotonic)


class Members:
    """Between ``least`` and ``most`` members of one kind, each a Ray actor with a method ``ready``.

    A member is started as soon as there is room for it, and replaced when it is lost. Ray itself restarts nothing.
    """

    def __init__(
        self,
        name: str,
        places: Places,
        create: Callable[[Any], Any],
        *,
        most: int,
        least: int,
        wait_s: float,
        note: Note,
        welcome: Callable[[Any], Any] | None = None,
    ):
        """
        Args:
            name: the role, also of the places.
            create: from a seat to the handle of a new actor in it.
            wait_s: how long fewer than ``least`` members are put up with.
            note: takes the pool's events.
            welcome: from the handle of a started member to a reference of what it must have done before it works, such as
                taking the newest weights.
        """
        self.name, self.most, self.least = name, most, least
        self._places, self._create, self._note, self._welcome = places, create, note, welcome
        self._wait_s = wait_s
        self._members: dict[int, Member] = {}
        self._starts = [0] * most
        self._failures = [0] * most  # of each place, in a row
        self._not_before = [0.0] * most
        self._complete = False  # there have once been enough
        self._short_since: float | None = None
        self._said = time.monotonic()
        self._paused = False
        self._closed = False
        self._lock = threading.RLock()

    def handles(self) -> dict[str, Any]:
        """The members whose process has started, by name."""
        with self._lock:
            return {m.name: m.handle for m in self._members.values() if m.up}

    def size(self) -> int:
        """Members that can work."""
        return len(self._joined())

    def tend(self) -> None:
        """Start members where there is room and let in those that are ready; costs a few milliseconds.

        Raises:
            RoleError: a constructor raised before there were ever enough members, or starts fail again and again in so many
                places that ``least`` cannot be reached.
        """
        with self._lock:
            for number in range(0 if self._closed else self.most):
                member = self._members.get(number)
                if member is None:
                    if not self._paused and time.monotonic() >= self._not_before[number]:
                        seat = self._places.seat(self.name, number)
                        self._members[number] = Member(number, f"{self.name}-{number}", seat)
                elif self._places.seat(self.name, number) is not member.seat:
                    self._lose(member, "died", "its place went with the policy's")
                elif not member.joined:
                    self._advance(member)

    def wait_ready(self) -> None:
        """Block until at least ``least`` members can work, saying what is awaited.

        Raises:
            RoleError: see :meth:`tend`; or fewer than ``least`` for longer than ``wait_s``.
        """
        while True:
            self.tend()
            self._mind_the_least()
            if self.size() >= self.least:
                return
            if arriving := self._arriving():
                ray.wait(arriving, num_returns=1, timeout=POLL_S)
            else:
                time.sleep(0.2)

    def lose(self, names: Sequence[str], reason: str) -> None:
        """Give up members that somebody else found lost; they are replaced."""
        with self._lock:
            for member in [m for m in self._members.values() if m.name in names]:
                self._lose(member, "died", reason)

    def give_way(self) -> None:
        """Leave room for somebody more important: until :meth:`resume` no member is added, and one beyond ``least`` goes."""
        with self._lock:
            self._paused = True
            for member in [m for m in self._members.values() if m.handle is None]:
                self._remove(member)
            surplus = list(self._members.values())[self.least :]
            if surplus:
                self._lose(surplus[-1], "retired", "a training group needs its place")

    def resume(self) -> None:
        """Add members again."""
        self._paused = False

    def stop(self) -> None:
        """End all members; work that is under way fails."""
        with self._lock:
            self._closed = True
            for member in list(self._members.values()):
                self._remove(member)

    # -- one member -----------------------------------------------------------------------------------------------------

    def _advance(self, member: Member) -> None:
        if member.handle is None:
            if member.seat.ready():
                self._start(member)
            return
        done, _ = ray.wait([member.arriving], timeout=0)
        if not done:
            if time.monotonic() - member.since > START_S:
                self._failed_start(member, "died", f"not ready after {START_S:.0f} s")
            return
        try:
            ray.get(done)
            if not member.up and self._welcome is not None:
                member.arriving = self._welcome(member.handle)
                member.up = True
                return
        except RayTaskError as error:
            if is_device_failure(error, memory=True):
                self._failed_start(member, *loss(error))
                return
            member.up, member.arriving = False, member.handle.ready.remote()
            if not isinstance(cause(error), ObjectLostError):
                raise  # what one says of the model or its weights, all would say
            return  # what it was to take went with its owner: it is welcomed again
        except (*LOST, GetTimeoutError) as error:
            if getattr(error, "_actor_init_failed", False):
                self._failed_start(member, "died", last_line(error), raised=not is_device_failure(error))
            else:
                self._failed_start(member, *loss(error))
            return
        self._join(member)

    def _start(self, member: Member) -> None:
        self._starts[member.number] += 1
        if self._starts[member.number] > 1:
            member.name = f"{self.name}-{member.number}.{self._starts[member.number]}"
        member.node = member.seat.node()
        member.handle = self._create(member.seat)
        member.arriving = member.handle.ready.remote()
        member.since = time.monotonic()

    def _join(self, member: Member) -> None:
        member.up = member.joined = True
        member.arriving = None
        self._failures[member.number] = 0
        self._complete = self._complete or self.size() >= self.least
        seconds = time.monotonic() - member.since
        self._tell(
            "joined", member, f"{member.name} on node {member.node[:8]}, {self.size()} of {self.most}", seconds=seconds
        )

    def _failed_start(self, member: Member, event: str, reason: str, raised: bool = False) -> None:
        self._lose(member, event, f"did not start: {reason}")
        self._failures[member.number] += event != "left"
        broken = sum(failures >= MAX_FAILURES for failures in self._failures)
        if self.most - broken < self.least or (raised and not self._complete):
            raise RoleError(f"the {member.name} role did not start: {reason}")
        if self._failures[member.number] >= MAX_FAILURES:
            pause = PAUSE_S * self._failures[member.number]
            self._not_before[member.number] = time.monotonic() + pause
            logger.warning("the next start of %s-%d is %.0f s from now", self.name, member.number, pause)

    def _lose(self, member: Member, event: str, reason: str) -> None:
        if self._members.get(member.number) is not member:
            return
        self._remove(member)
        text = f"{member.name} on node {member.node[:8]}: {reason}; {self.size()} of {self.most} left"
        self._tell(event, member, text)

    def _remove(self, member: Member) -> None:
        self._members.pop(member.number, None)
        if member.handle is not None:
            with contextlib.suppress(Exception):  # it may be gone, and its node too
                ray.kill(member.handle)
        self._places.leave(self.name, member.number)

    def _tell(self, event: str, member: Member, text: str, **values: float) -> None:
        rounded = {key: round(value, 3) for key, value in values.items()}
        self._note(event, text, pool=self.name, member=member.name, node=member.node, members=self.size(), **rounded)

    # -- enough of them? --------------------------------------------------------------------------------------------------

    def _joined(self) -> list[Member]:
        with self._lock:
            return [m for m in self._members.values() if m.joined]

    def _arriving(self) -> list[Any]:
        with self._lock:
            return [m.arriving for m in self._members.values() if m.arriving is not None]

    def _mind_the_least(self) -> None:
        """End the run when there have been too few members for too long, and say meanwhile that they are awaited."""
        size, now = self.size(), time.monotonic()
        if size >= self.least:
            self._short_since = None
            return
        with self._lock:
            coming = [m.name for m in self._members.values() if m.arriving is not None]
        if now - self._said > TICK_S:
            self._said = now
            state = f"{', '.join(coming)} starting" if coming else "no room for another"
            logger.info("waiting for the %s pool: %d of at least %d members; %s", self.name, size, self.least, state)
        if coming or self._short_since is None:
            self._short_since = now
        elif now - self._short_since > max(self._wait_s, GRACE_S):
            raise RoleError(
                f"the {self.name} pool has {size} of at least {self.least} members, and for {now - self._short_since:.0f} s the "
                "cluster had no room for another; add nodes, lower the pool's minimum, or wait longer with resources.wait_s"
            )
