"""Which records make up which update: epochs of full batches, resumable at any update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from configs import ConfigError, GrpoConfig, Stage1Config
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import Stage1Record
from data_pipeline.sampler import SeparatedBatchSampler, UniqueSkillBatchSampler

R = TypeVar("R", bound=Stage1Record)


@dataclass(frozen=True)
class Batch(Generic[R]):
    """The records of one update, and the positive-negative collisions among them that the sampler could not avoid."""

    step: int  # from 1
    epoch: int
    records: list[R]
    collisions: int


class BatchSchedule(Generic[R]):
    """Every update of a run, a pure function of records, seed and batch size.

    Incomplete batches are dropped: 30,000 records at 256 give 117 updates, 29,995 at 112 give 267 (Tables 15 and 16).
    """

    def __init__(
        self,
        records: Sequence[R],
        *,
        batch_size: int,
        epochs: int,
        max_steps: int,
        seed: int,
        exclusions: ExclusionGraph | None,
        unique_skills: bool = False,
    ):
        if len(records) < batch_size:
            raise ConfigError(
                f"data.train_batch_size is {batch_size}; only {len(records)} training records are left, and incomplete "
                "batches are dropped"
            )
        self.records = records
        self._sampler = (
            UniqueSkillBatchSampler(records, batch_size, seed)
            if unique_skills
            else SeparatedBatchSampler(records, batch_size, seed, exclusions=exclusions)
        )
        self.per_epoch = len(self._sampler)
        total = self.per_epoch * epochs
        self.total = min(total, max_steps) if max_steps > 0 else total

    @classmethod
    def of(
        cls, config: Stage1Config | GrpoConfig, records: Sequence[R], exclusions: ExclusionGraph | None
    ) -> BatchSchedule[R]:
        """The updates that a configuration asks for."""
        return cls(
            records,
            batch_size=config.data.train_batch_size,
            epochs=config.trainer.total_epochs,
            max_steps=config.trainer.total_steps,
            seed=config.run.seed,
            exclusions=exclusions,
            unique_skills=isinstance(config, Stage1Config) and config.data.sampler == "unique_skill",
        )

    def after(self, step: int) -> Iterator[Batch[R]]:
        """The batches of updates ``step + 1`` to the last."""
        for number in range(step + 1, self.total + 1):
            epoch, position = divmod(number - 1, self.per_epoch)
            if epoch != self._sampler.epoch:
                self._sampler.set_epoch(epoch)
            rows = self._sampler.batches[position]
            yield Batch(number, epoch, [self.records[r] for r in rows], self._sampler.collisions_per_batch[position])
