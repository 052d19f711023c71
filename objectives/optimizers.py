"""The optimizers of Tables 15-17: AdamW and Adafactor over float32 master weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

from configs.schema import OptimizerConfig


def build_optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the configured optimizer.

    Adafactor is transformers' with an external learning rate (``scale_parameter=False, relative_step=False``) and no first
    moment: ``betas`` are AdamW's alone.

    Raises:
        ValueError: unknown ``optim.name``.
    """
    parameters = [p for p in parameters if p.requires_grad]
    if config.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=config.lr,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
            # one pass over memory a parameter; on a GPU torch chooses, and there the counters would have to move
            fused=all(p.device.type == "cpu" and not isinstance(p, DTensor) for p in parameters) or None,
        )
    if config.name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(
            parameters,
            lr=config.lr,
            scale_parameter=False,
            relative_step=False,
            warmup_init=False,
            weight_decay=config.weight_decay,
        )
    raise ValueError(f"optim.name is {config.name!r}; expected 'adamw' or 'adafactor'")


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The learning rate of update ``step`` (from 1) of ``total``: a pure function, so resuming needs no state."""
    return config.lr if config.schedule == "constant" else config.lr * (total - step + 1) / total


def clip_gradients(parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
    """Clip the global gradient norm to ``limit`` (0: no clipping) and return the norm before clipping.

    Raises:
        FloatingPointError: the norm is not finite; no update is made from such gradients.
    """
    norm = torch.nn.utils.clip_grad_norm_(list(parameters), limit if limit > 0 else float("inf"))
    return check_norm(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))


def check_norm(norm: float) -> float:
    """The norm itself.

    Raises:
        FloatingPointError: it is not finite.
    """
    if norm != norm or norm == float("inf"):
        raise FloatingPointError(f"the gradient norm is {norm}; the weights were left as they are")
    return norm
