"""Grouping token sequences of uneven length into micro-batches of bounded size, padded or packed, for one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

MIN_SHARED = 8
"""Tokens that two sequences must begin with alike for it to be used: below, gathering costs more than it saves."""


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


def plan_over_ranks(lengths: Sequence[int], token_budget: int, ranks: int) -> list[list[list[int]]]:
    """Micro-batches of every rank, ``plan[rank][pass]``: each sequence once, the same number of passes on every rank.

    The number of passes is the smallest that the budget allows. Given it, the micro-batches are made as small as they can be,
    so that all ranks have about the same number of padded tokens in each pass. Where there are fewer micro-batches than places
    for them, the last places are empty lists: the rank runs a dummy there if its engine needs equal passes.

    Args:
        lengths: tokens of each sequence, all positive.
        token_budget: as in :func:`plan_micro_batches`; 0 gives every rank one micro-batch.
        ranks: processes that share the work.
    """
    if ranks == 1:
        return [plan_micro_batches(lengths, token_budget)]
    if not lengths:
        return [[] for _ in range(ranks)]
    everything = len(lengths) * max(lengths)
    budget = token_budget if token_budget > 0 else everything
    passes = -(-len(plan_micro_batches(lengths, budget)) // ranks)
    low, high = 1, budget
    while low < high:  # the number of micro-batches never grows with the budget
        middle = (low + high) // 2
        if len(plan_micro_batches(lengths, middle)) <= passes * ranks:
            high = middle
        else:
            low = middle + 1
    batches = plan_micro_batches(lengths, low)
    batches += [[] for _ in range(passes * ranks - len(batches))]
    plan: list[list[list[int]]] = [[] for _ in range(ranks)]
    for number in range(passes):
        row = batches[number * ranks : (number + 1) * ranks]
        # from the longest sequences to the shortest: every other pass in reverse, or rank 0 would have the most tokens each time
        for rank, batch in enumerate(row if number % 2 == 0 else reversed(row)):
            plan[rank].append(batch)
    return plan


def prefix_order(sequences: Sequence[Sequence[int]], min_shared: int = MIN_SHARED) -> list[tuple[int, int]]:
    """Sequences in dictionary order, which is that of a tree of their prefixes: index, and tokens shared with the one before.

    No earlier sequence has more in common with one than the last before it. Prefixes shorter than ``min_shared`` count as none.
    """
    ids = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    out = [(order[0], 0)] if order else []
    for before, index in pairwise(order):
        length = min(len(ids[before]), len(ids[index]))
        different = np.flatnonzero(ids[before][:length] != ids[index][:length])
        shared = int(different[0]) if different.size else length
        out.append((index, shared if shared >= min_shared else 0))
    return out


def plan_packed(sequences: Sequence[Sequence[int]], token_budget: int, ranks: int = 1) -> list[list[list[int]]]:
    """As :func:`plan_over_ranks`, for sequences that are packed: a micro-batch's size is its number of distinct tokens.

    Sequences that begin alike are kept together; where a micro-batch ends between two, what they share is computed in both.
    """
    order = prefix_order(sequences)
    total = sum(len(s) for s in sequences)
    if not order:
        return [[] for _ in range(ranks)]
    budget = min(token_budget, total) if token_budget > 0 else total
    passes = -(-len(_cut(sequences, order, budget)) // ranks)
    low, high = 1, budget
    while low < high:  # the number of micro-batches never grows with the budget
        middle = (low + high) // 2
        if len(_cut(sequences, order, middle)) <= passes * ranks:
            high = middle
        else:
            low = middle + 1
    batches = _cut(sequences, order, low)
    batches += [[] for _ in range(passes * ranks - len(batches))]
    return [batches[rank::ranks] for rank in range(ranks)]


def _cut(sequences: Sequence[Sequence[int]], order: list[tuple[int, int]], budget: int) -> list[list[int]]:
    """Runs of the order within the budget, each as long as it can be; a longer sequence is alone."""
    batches: list[list[int]] = []
    size = budget
    for index, shared in order:
        own = len(sequences[index]) - shared
        if not batches or size + own > budget:
            batches.append([])
            size, own = 0, len(sequences[index])
        batches[-1].append(index)
        size += own
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
