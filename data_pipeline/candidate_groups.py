"""The reranker's training groups (E.5): a request with the candidates that a retriever found for it, and audited weights."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.heldout import is_heldout
from data_pipeline.rows import RecordError, read_rows


@dataclass(frozen=True)
class CandidateGroup:
    """One group of eq. 17.

    Attributes:
        source: where it comes from: ``single`` for one target, ``multi`` for compound tasks.
        query_capability: the teacher's rationale; empty where there is none.
        skill_ids: the candidates, in the retriever's order.
        weights: y of eq. 16 for each candidate; 0 for a negative.
    """

    record_id: str
    source: str
    query: str
    query_capability: str
    skill_ids: tuple[str, ...]
    weights: tuple[float, ...]

    @property
    def positives(self) -> tuple[str, ...]:
        return tuple(s for s, weight in zip(self.skill_ids, self.weights, strict=True) if weight > 0)

    def first(self, count: int) -> CandidateGroup:
        """The group cut to ``count`` candidates: the positives, then the best negatives, in the retriever's order."""
        if len(self.skill_ids) <= count:
            return self
        ranks = range(len(self.skill_ids))
        kept = sorted(sorted(ranks, key=lambda rank: (self.weights[rank] == 0, rank))[:count])
        return CandidateGroup(
            self.record_id,
            self.source,
            self.query,
            self.query_capability,
            tuple(self.skill_ids[rank] for rank in kept),
            tuple(self.weights[rank] for rank in kept),
        )


def read_groups(path: str | Path, known: Container[str]) -> list[CandidateGroup]:
    """Read ``record_id, source, query, query_capability, candidates [{skill_id, weight}]`` rows, as ``skillreason data build``
    writes them; other keys are left alone.

    Args:
        known: ids of the corpus.

    Raises:
        RecordError: a missing or mistyped field, a candidate that the corpus lacks or that occurs twice, a group without a
            positive, a repeated record_id, or an empty file. File, row, key and value are named.
    """
    groups: list[CandidateGroup] = []
    seen: dict[str, int] = {}
    for row, value in read_rows(path):
        group = _group(path, row, value, known)
        if group.record_id in seen:
            first = seen[group.record_id]
            raise RecordError(path, row, f"duplicate id, first seen in row {first}", "record_id", group.record_id)
        seen[group.record_id] = row
        groups.append(group)
    if not groups:
        raise RecordError(path, 1, "the file has no groups; expected at least one row")
    return groups


def _group(path: str | Path, row: int, value: Mapping[str, Any], known: Container[str]) -> CandidateGroup:
    for key in ("record_id", "source", "query", "query_capability", "candidates"):
        if key not in value and key != "query_capability":
            raise RecordError(path, row, f"missing key {key!r}; this row has {', '.join(map(str, value)) or 'no keys'}")
        text = value.get(key, "")
        if key != "candidates" and (not isinstance(text, str) or (key != "query_capability" and not text.strip())):
            raise RecordError(path, row, "expected a non-empty string", key, text)
    candidates = value["candidates"]
    if not isinstance(candidates, list) or len(candidates) < 2:
        raise RecordError(path, row, "expected a list of at least two candidates", "candidates", candidates)
    ids: list[str] = []
    weights: list[float] = []
    for number, candidate in enumerate(candidates):
        key = f"candidates[{number}]"
        if not isinstance(candidate, Mapping) or not {"skill_id", "weight"} <= candidate.keys():
            raise RecordError(path, row, "expected an object {skill_id, weight}", key, candidate)
        skill_id, weight = candidate["skill_id"], candidate["weight"]
        if skill_id not in known:
            raise RecordError(path, row, "no such skill in the corpus", f"{key}.skill_id", skill_id)
        if skill_id in ids:
            raise RecordError(path, row, "occurs twice in the group", f"{key}.skill_id", skill_id)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise RecordError(path, row, "expected a finite number >= 0", f"{key}.weight", weight)
        ids.append(skill_id)
        weights.append(float(weight))
    if not any(weights):
        raise RecordError(
            path, row, "no candidate has a weight above 0; a group needs at least one positive", "candidates", ids
        )
    texts = (value["record_id"], value["source"], value["query"], value.get("query_capability", "").strip())
    return CandidateGroup(*texts, tuple(ids), tuple(weights))


def split_groups(
    groups: Sequence[CandidateGroup], fraction: float
) -> tuple[list[CandidateGroup], list[CandidateGroup]]:
    """(training, held-out) groups: a group of which a held-out skill is a positive is never trained on."""
    held = [fraction > 0 and any(is_heldout(skill_id, fraction) for skill_id in g.positives) for g in groups]
    return (
        [group for group, out in zip(groups, held, strict=True) if not out],
        [group for group, out in zip(groups, held, strict=True) if out],
    )


class SourceAwareSampler:
    """An order of groups in which every stretch has the sources in their overall proportion (E.5), to within one group each.

    The groups of each source are shuffled, then merged: the next one is of the source that is furthest behind its share. A pure
    function of sources, seed and epoch. Batches and the local steps within them are consecutive pieces of the order.
    """

    def __init__(self, sources: Sequence[str], seed: int = 42) -> None:
        self.seed = seed
        self._rows: dict[str, list[int]] = {}
        for row, source in enumerate(sources):
            self._rows.setdefault(source, []).append(row)

    def order(self, epoch: int = 0) -> list[int]:
        """Every row once, in the order of an epoch."""
        return list(self._merged(epoch))

    def _merged(self, epoch: int) -> Iterator[int]:
        queues: dict[str, list[int]] = {}
        for source in sorted(self._rows):
            rows = list(self._rows[source])
            random.Random(f"groups:{self.seed}:{epoch}:{source}").shuffle(rows)
            queues[source] = rows
        total = sum(len(rows) for rows in queues.values())
        taken = dict.fromkeys(queues, 0)
        for position in range(1, total + 1):
            # whole numbers: how far behind, times `total`
            source = max(queues, key=lambda name: len(queues[name]) * position - taken[name] * total)
            yield queues[source][taken[source]]
            taken[source] += 1
