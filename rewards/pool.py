"""The in-batch candidate pool of Stage II (E.4): whose documents a rollout's query is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CandidatePool:
    """The documents of all query groups of a batch, each once.

    Attributes:
        ids: P unique skill ids in order of first occurrence.
        positive: int64 ``[Q]``, column of each query's target.
        negatives: bool ``[Q, P]``, true where a document belongs to N_q of eq. 15.
        occurrences: documents of the concatenated groups, repeats counted (112 x 11 = 1,232 in the paper).
    """

    ids: list[str]
    positive: torch.Tensor
    negatives: torch.Tensor
    occurrences: int


def build_pool(
    positives: Sequence[str],
    negatives: Sequence[Sequence[str]],
    *,
    mask_positive: str = "skill_id",
    exclusions: Mapping[str, Set[str]] | None = None,
) -> CandidatePool:
    """Concatenate the candidate groups of a batch and mask each query's own target (eq. 15).

    Args:
        positives: each query's target, ``[Q]``.
        negatives: each query's explicit negatives.
        mask_positive: ``skill_id`` keeps the target out of its own hard negatives wherever it occurs; ``occurrence``
            masks only the query's own labeled occurrence, so that a target that another group also lists stays a
            negative (the paper's wording).
        exclusions: exclusion graph; where given, neighbours of the target are masked too.

    Raises:
        ValueError: a query is left without any negative, or an unknown ``mask_positive``.
    """
    if mask_positive not in {"skill_id", "occurrence"}:
        raise ValueError(f"reward.mask_positive is {mask_positive!r}; expected 'skill_id' or 'occurrence'")
    occurrences = [s for positive, own in zip(positives, negatives, strict=True) for s in (positive, *own)]
    counts = Counter(occurrences)
    ids = list(counts)
    column = {skill_id: i for i, skill_id in enumerate(ids)}
    positive_index = torch.tensor([column[p] for p in positives], dtype=torch.long)
    mask = torch.ones(len(positives), len(ids), dtype=torch.bool)
    for row, positive in enumerate(positives):
        if mask_positive == "skill_id" or counts[positive] == 1:
            mask[row, column[positive]] = False
        for neighbour in (exclusions or {}).get(positive, ()):
            if neighbour in column:
                mask[row, column[neighbour]] = False
        if not mask[row].any():
            raise ValueError(
                f"query {row} with target {positive!r} has no negative left in a pool of {len(ids)} documents; "
                "give its record negatives or use a larger batch"
            )
    return CandidatePool(ids, positive_index, mask, len(occurrences))
