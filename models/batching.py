"""Grouping token sequences of uneven length into padded micro-batches of bounded size."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def plan_micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Partition sequence indices into micro-batches whose padded size stays within ``token_budget`` tokens.

    Sequences are taken from the longest to the shortest, so that neighbours have like lengths and little is padding. A
    sequence longer than the budget gets a micro-batch of its own. The plan is a pure function of its arguments: the two
    forward passes of a gradient cache must cut the batch at the same places.

    Args:
        lengths: tokens of each sequence, all positive.
        token_budget: largest ``rows * longest row`` of a micro-batch; 0 puts everything into one.
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    if token_budget <= 0:
        return [order]
    batches: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for index in order:
        if current and (len(current) + 1) * longest > token_budget:
            batches.append(current)
            current = []
        if not current:
            longest = lengths[index]
        current.append(index)
    batches.append(current)
    return batches


def pad_right(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad to the longest sequence.

    Returns:
        ``input_ids[B, T]`` and ``attention_mask[B, T]`` (int64; 1 marks a real token, whatever its id).
    """
    width = max(len(s) for s in sequences)
    ids = torch.full((len(sequences), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(sequences), width), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.as_tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    return ids.to(device), mask.to(device)


def pad_left(
    sequences: Sequence[Sequence[int]], pad_id: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`pad_right` with the padding in front: what batched decoding wants."""
    ids, mask = pad_right([list(reversed(s)) for s in sequences], pad_id, device)
    return ids.flip(1), mask.flip(1)
