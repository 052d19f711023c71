"""Starting a stage that trains one model: in this process, or in a group of processes on Ray, with what surrounds both."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from actors.device import place
from configs import ConfigError
from configs.errors import EXPECTED_ERRORS
from configs.parallel import resolve_strategy
from configs.schema import RerankerConfig, Stage1Config
from objectives.checkpoint import read_checkpoint_state
from trainers.events import EventLog
from trainers.interrupt import Interrupted, StopRequest
from trainers.loop import LoopOf
from trainers.run_folder import RunFolder, with_absolute_paths
from trainers.session import Command, LocalSession, progress_bar
from trainers.tracking import wandb_environment

logger = logging.getLogger(__name__)

InGroup = Callable[[dict[str, Any]], dict[str, Any]]


def run_stage(
    config: Stage1Config | RerankerConfig,
    identity: dict[str, Any],
    total: int,
    *,
    title: str,
    loop_of: LoopOf,
    in_group: InGroup,
) -> RunFolder:
    """Train to the end, or go on from the newest checkpoint of the run's folder.

    One worker without sharding trains in this process. Otherwise ``parallel.workers`` processes do, on the Ray cluster this
    process is connected to, that of ``RAY_ADDRESS`` (a Ray job's), or one of its own on this machine; the run's folder must
    then lie on storage that all nodes share.

    Args:
        identity: what must be as it was for a run to go on, see :func:`trainers.run_folder.check_identity`.
        total: updates of the run.
        title: what stands before the progress bar.
        loop_of: makes the loop of this process.
        in_group: an importable function that runs the loop in every process of a group.

    Raises:
        ConfigError, CheckpointError: before the first update, naming what is wrong.
        GroupLost: processes were lost more than ``trainer.max_restarts`` times, or there was no room for them.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    run = RunFolder.of(config.run)
    with run.lock():
        checkpoint = run.checkpoint_to_resume(identity)
        if resolve_strategy(config.parallel, "deepspeed") == "single":
            device = place(config.run.device, config.run.threads, config.run.seed)
            with LocalSession(title, EventLog(run.events)) as session:
                loop = loop_of(config, device, session, identity)
                run.write_config(config)
                step, command = loop.run_to_end()
            stopped = command == Command.STOP
        else:
            step = read_checkpoint_state(checkpoint)["step"] if checkpoint else 0
            step, stopped = _train_on_ray(config, run, identity, step, total, title, in_group)
    if stopped:
        raise Interrupted(f"stopped at update {step} of {total}; run it again to go on: {run.root}")
    return run


def _train_on_ray(
    config: Stage1Config | RerankerConfig,
    run: RunFolder,
    identity: dict[str, Any],
    step: int,
    total: int,
    title: str,
    in_group: InGroup,
) -> tuple[int, bool]:
    """Train in a group; returns the last update made and whether the run was stopped before its end."""
    from cluster.controller import GroupLost
    from cluster.elastic import GroupSize, check_room, run_group
    from cluster.monitor import GroupStatus
    from cluster.placement import ray_session

    parallel, resources = config.parallel, config.resources
    size = GroupSize(parallel.workers, parallel.min_workers, resources.worker_cpus, resources.worker_gpus)
    if config.run.device == "cuda" and not size.gpus:
        raise ConfigError(
            "run.device is 'cuda' and resources.worker_gpus is 0; expected the GPUs of one worker, such as 1"
        )
    if size.gpus != int(size.gpus):
        raise ConfigError(
            f"resources.worker_gpus is {size.gpus:g}; expected a whole number, such as 1: NCCL refuses two workers on one GPU"
        )
    if parallel.min_workers and not size.bundle:
        raise ConfigError(
            "parallel.min_workers is set and resources.worker_cpus and resources.worker_gpus are 0; expected what one worker "
            "reserves: the number of workers follows from the room for them"
        )
    shared = with_absolute_paths(config)
    if not size.gpus:
        shared.run.device = "cpu"
    events = EventLog(run.events)
    with ray_session() as may_grow, contextlib.ExitStack() as stack:
        if not may_grow:
            check_room(size)
        run.write_config(config)
        stop = stack.enter_context(StopRequest())
        bar: tqdm = stack.enter_context(contextlib.closing(progress_bar(title, total, step)))

        members: tuple[str, ...] = ()

        def watch(status: GroupStatus) -> None:
            nonlocal members
            for event in status.events:
                events.add(**event)
            if status.members != members:
                members = status.members
                logger.info(
                    "training on %d workers from update %d on: %s", len(members), status.step, ", ".join(members)
                )
            if status.step != bar.n:
                shown = {name: f"{value:.3f}" for name, value in status.shown.items()}
                bar.set_postfix({**shown, "workers": status.workers}, refresh=False)
                bar.update(status.step - bar.n)  # backwards after a loss

        try:
            outcome = run_group(
                in_group,
                {"config": shared, "identity": identity},
                name=config.run.name,
                size=size,
                max_restarts=config.trainer.max_restarts,
                wait_s=resources.wait_s if may_grow else 0.0,
                fatal=EXPECTED_ERRORS,
                watch=watch,
                stop_requested=lambda: stop.requested,
                saved=step,
                restarts=events.count("restart"),
                seconds_lost=events.total("seconds"),
                environment=wandb_environment(),
            )
        except GroupLost as error:
            events.add("lost", str(error))
            raise
    if outcome is None:  # stopped while there was no group
        newest = run.latest_checkpoint()
        return (read_checkpoint_state(newest)["step"] if newest else 0), True
    return outcome["step"], outcome["stopped"]
