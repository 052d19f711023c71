"""Stage I: teach the retriever from the teacher's capability reasoning (eqs. 2-7).

``python -m trainers.stage1 CONFIG [key=value ...]`` runs it; ``skillreason train stage1`` is the same.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from actors.device import place
from configs import Stage1Config, to_yaml
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import Stage1Record, read_stage1
from evaluation.plots import plot_curves
from models.backbone import Backbone
from models.export import export_causal_lm, export_retriever
from models.views import View
from objectives.checkpoint import load_checkpoint, save_checkpoint
from objectives.optimizers import build_optimizer, clip_gradients, set_learning_rate
from objectives.stage1 import Stage1Collator, stage1_backward
from retrieval.retriever import write_fusion_weight
from trainers.batches import BatchSchedule
from trainers.interrupt import Interrupted, StopRequest
from trainers.run_folder import RunFolder, check_input_files, run_identity
from trainers.tracking import Tracker, read_metrics
from trainers.validation import build_heldout_set, split_heldout

logger = logging.getLogger(__name__)


def train_stage1(config: Stage1Config) -> RunFolder:
    """Run Stage I to its end, or go on from the newest checkpoint of the run's folder.

    Raises:
        ConfigError, RecordError, BackboneError, CheckpointError: before the first update, naming what is wrong.
        FloatingPointError: a loss or gradient that is not finite; the last checkpoint stands.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    check_input_files(config)
    run = RunFolder.of(config.run)
    device = place(config.run.device, config.run.threads, config.run.seed)
    exclusions = ExclusionGraph.read(config.data.exclusions_file) if config.data.exclusions_file else None
    training, heldout = split_heldout(read_stage1(config.data.train_file), config.data.heldout_fraction)
    schedule = BatchSchedule.of(config, training, exclusions)
    if config.loss.lambda_kl > 0 and schedule.total <= config.loss.kl_start_update:
        logger.warning(
            "loss.kl_start_update is %d and the run has %d updates: the KL term of eq. 5 is never switched on",
            config.loss.kl_start_update,
            schedule.total,
        )
    backbone = Backbone.load(config.model.path, dtype=config.model.dtype, device=device)
    backbone.tokenizer.prompt_style = config.data.rationale_prompt or backbone.tokenizer.prompt_style
    optimizer = build_optimizer(backbone.parameters(), config.optim)
    collate = Stage1Collator(
        backbone, config.data, exclusions.adjacency if exclusions else None, _targets_by_query(training)
    )
    validation = build_heldout_set(heldout, training, config.validation)

    identity = run_identity(config, training)
    progress = {"step": 0, "wandb_run_id": "", "collisions": 0, "identity": identity}
    checkpoint = run.checkpoint_to_resume(identity)
    if checkpoint is not None:
        progress |= load_checkpoint(checkpoint, backbone, optimizer)
        logger.info("resuming %s at update %d of %d", checkpoint, progress["step"], schedule.total)
    run.write_config(config)
    tracker = Tracker(
        run.metrics,
        config.tracking,
        config.run.name,
        {"stage": "stage1", "yaml": to_yaml(config)},
        resume_step=progress["step"],
        run_id=progress["wandb_run_id"],
    )
    progress["wandb_run_id"] = tracker.run_id

    def encode(views: Sequence[View], max_length: int) -> np.ndarray:
        tokens = backbone.tokenizer.encode_views(views, max_length)
        return backbone.encode(tokens, config.loss.micro_batch_tokens).numpy()

    def save() -> Path:
        return save_checkpoint(
            run.checkpoints, progress["step"], backbone, optimizer, progress, config.trainer.max_ckpt_to_keep
        )

    bar = tqdm(total=schedule.total, initial=progress["step"], desc="Stage I", unit="update", dynamic_ncols=True)
    with contextlib.closing(tracker), bar, StopRequest() as stop:
        for batch in schedule.after(progress["step"]):
            start = time.perf_counter()
            metrics = stage1_backward(backbone, collate(batch.records), config.loss, update=batch.step - 1)
            metrics["train/grad_norm"] = clip_gradients(backbone.parameters(), config.optim.clip_grad)
            metrics["train/lr"] = set_learning_rate(optimizer, config.optim, batch.step, schedule.total)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            metrics["time/step"] = time.perf_counter() - start
            progress["step"] = batch.step
            progress["collisions"] += batch.collisions
            metrics["sampler/collisions"] = progress["collisions"]
            last = batch.step == schedule.total
            if validation is not None and _due(batch.step, config.trainer.test_freq, last):
                metrics |= validation.recall(encode, config.data.max_length, config.data.document_max_length)
            tracker.log(batch.step, metrics)
            bar.update()
            bar.set_postfix(
                loss=f"{metrics['loss/total']:.3f}", acc=f"{metrics.get('train/accuracy_raw', float('nan')):.2f}"
            )
            if last or stop.requested or (config.trainer.save_freq and batch.step % config.trainer.save_freq == 0):
                save()
            if stop.requested and not last:
                raise Interrupted(
                    f"stopped at update {batch.step} of {schedule.total}; run it again to go on: {run.root}"
                )

    if config.trainer.export:
        export_retriever(backbone, run.export, config.trainer.export_max_length)
        export_causal_lm(backbone, run.causal_lm)
        if validation is not None:
            weight = validation.fusion_weight(encode, config.trainer.export_max_length)
            write_fusion_weight(run.export, weight, chosen_on=f"{len(validation.queries)} held-out training requests")
    rows = read_metrics(run.metrics)
    plot_curves(rows, ["loss/total", "loss/raw", "loss/cot", "loss/kl", "loss/lm"], run.plots / "losses.png", "Stage I")
    return run


def _due(step: int, every: int, last: bool) -> bool:
    return every > 0 and (last or step % every == 0)


def _targets_by_query(records: list[Stage1Record]) -> dict[str, set[str]]:
    """Every labeled target of a request text: two records may share a request and differ in their target."""
    targets: dict[str, set[str]] = {}
    for record in records:
        targets.setdefault(record.query, set()).add(record.positive_id)
    return {query: found for query, found in targets.items() if len(found) > 1}


if __name__ == "__main__":
    from trainers.main import main

    main(Stage1Config, train_stage1)
