"""Where a role's process computes: device, threads and seeds, and memory that it gives back."""

from __future__ import annotations

import torch


def place(device: str, threads: int, seed: int = 0) -> str:
    """Set this process's torch threads and seed, and resolve ``auto`` to ``cuda`` where there is one.

    Ray gives an actor with less than one CPU a single OpenMP thread, so threads are set here, explicitly.
    """
    if threads > 0:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("run.device is 'cuda'; this process sees no CUDA device; expected auto or cpu")
    return device


def release_cache() -> None:
    """Give the GPU memory that PyTorch keeps for this process back to the others on its GPU; nothing on a CPU."""
    torch.cuda.empty_cache()
