"""Batch samplers: one that avoids repeated skills and collisions (D.1), one in which no batch has a skill twice."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from data_pipeline.exclusions import ExclusionGraph, adjacency_of
from data_pipeline.records import Stage1Record


class SeparatedBatchSampler:
    """Yields batches of record positions, each of exactly ``batch_size``; the incomplete rest is dropped.

    Two records *collide* when one's positive, or a skill that the exclusion graph ties to it, is the other's positive or
    among the other's explicit negatives: the batch would then push a query away from what fits it. Batches
    without collisions are preferred; where the records leave no choice, each goes where it adds the fewest, and
    ``collisions`` counts the colliding pairs.

    Batches depend on records, batch size, seed and epoch only. Which records an epoch drops is decided by the shuffle
    alone, so that records with many collisions are not the ones dropped every time.

    Args:
        records: Stage-I or Stage-II records.
        batch_size: queries of the effective batch, all workers together (Tables 15, 16).
        exclusions: the exclusion graph or its adjacency map; None: ids alone count.

    Raises:
        ValueError: fewer records than one batch.
    """

    def __init__(
        self,
        records: Sequence[Stage1Record],
        batch_size: int,
        seed: int = 42,
        epoch: int = 0,
        exclusions: ExclusionGraph | Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: expected at least 1")
        if len(records) < batch_size:
            raise ValueError(
                f"batch_size = {batch_size}: only {len(records)} records, and incomplete batches are dropped; expected "
                f"at most {len(records)}"
            )
        self.batch_size, self.seed, self.epoch = batch_size, seed, epoch
        adjacency = adjacency_of(exclusions)
        # Skills as small integers: `mine` is the positive and what the graph ties to it, `shown` the record's documents.
        numbers: dict[str, int] = {}
        self._mine: list[tuple[int, ...]] = []
        self._shown: list[tuple[int, ...]] = []
        for record in records:
            tied = [record.positive_id, *sorted(adjacency.get(record.positive_id, ()))]
            shown = [record.positive_id, *record.negative_ids]
            self._mine.append(tuple(numbers.setdefault(skill_id, len(numbers)) for skill_id in tied))
            self._shown.append(tuple(numbers.setdefault(skill_id, len(numbers)) for skill_id in shown))

    def set_epoch(self, epoch: int) -> None:
        """Make the batches those of another epoch."""
        self.epoch = epoch
        for cached in ("batches", "collisions_per_batch"):
            self.__dict__.pop(cached, None)

    def __len__(self) -> int:
        """Batches an epoch: floor(records / batch_size)."""
        return len(self._mine) // self.batch_size

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(batch) for batch in self.batches])

    @property
    def collisions(self) -> int:
        """Pairs of records of this epoch that collide within their batch."""
        return sum(self.collisions_per_batch)

    @cached_property
    def batches(self) -> list[list[int]]:
        """The epoch's batches, in training order."""
        generator = random.Random(f"separated:{self.seed}:{self.epoch}")
        order = list(range(len(self._mine)))
        generator.shuffle(order)
        batches = self._assign(order[: len(self) * self.batch_size])
        # The last to be filled hold the leftovers; they should not always be trained on last.
        generator.shuffle(batches)
        for batch in batches:
            generator.shuffle(batch)
        return batches

    @cached_property
    def collisions_per_batch(self) -> list[int]:
        """Colliding pairs in each batch."""
        return [self._count(batch) for batch in self.batches]

    def _assign(self, order: list[int]) -> list[list[int]]:
        """Give each record, in turn, the open batch where it adds the fewest collisions; the emptiest among equals."""
        batches: list[list[int]] = [[] for _ in range(len(self))]
        open_batches = dict.fromkeys(range(len(batches)))  # ordered: the one longest without a new record first
        mine_in: dict[int, dict[int, int]] = {}  # skill -> batch -> records there that hold it as `mine`
        shown_in: dict[int, dict[int, int]] = {}
        for record in order:
            mine, shown = self._mine[record], self._shown[record]
            cost: dict[int, int] = {}
            for skills, holders in ((shown, mine_in), (mine, shown_in)):
                for skill in skills:
                    for batch, count in holders.get(skill, {}).items():
                        cost[batch] = cost.get(batch, 0) + count
            best = next((batch for batch in open_batches if batch not in cost), None)
            if best is None:
                best = min(open_batches, key=lambda batch: cost[batch])
            batches[best].append(record)
            del open_batches[best]
            if len(batches[best]) < self.batch_size:
                open_batches[best] = None
            for skills, holders in ((mine, mine_in), (shown, shown_in)):
                for skill in skills:
                    counts = holders.setdefault(skill, {})
                    counts[best] = counts.get(best, 0) + 1
        return batches

    def _count(self, batch: list[int]) -> int:
        showing: dict[int, list[int]] = {}
        for record in batch:
            for skill in self._shown[record]:
                showing.setdefault(skill, []).append(record)
        pairs = {
            (min(record, other), max(record, other))
            for record in batch
            for skill in self._mine[record]
            for other in showing.get(skill, ())
            if other != record
        }
        return len(pairs)


class UniqueSkillBatchSampler:
    """Batches of record positions in which no two records have the same positive (C.1.2 of the Skill2Query paper).

    The separated sampler only prefers such batches. This one leaves records out of an epoch where a skill has more than it has
    batches: with c_s records of skill s there are as many batches T of size B as satisfy Σ_s min(c_s, T) >= T·B. Which records
    are left out is the epoch's shuffle alone. Explicit negatives are not looked at: the objective has none.

    Raises:
        ValueError: fewer skills than one batch has records.
    """

    def __init__(self, records: Sequence[Stage1Record], batch_size: int, seed: int = 42, epoch: int = 0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: expected at least 1")
        self.batch_size, self.seed, self.epoch = batch_size, seed, epoch
        self._by_skill: dict[str, list[int]] = {}
        for row, record in enumerate(records):
            self._by_skill.setdefault(record.positive_id, []).append(row)
        if len(self._by_skill) < batch_size:
            raise ValueError(
                f"batch_size = {batch_size}: the {len(records)} records have {len(self._by_skill)} skills, and no batch has one "
                f"twice; expected at most {len(self._by_skill)}"
            )
        sizes = [len(rows) for rows in self._by_skill.values()]
        self._batches = len(records) // batch_size
        while sum(min(size, self._batches) for size in sizes) < self._batches * batch_size:
            self._batches -= 1

    def set_epoch(self, epoch: int) -> None:
        """Make the batches those of another epoch."""
        self.epoch = epoch
        self.__dict__.pop("batches", None)

    def __len__(self) -> int:
        """Batches an epoch."""
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(batch) for batch in self.batches])

    @property
    def collisions_per_batch(self) -> list[int]:
        """Pairs of records with one skill in each batch: none."""
        return [0] * len(self)

    @cached_property
    def batches(self) -> list[list[int]]:
        """The epoch's batches, in training order."""
        rng = random.Random(f"{self.seed}:{self.epoch}")
        skills = [rng.sample(rows, min(len(rows), len(self))) for rows in self._by_skill.values()]
        rng.shuffle(skills)
        kept = set(rng.sample([row for rows in skills for row in rows], len(self) * self.batch_size))
        # Dealt one after the other, a skill's records, at most as many as there are batches, all go to different ones.
        batches: list[list[int]] = [[] for _ in range(len(self))]
        for number, row in enumerate(row for rows in skills for row in rows if row in kept):
            batches[number % len(self)].append(row)
        for batch in batches:
            rng.shuffle(batch)
        rng.shuffle(batches)
        return batches
