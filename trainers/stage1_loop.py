"""The updates of Stage I (eqs. 2-7), the same in one process and in every process of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs import Stage1Config
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import Stage1Record, format_of_records, read_stage1
from evaluation.plots import plot_curves
from models.backbone import Backbone
from models.export import export_causal_lm, export_retriever
from models.views import View
from objectives.engine import build_engine
from objectives.stage1 import Stage1Collator, stage1_backward
from retrieval.retriever import write_fusion_weight
from trainers.batches import BatchSchedule
from trainers.loop import TrainingLoop, loop_in_group
from trainers.session import Session
from trainers.tracking import read_metrics
from trainers.validation import build_heldout_set, split_heldout


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
    """What every process of a Ray Train group runs, see :func:`trainers.loop.loop_in_group`."""

    def loop_of(config: Any, device: str, session: Session | None, identity: dict[str, Any]) -> Stage1Loop:
        return Stage1Loop(config, Stage1Data.read(config), device, session, identity)

    return loop_in_group(settings, loop_of)


class Stage1Loop(TrainingLoop):
    """Stage I's updates: eq. 7 over the whole batch, recall on held-out requests, the retriever's exports."""

    stage = "stage1"
    config: Stage1Config

    def __init__(
        self, config: Stage1Config, data: Stage1Data, device: str, session: Session | None, identity: dict[str, Any]
    ):
        backbone = Backbone.load(
            config.model.path, dtype=config.model.dtype, device=device, share_prefixes=config.model.share_prefixes
        )
        backbone.tokenizer.prompt_style = config.data.rationale_prompt or backbone.tokenizer.prompt_style
        backbone.tokenizer.document_format = format_of_records(data.training)
        engine = build_engine(backbone, config.optim, config.parallel, default_strategy="deepspeed")
        super().__init__(config, data.schedule, engine, session, identity)
        self.collate = Stage1Collator(
            backbone,
            config.data,
            data.exclusions.adjacency if data.exclusions else None,
            _targets_by_query(data.training),
        )
        self.validation = build_heldout_set(data.heldout, data.training, config.validation)

    def _backward(self, step: int, records: Sequence[Stage1Record]) -> dict[str, float]:
        return stage1_backward(self.engine, self.collate(records), self.config.loss, update=step - 1)

    def _shown(self, metrics: dict[str, float]) -> dict[str, float]:
        return {"loss": metrics["loss/total"], "acc": metrics.get("train/accuracy_raw", float("nan"))}

    def _measure(self) -> dict[str, float]:
        data = self.config.data
        if self.validation is None:
            return {}
        return self.validation.recall(self._encode, data.max_length, data.document_max_length)

    def _encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        tokens = self.engine.backbone.tokenizer.encode_views(views, max_length)
        return self.engine.encode(tokens, self.config.loss.micro_batch_tokens).numpy()

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


def _targets_by_query(records: list[Stage1Record]) -> dict[str, set[str]]:
    """Every labeled target of a request text: two records may share a request and differ in their target."""
    targets: dict[str, set[str]] = {}
    for record in records:
        targets.setdefault(record.query, set()).add(record.positive_id)
    return {query: found for query, found in targets.items() if len(found) > 1}
