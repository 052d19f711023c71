"""What is known of a training group while it runs: kept beside the driver, told by the group and by Ray Train's controller."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

LEAST_PATIENCE_S = 300.0
"""A group that has said nothing for less than this is never taken for one that hangs."""


@dataclass
class GroupStatus:
    """What the driver shows: where training is, and what happened since it last asked."""

    running: bool = False
    state: str = "INITIALIZING"
    step: int = 0
    total: int = 0
    workers: int = 0
    members: tuple[str, ...] = ()
    shown: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    controller: Any = None


class Monitor:
    """What driver, controller and the group's first process tell each other. An actor on the driver's node."""

    def __init__(self, restarts: int, seconds_lost: float, saved: int):
        """
        Args:
            restarts, seconds_lost: of the run so far, in earlier processes.
            saved: the update of its newest checkpoint.
        """
        self.status = GroupStatus(step=saved)
        self.restarts = restarts
        self.seconds_lost = seconds_lost
        self._environment: dict[str, str] = {}
        self._ends: list[tuple[str, str]] = []  # what has ended groups since the last one started: the event, and why
        self._finished = False
        self._last_sign = 0.0  # when the last update ended
        self._heard_at = 0.0  # when the group last said something, and how long it has been silent at most
        self._longest_silence = 0.0
        self._saved = saved
        self._wish = ""  # "save" or "leave"
        self._told = False
        self._stop = False

    # -- the group's first process ----------------------------------------------------------------------------------------

    def started(self, step: int, total: int, members: list[str]) -> dict[str, Any]:
        """A group is about to make update ``step + 1``; returns what to do, the newest saved step, and the recovery curves."""
        before, workers = self.status, len(members)
        if self._ends and self._saved <= step:
            seconds = round(time.time() - self._last_sign, 1) if self._last_sign else 0.0
            self.seconds_lost += seconds
            change = "" if workers == before.workers else f"{before.workers} -> {workers} workers, "
            self.status.events.append(
                {
                    "event": "restart" if ("restart" in dict(self._ends)) else "resize",
                    "detail": f"{', then '.join(why for _, why in self._ends)}; {change}goes on after update {step}",
                    "step": step,
                    "workers_before": before.workers,
                    "workers": workers,
                    "updates_lost": max(before.step - step, 0),
                    "seconds": seconds,
                }
            )
        self._ends, self._finished = [], False
        self._heard_at = time.monotonic()
        self.status = replace(before, running=True, step=step, total=total, workers=workers, members=tuple(members))
        curves = {"recovery/restarts": float(self.restarts), "recovery/seconds_lost": self.seconds_lost}
        return {"command": self._command(), "saved": self._saved, "curves": curves}

    def updated(self, step: int, shown: dict[str, float]) -> str:
        """An update is done; returns what to do next: ``go``, ``save``, ``leave`` (save, then end) or ``stop`` (the same)."""
        self.status.step, self.status.shown = step, shown
        self._last_sign = time.time()
        self._heard()
        return self._command()

    def saved(self, step: int) -> None:
        """A checkpoint is complete."""
        self._heard()
        self._saved = max(self._saved, step)
        if self._told:
            self._wish, self._told = "", False

    def newest_saved(self) -> int:
        """The update of the newest checkpoint that is complete."""
        return self._saved

    def save_failed(self, step: int, why: str) -> None:
        """A checkpoint could not be written, and training goes on."""
        self._heard()
        self.status.events.append({"event": "save_failed", "detail": why, "step": step})

    def finished(self) -> None:
        """All updates are made and saved: there is nothing that a wish could add."""
        self._wish, self._told, self._finished = "", False, True

    def environment(self) -> dict[str, str]:
        """Variables of the driver that the process needs and that must not lie in a runtime environment, which Ray logs."""
        return self._environment

    def _heard(self) -> None:
        now = time.monotonic()
        self._longest_silence = max(self._longest_silence, now - self._heard_at)
        self._heard_at = now

    def _command(self) -> str:
        self._told = bool(self._wish)
        return "stop" if self._stop else self._wish or "go"

    # -- the controller ---------------------------------------------------------------------------------------------------

    def entered(self, state: str, controller: Any = None) -> None:
        """The controller's state changed."""
        self.status.state = state
        self.status.controller = controller or self.status.controller

    def ended(self, event: str, why: str) -> None:
        """The group is gone, or about to be: ``restart`` after a loss, ``resize`` on purpose."""
        self._ends.append((event, why))
        self.restarts += event == "restart"
        self._wish, self._told = "", False
        self.status.running = False

    def wish(self, what: str) -> bool:
        """Ask the group to ``save`` or ``leave`` after its current update; False where none is making updates."""
        self._wish, self._told = what if self.status.running and not self._finished else "", False
        return bool(self._wish)

    def wish_pending(self) -> bool:
        """Whether the group has still to do what was wished."""
        return bool(self._wish)

    def hangs(self) -> bool:
        """Whether a wish has not even reached the group after far more than an update takes; one that saves has heard it."""
        silence = time.monotonic() - self._heard_at
        return not self._told and silence > max(LEAST_PATIENCE_S, 3 * self._longest_silence)

    # -- the driver -------------------------------------------------------------------------------------------------------

    def give(self, environment: dict[str, str]) -> None:
        """Hand over what :meth:`environment` returns."""
        self._environment = environment

    def stop(self) -> None:
        """End the run after the current update, with a checkpoint."""
        self._stop = True

    def look(self) -> GroupStatus:
        """The status; its events are handed out once."""
        status = replace(self.status)
        self.status = replace(self.status, events=[])
        return status
