"""What the processes that train one model together say to each other, and the same interface for a single process."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist


class Collectives(Protocol):
    """Every method is collective: all ranks call it, in the same order.

    Attributes:
        rank: this process, from 0.
        size: number of processes.
    """

    rank: int
    size: int

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Concatenate the ``[n_r, d]`` tensors of all ranks, in rank order, on every rank; ``n_r`` may differ and be 0."""
        ...

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, a new tensor."""
        ...

    def max_int(self, value: int) -> int:
        """The largest of the ranks' values."""
        ...

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's picklable object, in rank order, on every rank."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's picklable object on every rank; what the others pass is ignored."""
        ...

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor on every rank, written into ``tensor``, which has its shape and dtype everywhere."""
        ...


class SingleProcess(Collectives):
    """One process: nothing to exchange."""

    rank = 0
    size = 1

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.detach()

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return value.detach().clone()

    def max_int(self, value: int) -> int:
        return value

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class TorchCollectives(Collectives):
    """The default group of ``torch.distributed``: gloo on CPUs, nccl on GPUs."""

    def __init__(self, device: torch.device | str):
        """
        Args:
            device: where tensors that are exchanged live; nccl moves nothing else.
        """
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.device = torch.device(device)

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.detach().to(self.device)
        counts = [int(c) for c in self._gather(torch.tensor([len(rows)], device=self.device))]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        return torch.cat([part[:count] for part, count in zip(self._gather(padded), counts, strict=True)])

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        total = value.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total

    def max_int(self, value: int) -> int:
        largest = torch.tensor([value], device=self.device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    def gather_objects(self, value: Any) -> list[Any]:
        out: list[Any] = [None] * self.size
        dist.all_gather_object(out, value)
        return out

    def broadcast(self, value: Any) -> Any:
        box = [value if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def broadcast_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        dist.broadcast(tensor, src=0)
        return tensor

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        out = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(out, tensor)
        return out


def ensure_process_group(device: torch.device) -> None:
    """Join the default group of ``torch.distributed``, as its only member where nobody has joined one before."""
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
