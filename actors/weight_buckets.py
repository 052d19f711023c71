"""Weights in pieces of a bounded size, as they travel from the policy to the rollout workers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from models.backbone import DTYPES

ALIGNMENT = 64
"""Bytes; parameters begin at multiples of it, so that each is a view of the bucket in its own dtype."""


@dataclass(frozen=True)
class Entry:
    """One parameter of a bucket: its name, the dtype it travels in, its shape and its first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Bucket:
    """Whole parameters one after the other in ``data``, a flat uint8 tensor or array; ``layout`` says which."""

    layout: tuple[Entry, ...]
    data: torch.Tensor | np.ndarray

    def as_array(self) -> Bucket:
        """The same bucket over a NumPy array, which Ray shares between processes without copies."""
        return replace(self, data=np.asarray(self.data))

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters as views of ``data``, no copies; read them only."""
        data = self.data
        if isinstance(data, np.ndarray):
            with warnings.catch_warnings():  # arrays of the object store are read-only, and are only read
                warnings.filterwarnings("ignore", message=".*not writable.*")
                data = torch.from_numpy(data)
        for entry in self.layout:
            dtype = DTYPES[entry.dtype]
            size = math.prod(entry.shape) * dtype.itemsize
            yield entry.name, data[entry.offset : entry.offset + size].view(dtype).view(entry.shape)


def fill_buckets(
    parameters: Iterable[tuple[str, torch.Tensor]], bucket_mb: int, dtype: str, device: str | torch.device = "cpu"
) -> Iterator[Bucket]:
    """Pack parameters into buckets of at most ``bucket_mb`` MiB, cast to ``dtype``, on ``device``.

    All buckets share one buffer, so a bucket is valid until the next one is asked for: memory stays at one bucket and one
    parameter, whatever the model's size. A parameter larger than a bucket travels in one of its own.

    Args:
        parameters: names and tensors, floating point, on any device.
        bucket_mb: MiB.
        dtype: ``float32`` or ``bfloat16``, rounded to nearest.
        device: where the buckets lie.
    """
    target, limit = DTYPES[dtype], bucket_mb * 2**20
    buffer = torch.empty(0, dtype=torch.uint8, device=device)
    layout: list[Entry] = []
    used = 0
    for name, tensor in parameters:
        size = tensor.numel() * target.itemsize
        if layout and used + size > limit:
            yield Bucket(tuple(layout), buffer[:used])
            layout, used = [], 0
        if (
            len(buffer) < used + size
        ):  # only ever with an empty bucket: the first one, or a parameter larger than all before
            buffer = torch.empty(max(limit, size), dtype=torch.uint8, device=device)
        buffer[used : used + size].view(target).copy_(tensor.detach().flatten())
        layout.append(Entry(name, dtype, tuple(tensor.shape), used))
        used = math.ceil((used + size) / ALIGNMENT) * ALIGNMENT
    if layout:
        yield Bucket(tuple(layout), buffer[:used])
