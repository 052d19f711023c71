"""The loop of a stage that trains one model: the same in one process and in every process of a group."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from actors.device import place
from configs import to_yaml
from configs.schema import OptimizerConfig, RerankerConfig, Stage1Config
from objectives.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from objectives.engine import Engine
from objectives.optimizers import learning_rate
from trainers.run_folder import RunFolder, wait_until
from trainers.saving import Saving
from trainers.session import Command, RemoteSession, Session
from trainers.tracking import Tracker

logger = logging.getLogger(__name__)


class Schedule(Protocol):
    """Which records make up which update; ``total`` updates in all."""

    total: int

    def after(self, step: int) -> Iterator[Any]:
        """The batches of updates ``step + 1`` to the last: each with ``step`` (from 1), ``records`` and ``collisions``."""
        ...


class TrainingLoop(ABC):
    """All updates of a run after its newest checkpoint, then exports and plots.

    Every process goes through the same batches and builds each of them whole; the objective divides the work. Rank 0 alone
    has a session, logs, and writes.

    Attributes:
        stage: the stage's name in a tracker's settings.
        progress: what a checkpoint keeps beside weights and optimizer state.
    """

    stage = ""

    def __init__(
        self,
        config: Stage1Config | RerankerConfig,
        schedule: Schedule,
        engine: Engine,
        session: Session | None,
        identity: dict[str, Any],
    ):
        self.config, self.schedule, self.engine, self.session = config, schedule, engine, session
        self.run = RunFolder.of(config.run)
        self.progress: dict[str, Any] = {"step": 0, "wandb_run_id": "", "collisions": 0, "identity": identity}
        self.saving = Saving(config.trainer.save_freq, self._save_failed)

    # -- what a stage does --------------------------------------------------------------------------------------------------

    @abstractmethod
    def _backward(self, step: int, records: Any) -> dict[str, float]:
        """Accumulate the gradients of update ``step`` over its whole batch; the loss terms, ``loss/total`` among them."""

    @abstractmethod
    def _measure(self) -> dict[str, float]:
        """Curves on held-out requests, every ``trainer.test_freq`` updates; empty where nothing is held out."""

    @abstractmethod
    def _finish(self) -> None:
        """Exports and plots, after the last update."""

    def _shown(self, metrics: dict[str, float]) -> dict[str, float]:
        """The few numbers beside the progress bar."""
        return {"loss": metrics["loss/total"]}

    # -- what all of them do ------------------------------------------------------------------------------------------------

    def run_to_end(self) -> tuple[int, Command]:
        """Train; returns the last update made, and the command that ended the loop before its time, or ``GO``."""
        ranks, total = self.engine.collectives, self.schedule.total
        checkpoint = ranks.broadcast(self.run.newest_checkpoint(self.session.newest_saved()) if self.session else None)
        if checkpoint is not None:
            self.progress |= load_checkpoint(checkpoint, self.engine)
            logger.info("resuming %s at update %d of %d", checkpoint, self.progress["step"], total)
        session, step = self.session, self.progress["step"]
        members = ranks.gather_objects(f"{socket.gethostname()} (process {os.getpid()})")
        command = self._agree(session.started(step, total, members) if session else Command.GO)
        with contextlib.ExitStack() as stack:
            tracker = stack.enter_context(contextlib.closing(self._open_tracker())) if session else None
            for batch in self.schedule.after(step):
                if command >= Command.LEAVE:
                    return self.progress["step"], command
                metrics = self._update(batch.step, batch.records)
                self.progress["step"] = batch.step
                self.progress["collisions"] += batch.collisions
                metrics["sampler/collisions"] = self.progress["collisions"]
                last = batch.step == total
                if _due(batch.step, self.config.trainer.test_freq, last):
                    metrics |= self._measure()
                if tracker is not None:
                    tracker.log(batch.step, metrics)
                command = self._agree(session.updated(batch.step, self._shown(metrics)) if session else Command.GO)
                if last or command >= Command.SAVE or self.saving.due(batch.step):
                    self._save(must=last or command >= Command.LEAVE)
        if session is not None:
            session.finished()
        self._finish()
        return total, Command.GO

    def _update(self, step: int, records: Any) -> dict[str, float]:
        """Update ``step``: gradients over the whole batch, clipping, and the optimizer."""
        start = time.perf_counter()
        optim: OptimizerConfig = self.config.optim
        metrics = self._backward(step, records)
        metrics["train/lr"] = learning_rate(optim, step, self.schedule.total)
        self.engine.set_learning_rate(metrics["train/lr"])
        metrics["train/grad_norm"] = self.engine.step(optim.clip_grad)
        metrics["train/workers"] = self.engine.collectives.size
        metrics |= self.session.curves if self.session else {}
        metrics["time/step"] = time.perf_counter() - start
        return metrics

    def _agree(self, command: Command) -> Command:
        return Command(self.engine.collectives.max_int(int(command)))

    def _save(self, must: bool) -> None:
        step, keep = self.progress["step"], self.config.trainer.max_ckpt_to_keep
        save = partial(save_checkpoint, self.run.checkpoints, step, self.engine, self.progress, keep)
        saved = self.saving.attempt(save, must=must)
        if saved and self.session is not None:
            self.session.saved(step)

    def _save_failed(self, why: str) -> None:
        if self.session is not None:
            self.session.save_failed(self.progress["step"], why)

    def _open_tracker(self) -> Tracker:
        tracker = Tracker(
            self.run.metrics,
            self.config.tracking,
            self.config.run.name,
            {"stage": self.stage, "yaml": to_yaml(self.config)},
            resume_step=self.progress["step"],
            run_id=self.progress["wandb_run_id"],
        )
        self.progress["wandb_run_id"] = tracker.run_id
        return tracker


LoopOf = Callable[[Any, str, Session | None, dict[str, Any]], TrainingLoop]
"""``(config, device, session, identity)`` to the loop of a stage, whose data it reads."""


def loop_in_group(settings: dict[str, Any], loop_of: LoopOf) -> dict[str, Any]:
    """What every process of a Ray Train group runs: the loop, from the newest checkpoint of the run.

    Args:
        settings: ``config`` with absolute paths, ``identity`` of the run, and ``monitor``, the driver's ear.
    """
    config: Stage1Config | RerankerConfig = settings["config"]
    run = RunFolder.of(config.run)
    session = RemoteSession(settings["monitor"]) if dist.get_rank() == 0 else None
    if session is not None and not wait_until((run.root / "config.yaml").is_file):
        raise CheckpointError(f"{run.root} is not what the driver sees there; run.root must lie on shared storage")
    device = place(config.run.device, config.run.threads, config.run.seed)
    if device == "cuda":
        device = f"cuda:{torch.cuda.current_device()}"  # Ray Train has chosen this process's own
    step, command = loop_of(config, device, session, settings["identity"]).run_to_end()
    return {"step": step, "stopped": command == Command.STOP}


def _due(step: int, every: int, last: bool) -> bool:
    return every > 0 and (last or step % every == 0)
