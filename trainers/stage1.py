"""Stage I: teach the retriever from the teacher's capability reasoning, in this process or in a group of them on Ray.

``python -m trainers.stage1 CONFIG [key=value ...]`` runs it, also as a Ray job; ``skillreason train stage1`` is the same.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from tqdm import tqdm

from actors.device import place
from configs import ConfigError, Stage1Config
from configs.errors import EXPECTED_ERRORS
from configs.parallel import resolve_strategy
from models.tokenization import ModelTokenizer
from objectives.checkpoint import read_checkpoint_state
from trainers.events import EventLog
from trainers.interrupt import Interrupted, StopRequest
from trainers.lengths import check_lengths
from trainers.run_folder import RunFolder, check_input_files, run_identity, with_absolute_paths
from trainers.session import Command, LocalSession, progress_bar
from trainers.stage1_loop import Stage1Data, Stage1Loop, train_in_group
from trainers.tracking import wandb_environment

logger = logging.getLogger(__name__)


def train_stage1(config: Stage1Config) -> RunFolder:
    """Run Stage I to its end, or go on from the newest checkpoint of the run's folder.

    One worker without sharding trains in this process. Otherwise ``parallel.workers`` processes do, on the Ray cluster this
    process is connected to, that of ``RAY_ADDRESS`` (a Ray job's), or one of its own on this machine; the run's folder must
    then lie on storage that all nodes share. The batch of an update is the configuration's, whatever the number of processes.

    Raises:
        ConfigError, RecordError, BackboneError, CheckpointError: before the first update, naming what is wrong.
        FloatingPointError: a loss or gradient that is not finite; the last checkpoint stands.
        GroupLost: processes were lost more than ``trainer.max_restarts`` times, or there was no room for them.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    check_input_files(config)
    run = RunFolder.of(config.run)
    data = Stage1Data.read(config)
    tokenizer = ModelTokenizer.load(config.model.path)
    tokenizer.prompt_style = config.data.rationale_prompt or tokenizer.prompt_style
    check_lengths(config, tokenizer)
    if config.loss.lambda_kl > 0 and data.schedule.total <= config.loss.kl_start_update:
        logger.warning(
            "loss.kl_start_update is %d and the run has %d updates: the KL term of eq. 5 is never switched on",
            config.loss.kl_start_update,
            data.schedule.total,
        )
    identity = run_identity(config, data.training)
    with run.lock():
        checkpoint = run.checkpoint_to_resume(identity)
        if resolve_strategy(config.parallel, "deepspeed") == "single":
            device = place(config.run.device, config.run.threads, config.run.seed)
            with LocalSession("Stage I", EventLog(run.events)) as session:
                loop = Stage1Loop(config, data, device, session, identity)
                run.write_config(config)
                step, command = loop.run_to_end()
            stopped = command == Command.STOP
        else:
            step = read_checkpoint_state(checkpoint)["step"] if checkpoint else 0
            step, stopped = _train_on_ray(config, run, identity, step, data.schedule.total)
    if stopped:
        raise Interrupted(f"stopped at update {step} of {data.schedule.total}; run it again to go on: {run.root}")
    return run


def _train_on_ray(
    config: Stage1Config, run: RunFolder, identity: dict[str, Any], step: int, total: int
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
        bar: tqdm = stack.enter_context(contextlib.closing(progress_bar("Stage I", total, step)))

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
                train_in_group,
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


if __name__ == "__main__":
    from trainers.main import main

    main(Stage1Config, train_stage1)
