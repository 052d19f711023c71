"""The loop of Stage I (eqs. 2-7), the same in one process and in every process of a group."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from actors.device import place
from configs import Stage1Config, to_yaml
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import Stage1Record, read_stage1
from evaluation.plots import plot_curves
from models.backbone import Backbone
from models.export import export_causal_lm, export_retriever
from models.views import View
from objectives.checkpoint import CheckpointError, checkpoint_step, load_checkpoint, save_checkpoint
from objectives.engine import Engine, build_engine
from objectives.optimizers import learning_rate
from objectives.stage1 import Stage1Collator, stage1_backward
from retrieval.retriever import write_fusion_weight
from trainers.batches import BatchSchedule
from trainers.run_folder import RunFolder
from trainers.saving import Saving
from trainers.session import Command, RemoteSession, Session
from trainers.tracking import Tracker, read_metrics
from trainers.validation import HeldOutSet, build_heldout_set, split_heldout

logger = logging.getLogger(__name__)

CACHE_S = 90.0
"""NFS keeps what it knows of a folder for up to a minute (``acdirmax``)."""


@dataclass(frozen=True)
class Stage1Data:
    """What a run trains on, and in which order."""

    training: list[Stage1Record]
    heldout: list[Stage1Record]
    exclusions: ExclusionGraph | None
    schedule: BatchSchedule[Stage1Record]

    @classmethod
    def read(cls, config: Stage1Config) -> Stage1Data:
        """Read the files that the configuration names."""
        exclusions = ExclusionGraph.read(config.data.exclusions_file) if config.data.exclusions_file else None
        training, heldout = split_heldout(read_stage1(config.data.train_file), config.data.heldout_fraction)
        return cls(training, heldout, exclusions, BatchSchedule.of(config, training, exclusions))


def train_in_group(settings: dict[str, Any]) -> dict[str, Any]:
    """What every process of a Ray Train group runs: the loop, from the newest checkpoint of the run.

    Args:
        settings: ``config`` with absolute paths, ``identity`` of the run, and ``monitor``, the driver's ear.
    """
    config: Stage1Config = settings["config"]
    run = RunFolder.of(config.run)
    session = RemoteSession(settings["monitor"]) if dist.get_rank() == 0 else None
    if session is not None and not wait_until((run.root / "config.yaml").is_file):
        raise CheckpointError(f"{run.root} is not what the driver sees there; run.root must lie on shared storage")
    device = place(config.run.device, config.run.threads, config.run.seed)
    if device == "cuda":
        device = f"cuda:{torch.cuda.current_device()}"  # Ray Train has chosen this process's own
    step, command = Stage1Loop(config, Stage1Data.read(config), device, session, settings["identity"]).run_to_end()
    return {"step": step, "stopped": command == Command.STOP}


class Stage1Loop:
    """All updates of a run after its newest checkpoint, then exports and plots.

    Every process goes through the same batches and builds each of them whole; the objective divides the work. Rank 0 alone
    has a session, logs, and writes.
    """

    def __init__(
        self, config: Stage1Config, data: Stage1Data, device: str, session: Session | None, identity: dict[str, Any]
    ):
        self.config, self.data, self.session = config, data, session
        self.run = RunFolder.of(config.run)
        backbone = Backbone.load(config.model.path, dtype=config.model.dtype, device=device)
        backbone.tokenizer.prompt_style = config.data.rationale_prompt or backbone.tokenizer.prompt_style
        self.engine: Engine = build_engine(backbone, config.optim, config.parallel, default_strategy="deepspeed")
        self.collate = Stage1Collator(
            backbone,
            config.data,
            data.exclusions.adjacency if data.exclusions else None,
            _targets_by_query(data.training),
        )
        self.validation = build_heldout_set(data.heldout, data.training, config.validation)
        self.progress: dict[str, Any] = {"step": 0, "wandb_run_id": "", "collisions": 0, "identity": identity}
        self.saving = Saving(config.trainer.save_freq, self._save_failed)

    def run_to_end(self) -> tuple[int, Command]:
        """Train; returns the last update made, and the command that ended the loop before its time, or ``GO``."""
        ranks, total = self.engine.collectives, self.data.schedule.total
        checkpoint = ranks.broadcast(self._latest_checkpoint() if self.session else None)
        if checkpoint is not None:
            self.progress |= load_checkpoint(checkpoint, self.engine)
            logger.info("resuming %s at update %d of %d", checkpoint, self.progress["step"], total)
        session, step = self.session, self.progress["step"]
        members = ranks.gather_objects(f"{socket.gethostname()} (process {os.getpid()})")
        command = self._agree(session.started(step, total, members) if session else Command.GO)
        with contextlib.ExitStack() as stack:
            tracker = stack.enter_context(contextlib.closing(self._open_tracker())) if session else None
            for batch in self.data.schedule.after(step):
                if command >= Command.LEAVE:
                    return self.progress["step"], command
                metrics = self._update(batch.step, batch.records)
                self.progress["step"] = batch.step
                self.progress["collisions"] += batch.collisions
                metrics["sampler/collisions"] = self.progress["collisions"]
                last = batch.step == total
                if self.validation is not None and _due(batch.step, self.config.trainer.test_freq, last):
                    metrics |= self._recall(self.validation)
                if tracker is not None:
                    tracker.log(batch.step, metrics)
                shown = {"loss": metrics["loss/total"], "acc": metrics.get("train/accuracy_raw", float("nan"))}
                command = self._agree(session.updated(batch.step, shown) if session else Command.GO)
                if last or command >= Command.SAVE or self.saving.due(batch.step):
                    self._save(must=last or command >= Command.LEAVE)
        if session is not None:
            session.finished()
        self._finish()
        return total, Command.GO

    def _update(self, step: int, records: Sequence[Stage1Record]) -> dict[str, float]:
        """Update ``step``: gradients of eq. 7 over the whole batch, clipping, and the optimizer."""
        start = time.perf_counter()
        config, engine = self.config, self.engine
        metrics = stage1_backward(engine, self.collate(records), config.loss, update=step - 1)
        metrics["train/lr"] = learning_rate(config.optim, step, self.data.schedule.total)
        engine.set_learning_rate(metrics["train/lr"])
        metrics["train/grad_norm"] = engine.step(config.optim.clip_grad)
        metrics["train/workers"] = engine.collectives.size
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

    def _latest_checkpoint(self) -> str | None:
        """The newest checkpoint; one that another node has written may be hidden for a while by a network file system's cache."""
        assert self.session is not None
        newest = self.session.newest_saved()

        def seen() -> bool:
            found = self.run.latest_checkpoint()
            return newest == 0 or (found is not None and checkpoint_step(found) >= newest)

        wait_until(seen)
        return self.run.latest_checkpoint()

    def _open_tracker(self) -> Tracker:
        tracker = Tracker(
            self.run.metrics,
            self.config.tracking,
            self.config.run.name,
            {"stage": "stage1", "yaml": to_yaml(self.config)},
            resume_step=self.progress["step"],
            run_id=self.progress["wandb_run_id"],
        )
        self.progress["wandb_run_id"] = tracker.run_id
        return tracker

    def _encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        tokens = self.engine.backbone.tokenizer.encode_views(views, max_length)
        return self.engine.encode(tokens, self.config.loss.micro_batch_tokens).numpy()

    def _recall(self, validation: HeldOutSet) -> dict[str, float]:
        data = self.config.data
        return validation.recall(self._encode, data.max_length, data.document_max_length)

    def _finish(self) -> None:
        run, trainer = self.run, self.config.trainer
        if trainer.export:
            export_retriever(self.engine, run.export, trainer.export_max_length)
            export_causal_lm(self.engine, run.causal_lm)
            if self.validation is not None:
                weight = self.validation.fusion_weight(self._encode, trainer.export_max_length)
                if self.session is not None:
                    count = len(self.validation.queries)
                    write_fusion_weight(run.export, weight, chosen_on=f"{count} held-out training requests")
        if self.session is not None:
            keys = ["loss/total", "loss/raw", "loss/cot", "loss/kl", "loss/lm"]
            plot_curves(read_metrics(run.metrics), keys, run.plots / "losses.png", "Stage I")


def wait_until(seen: Callable[[], bool]) -> bool:
    """Look for a file until it is seen, for as long as network file systems keep what they have cached."""
    deadline = time.monotonic() + CACHE_S
    while not (found := seen()) and time.monotonic() < deadline:
        time.sleep(1.0)
    return found


def _due(step: int, every: int, last: bool) -> bool:
    return every > 0 and (last or step % every == 0)


def _targets_by_query(records: list[Stage1Record]) -> dict[str, set[str]]:
    """Every labeled target of a request text: two records may share a request and differ in their target."""
    targets: dict[str, set[str]] = {}
    for record in records:
        targets.setdefault(record.query, set()).add(record.positive_id)
    return {query: found for query, found in targets.items() if len(found) > 1}
