"""A group of training processes on Ray Train: begun anew after a loss and resized with the cluster, with an account of both.

Ray Train decides when a group starts, fails and changes its size. What this module adds: a loss is told from a mistake (which is
not tried again), a checkpoint is written before a resize, and a stop request of the driver reaches the group.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.controller import WAITING, GroupCallback, GroupLost, describe
from cluster.errors import cause
from cluster.monitor import GroupStatus, Monitor
from configs import ConfigError

logger = logging.getLogger(__name__)

RESIZE_INTERVAL_S = 30.0
"""How often a running group is compared with what the cluster could hold."""

COLLECTIVE_TIMEOUT_S = 7200
"""How long a process waits for the others in an exchange: rank 0 writes checkpoints and exports meanwhile, 48 GB at 4B."""

LEAST_WAIT_S = 600.0
"""How long there may be no group before a run ends, at least: after a loss, nodes that die are noticed late and start slowly.
What can never fit was refused before (:func:`check_room`)."""

MONITOR_PATIENCE_S = 300.0
"""How long the monitor may be silent, on a driver's node that is busy with something else."""


@dataclass(frozen=True)
class GroupSize:
    """How many processes, and what each reserves of the cluster."""

    workers: int
    min_workers: int  # 0: exactly ``workers``
    cpus: float
    gpus: float

    @property
    def least(self) -> int:
        return self.min_workers or self.workers

    @property
    def bundle(self) -> dict[str, float]:
        return {kind: amount for kind, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount > 0}


def run_group(
    train: Callable[[dict[str, Any]], Any],
    settings: dict[str, Any],
    *,
    name: str,
    size: GroupSize,
    max_restarts: int,
    wait_s: float,
    fatal: tuple[type[BaseException], ...],
    watch: Callable[[GroupStatus], None],
    stop_requested: Callable[[], bool],
    restarts: int = 0,
    seconds_lost: float = 0.0,
    saved: int = 0,
    environment: dict[str, str] | None = None,
) -> Any:
    """Run ``train`` in every process of a group, from its last checkpoint again after each loss; the first one's result.

    Args:
        train: an importable function; gets ``settings`` with ``monitor``, and finds ``torch.distributed`` initialized.
        wait_s: how long the cluster may be without room for the group.
        fatal: what is not worth a restart; it is raised here as it was raised there.
        watch: called a few times a second in this thread.
        restarts, seconds_lost, saved: of the run so far: losses, what they cost, and the update of its newest checkpoint.
        environment: variables that the group's first process asks the monitor for.

    Returns:
        What ``train`` returned in the first process, or None when the run was stopped while there was no group.

    Raises:
        GroupLost: more than ``max_restarts`` losses, or no room for ``wait_s``.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    monitor: Any = (
        ray.remote(Monitor).options(num_cpus=0, scheduling_strategy=here).remote(restarts, seconds_lost, saved)
    )
    ray.get(monitor.give.remote(environment or {}))
    # A group that does not fit any more (a node has just died) is given up for a smaller one after this long.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "1")
    with tempfile.TemporaryDirectory(prefix="ray-train-") as storage:  # Ray Train's own; our checkpoints are not its
        trainer = TorchTrainer(
            train,
            train_loop_config={**settings, "monitor": monitor},
            scaling_config=ScalingConfig(
                num_workers=(size.min_workers, size.workers) if size.min_workers else size.workers,
                use_gpu=size.gpus > 0,
                resources_per_worker=size.bundle or {"memory": 1},  # Ray refuses empty bundles; a byte is on every node
                elastic_resize_monitor_interval_s=RESIZE_INTERVAL_S,
            ),
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if size.gpus > 0 else "gloo", timeout_s=COLLECTIVE_TIMEOUT_S
            ),
            run_config=RunConfig(
                name=name,
                storage_path=storage,
                failure_config=FailureConfig(max_failures=max_restarts),
                callbacks=[GroupCallback(monitor, fatal, max_restarts)],  # type: ignore[list-item]
            ),
        )
        fit = _Fit(trainer)
        try:
            return _follow(fit, monitor, size, wait_s, watch, stop_requested)
        except BaseException:
            _abort(monitor)
            raise
        finally:
            ray.kill(monitor)


class _Fit(threading.Thread):
    """``trainer.fit()`` in a thread of its own: in the main one it would take over Ctrl-C."""

    def __init__(self, trainer: TorchTrainer):
        super().__init__(daemon=True, name="ray-train")
        self.trainer = trainer
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.trainer.fit().return_value
        except BaseException as error:
            self.error = error


def _follow(
    fit: _Fit,
    monitor: Any,
    size: GroupSize,
    wait_s: float,
    watch: Callable[[GroupStatus], None],
    stop_requested: Callable[[], bool],
) -> Any:
    ear = _Ear(monitor)
    told, waiting_since, shown_at = False, time.monotonic(), time.monotonic()
    while fit.is_alive():
        fit.join(0.2)
        status = ear.listen()
        if status is None:
            continue
        watch(status)
        if stop_requested() and not told:
            ray.get(monitor.stop.remote())
            told = True
        now = time.monotonic()
        if told and not status.running:
            _abort(monitor)
            return None
        if status.running or status.state not in WAITING:  # a group that loads the model has found its room
            waiting_since = shown_at = now
        elif now - shown_at > 15:
            shown_at = now
            logger.info("no group for %.0f s (%s); training needs %s", now - waiting_since, status.state, _need(size))
            if now - waiting_since > max(wait_s, LEAST_WAIT_S):
                raise GroupLost(f"no group for {now - waiting_since:.0f} s; training needs {_need(size)}")
    if (status := ear.listen()) is not None:
        watch(status)
    if fit.error is not None:
        raise _what_was_raised(fit.error, size)
    return fit.result


class _Ear:
    """Hears the monitor, and bears with one that is slow to answer."""

    def __init__(self, monitor: Any):
        self._monitor = monitor
        self._asked: Any = None
        self._heard_at = time.monotonic()

    def listen(self) -> GroupStatus | None:
        """The status, or None where there is no answer yet: the question stands, for events are handed out once.

        Raises:
            GroupLost: no answer for ``MONITOR_PATIENCE_S``.
        """
        self._asked = self._monitor.look.remote() if self._asked is None else self._asked
        try:
            status: Any = ray.get(self._asked, timeout=30)
        except GetTimeoutError as error:
            silence = time.monotonic() - self._heard_at
            if silence > MONITOR_PATIENCE_S:
                raise GroupLost(f"the run's monitor has not answered for {silence:.0f} s") from error
            logger.warning("the run's monitor has not answered for %.0f s; training goes on", silence)
            return None
        self._asked, self._heard_at = None, time.monotonic()
        return status


def _need(size: GroupSize) -> str:
    each = " and ".join(f"{amount:g} {kind}" for kind, amount in size.bundle.items()) or "nothing reserved"
    return f"{size.least} workers of {each}; the cluster has room for {count_room(size.bundle)}"


def check_room(size: GroupSize) -> None:
    """Refuse a group that a cluster without an autoscaler cannot hold.

    Raises:
        ConfigError: naming what is needed and what there is.
    """
    if count_room(size.bundle) < size.least:
        raise ConfigError(f"training needs {_need(size)}; lower parallel.* or resources.*, or add nodes")


def count_room(bundle: Mapping[str, float]) -> int:
    """How many processes of this size the living nodes could hold if nothing else ran on them."""
    if not bundle:
        return 10**6
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(int(min((node.get(kind, 0.0) + 1e-9) // amount for kind, amount in bundle.items())) for node in nodes)


def _what_was_raised(error: BaseException, size: GroupSize) -> BaseException:
    if isinstance(error, WorkerGroupError):
        return GroupLost(
            f"the group of {size.workers} was lost again and trainer.max_restarts allows no more: "
            f"{describe(error.worker_failures)}; the last checkpoint stands"
        )
    error = cause(error)
    while isinstance(error, ControllerError):
        error = cause(error.controller_failure)
    return error


def _abort(monitor: Any) -> None:
    """End the controller and its group; both may be gone already."""
    try:
        status: Any = ray.get(monitor.look.remote(), timeout=30)
        controller = status.controller
        if controller is not None:
            ray.get(controller.abort.remote(), timeout=20)
    except (RayError, TimeoutError):
        pass
