"""The updates of the reranker (E.5), the same in one process and in every process of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs import ConfigError, RerankerConfig
from configs.schema import RerankerDataConfig
from data_pipeline.candidate_groups import CandidateGroup, SourceAwareSampler, read_groups, split_groups
from data_pipeline.corpus import SkillCorpus
from evaluation.metrics import evaluate_ranking
from evaluation.plots import plot_curves
from models.reranker import Reranker, export_reranker
from models.reranker_format import RERANK_INSTRUCTION, RerankerFormat
from objectives.engine import build_engine
from objectives.reranker import GroupCollator, reranker_backward, score_groups
from retrieval.ranking import Ranking
from retrieval.reranked import rerank_row
from trainers.loop import TrainingLoop, loop_in_group
from trainers.session import Session
from trainers.tracking import read_metrics


@dataclass(frozen=True)
class GroupsOfUpdate:
    """The groups of one update."""

    step: int  # from 1
    records: list[CandidateGroup]
    collisions: int = 0  # what a group contrasts is its own


class GroupSchedule:
    """Every update of a run, a pure function of groups, seed and batch size.

    The last window of an epoch is trained on although it is not full: 46,912 groups at 128 give 367 updates, 47,628 give 373
    (Table 17).
    """

    def __init__(self, groups: Sequence[CandidateGroup], *, batch_size: int, epochs: int, max_steps: int, seed: int):
        self.groups, self.batch_size = groups, batch_size
        self.per_epoch = -(-len(groups) // batch_size)
        total = self.per_epoch * epochs
        self.total = min(total, max_steps) if max_steps > 0 else total
        self._sampler = SourceAwareSampler([group.source for group in groups], seed)

    def after(self, step: int) -> Iterator[GroupsOfUpdate]:
        """The batches of updates ``step + 1`` to the last."""
        epoch, order = -1, list[int]()
        for number in range(step + 1, self.total + 1):
            of_epoch, position = divmod(number - 1, self.per_epoch)
            if of_epoch != epoch:
                epoch, order = of_epoch, self._sampler.order(of_epoch)
            rows = order[position * self.batch_size : (position + 1) * self.batch_size]
            yield GroupsOfUpdate(number, [self.groups[row] for row in rows])


@dataclass(frozen=True)
class RerankerData:
    """What a run trains on and measures itself with."""

    corpus: SkillCorpus
    training: list[CandidateGroup]
    heldout: list[CandidateGroup]
    schedule: GroupSchedule

    @classmethod
    def read(cls, config: RerankerConfig) -> RerankerData:
        """Read the files that the configuration names.

        Raises:
            ConfigError: every group is held out.
            RecordError: naming file, row, key and value of what cannot be used.
        """
        data = config.data
        corpus = SkillCorpus.from_jsonl(data.corpus_file)
        training, heldout = split_groups(read_groups(data.train_file, corpus), data.heldout_fraction)
        if not training:
            raise ConfigError(f"data.heldout_fraction is {data.heldout_fraction}: no group is left to train on")
        schedule = GroupSchedule(
            training,
            batch_size=data.train_batch_size,
            epochs=config.trainer.total_epochs,
            max_steps=config.trainer.total_steps,
            seed=config.run.seed,
        )
        # both sources in their proportion, whatever the file's order is
        measured = SourceAwareSampler([group.source for group in heldout], config.run.seed).order()[
            : data.heldout_groups
        ]
        return cls(corpus, training, [heldout[row] for row in measured], schedule)


def format_of(data: RerankerDataConfig) -> RerankerFormat:
    """The format of pairs that a configuration asks for."""
    yes, no = data.answers.split("/")
    return RerankerFormat(
        instruction=data.instruction or RERANK_INSTRUCTION,
        document_format=data.document_format,
        query_chars=data.query_chars,
        description_chars=data.description_chars,
        body_chars=data.body_chars,
        max_length=data.max_length,
        yes=yes,
        no=no,
    )


def train_in_group(settings: dict[str, Any]) -> dict[str, Any]:
    """What every process of a Ray Train group runs, see :func:`trainers.loop.loop_in_group`."""

    def loop_of(config: Any, device: str, session: Session | None, identity: dict[str, Any]) -> RerankerLoop:
        return RerankerLoop(config, RerankerData.read(config), device, session, identity)

    return loop_in_group(settings, loop_of)


class RerankerLoop(TrainingLoop):
    """The reranker's updates: eq. 17 and the auxiliaries over the whole batch, held-out groups reranked, the export."""

    stage = "reranker"
    config: RerankerConfig

    def __init__(
        self, config: RerankerConfig, data: RerankerData, device: str, session: Session | None, identity: dict[str, Any]
    ):
        self.form = format_of(config.data)
        reranker = Reranker.load(
            config.model.path,
            dtype=config.model.dtype,
            device=device,
            form=self.form,
            share_prefixes=config.model.share_prefixes,
        )
        engine = build_engine(reranker, config.optim, config.parallel, default_strategy="deepspeed")
        super().__init__(config, data.schedule, engine, session, identity)
        self.heldout = data.heldout

        def document_of(skill_id: str) -> str:
            skill = data.corpus.get(skill_id)
            return self.form.document(skill.name, skill.description, skill.body)

        self.collate = GroupCollator(reranker.pairs, document_of, config.data, config.loss)

    def _backward(self, step: int, records: Sequence[CandidateGroup]) -> dict[str, float]:
        return reranker_backward(self.engine, self.collate(records), self.config.loss)

    def _shown(self, metrics: dict[str, float]) -> dict[str, float]:
        return {"loss": metrics["loss/total"], "acc": metrics["train/accuracy"]}

    def _measure(self) -> dict[str, float]:
        """``val/recall@1``, ``@5`` and ``val/ndcg@10`` of reranked held-out groups, and of the retriever's own order.

        Recall is of the positives that were retrieved: a reranker can place no others.
        """
        if not self.heldout:
            return {}
        groups = [group.first(self.config.data.max_candidates) for group in self.heldout]
        found = score_groups(self.engine, self.collate.pairs_of(groups), self.config.loss.micro_batch_tokens)
        before = [list(group.skill_ids) for group in groups]
        after = [rerank_row(ids, scores.numpy())[0] for ids, scores in zip(before, found, strict=True)]
        names = [group.record_id for group in groups]
        qrels = {group.record_id: dict.fromkeys(group.positives, 1) for group in groups}
        metrics: dict[str, float] = {}
        for prefix, rows in (("val", after), ("val/retriever", before)):
            ranking = Ranking.from_rows([(ids, -np.arange(len(ids), dtype=float)) for ids in rows])
            measured = evaluate_ranking(ranking, names, qrels)
            metrics |= {f"{prefix}/{name}": measured[name] for name in ("recall@1", "recall@5", "ndcg@10")}
        return metrics

    def _finish(self) -> None:
        if self.config.trainer.export:
            export_reranker(self.engine, self.form, self.run.export)
        if self.session is not None:
            keys = ["loss/total", "loss/rank", "loss/distill", "loss/lm"]
            plot_curves(read_metrics(self.run.metrics), keys, self.run.plots / "losses.png", "Reranker")
