"""Our part in Ray Train's controller: a loss told from a mistake, and a checkpoint before a resize."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2.api.exceptions import PreemptionError

from cluster.errors import last_line

logger = logging.getLogger(__name__)

SAVE_PATIENCE_S = 1800.0
"""How long a resize waits for the update that runs and its checkpoint; after that it throws away what was not saved. A group
that hangs is not waited for, see :meth:`cluster.monitor.Monitor.hangs`."""

PREEMPTION_SAVE_S = 10.0
"""Time between checkpoints once a node of the group is announced to go: its last moment comes without another word."""

WAITING = ("INITIALIZING", "RESTARTING", "RESCHEDULING", "SCHEDULING")
"""States of Ray Train's controller in which there is no group yet, or none any more."""


class GroupLost(OSError):
    """The group was lost more often than allowed, or the cluster had no room for it for too long."""


class GroupCallback(ControllerCallback, WorkerGroupCallback):
    """Runs in Ray Train's controller: tells the monitor what happens, and ends a run whose error would come again.

    Args:
        fatal: exceptions that a restart cannot cure.
    """

    def __init__(self, monitor: Any, fatal: tuple[type[BaseException], ...], max_restarts: int):
        self.monitor = monitor
        self.fatal = fatal
        self.max_restarts = max_restarts
        self.start_failures = 0
        self.errors: dict[int, Exception] = {}
        self.next_save = float("inf")

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        self.errors = dict(worker_group_status.errors)
        if time.monotonic() >= self.next_save:
            self.next_save = time.monotonic() + PREEMPTION_SAVE_S
            if not ray.get(self.monitor.wish_pending.remote()):
                ray.get(self.monitor.wish.remote("save"))

    def before_controller_execute_failure_decision(self, failure_decision: Any) -> None:
        mistake = find_mistake(self.errors, self.fatal)
        if mistake is not None:
            raise mistake

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        name = current_state._state_type.state_name
        if type(previous_state) is type(current_state):
            if name in WAITING:
                time.sleep(0.5)  # the controller would ask for room again at once, for ever
            return
        ray.get(self.monitor.entered.remote(name, ray.get_runtime_context().current_actor))
        self.next_save = 0.0 if name == "PREEMPTING" else float("inf")
        if name == "RESIZING":
            self._save_and_leave(current_state.scaling_decision.num_workers)
        elif name == "RESTARTING":
            error = current_state.training_failed_error
            gone = isinstance(error, PreemptionError)
            why = "a node was taken away" if gone else describe(self.errors) or last_line(error)
            ray.get(self.monitor.ended.remote("restart", why))
            _look_again_for_nodes()
        elif name == "RESCHEDULING":
            error = getattr(current_state.training_failed_error, "controller_failure", None)
            self.start_failures += isinstance(error, WorkerGroupStartupFailedError)
            if self.start_failures > self.max_restarts:
                raise GroupLost(f"the workers' processes do not start: {last_line(error)}")

    def _save_and_leave(self, workers: int) -> None:
        if ray.get(self.monitor.wish.remote("leave")):
            deadline = time.monotonic() + SAVE_PATIENCE_S
            while ray.get(self.monitor.wish_pending.remote()) and time.monotonic() < deadline:
                if ray.get(self.monitor.hangs.remote()):
                    logger.warning("the group does not answer; what it has not saved is lost")
                    break
                time.sleep(0.1)
        ray.get(self.monitor.ended.remote("resize", f"the cluster has room for {workers} workers"))


def _look_again_for_nodes() -> None:
    """Have Ray Train's account of the cluster renewed, which may be 20 s old and hold the node that has just died."""
    try:
        coordinator = ray.get_actor("AutoscalingCoordinator", namespace="AutoscalingCoordinator")
        ray.get(coordinator.get_reserved_resources.remote("", recompute=True), timeout=5)
    except (
        ValueError,
        TypeError,
        RayError,
    ) as error:  # no such actor, or another signature: it finds out by itself later
        logger.info("the account of the cluster was not renewed: %s", error)


def find_mistake(errors: Mapping[int, BaseException], fatal: tuple[type[BaseException], ...]) -> BaseException | None:
    """The error that a restart would only bring back; None where a process or a connection was lost.

    A process that is gone makes the others fail in their collectives, whatever they raise then. Other errors of the
    runtime (collectives, CUDA) are worth another try, but not memory that is too small.
    """
    if any(isinstance(e, (WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError)) for e in errors.values()):
        return None
    for error in errors.values():
        if isinstance(error, (RayError, ConnectionError, TimeoutError)):
            continue
        if isinstance(error, fatal) or not isinstance(error, RuntimeError) or "OutOfMemory" in type(error).__name__:
            return error
    return None


def describe(errors: Mapping[int, BaseException]) -> str:
    """One line on what happened to a group, a process that died before what the others said then."""
    lost = (WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError)
    for rank, error in sorted(errors.items(), key=lambda item: not isinstance(item[1], lost)):
        if isinstance(error, lost):
            cause = getattr(error, "health_check_failure", error)
            died = isinstance(cause, RayActorError)
            return f"worker {rank}'s process died" if died else f"worker {rank} does not answer: {last_line(cause)}"
        return f"worker {rank}: {type(error).__name__}: {last_line(error)}"
    return ""
