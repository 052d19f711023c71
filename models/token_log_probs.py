"""The log-probabilities of given tokens under an LM head, with only part of the logits in memory at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

LOGIT_CHUNK = 2048
"""Rows of logits held at once; at a vocabulary of 151,669 a chunk is 1.2 GB in float32."""
CPU_BLOCK = 8
"""Rows of logits that a CPU goes over at once: they stay in its caches from the softmax to the entropy."""

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


class TokenLogProbs(nn.Module):
    """Log-probabilities of given tokens from hidden states, with the logits of one chunk of rows at a time.

    How many chunks there are depends on the tokens, which differ between ranks. ZeRO-3 gathers a module's weights when the module
    is called, on all ranks together: so the head's weight is this module's own, gathered once for all chunks.
    """

    bias: torch.Tensor | None

    def __init__(self, head: Any):
        super().__init__()
        self.weight = head.weight
        self.register_parameter("bias", getattr(head, "bias", None))

    def forward(
        self, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, other: float, autocast: Autocast
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities of ``targets[N]``, entropies and detached log-probabilities at ``other``, from ``hidden[N, d]``."""
        keep = torch.is_grad_enabled() and len(hidden) <= LOGIT_CHUNK
        return _Selected.apply(hidden, self.weight, self.bias, targets, temperature, other, autocast, keep)  # pyright: ignore[reportReturnType]


class _Selected(torch.autograd.Function):
    """Selects log-probabilities, with a backward pass that makes no tensor of the logits' size but the probabilities.

    With z the logits at temperature T and y a token, d log p_y / dz = (onehot(y) − p) / T. The incoming gradient is one number a
    row, so it scales the rows of what the two matrix products take or give, never the probabilities. These are kept from the
    forward pass if there is one chunk, and computed again otherwise.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        other: float,
        autocast: Autocast,
        keep: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        outputs = torch.empty(3, len(hidden), device=hidden.device)
        residual = None
        for start in range(0, len(hidden), LOGIT_CHUNK):
            rows = slice(start, start + LOGIT_CHUNK)
            logits = _logits(hidden[rows], weight, bias, autocast)
            for block in _blocks(logits):
                places = slice(start + block.start, start + block.stop)
                token = targets[places, None]
                log_probs = F.log_softmax(logits[block] / temperature, dim=-1)
                outputs[0, places] = log_probs.gather(-1, token).squeeze(-1)
                if other != temperature:
                    compared = F.log_softmax(logits[block] / other, dim=-1)
                    outputs[2, places] = compared.gather(-1, token).squeeze(-1)
                probs = torch.exp(log_probs, out=logits[block])
                outputs[1, places] = -(log_probs.mul_(probs)).sum(-1)
            if keep:
                residual = _subtract_one(logits, targets[rows])
        if other == temperature:
            outputs[2] = outputs[0]
        selected, entropy, compared = outputs.unbind()
        ctx.save_for_backward(hidden, weight, bias, targets, residual)
        ctx.temperature, ctx.autocast = temperature, autocast
        ctx.mark_non_differentiable(entropy, compared)
        return selected, entropy, compared

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, kept = ctx.saved_tensors
        scale = (-grad / ctx.temperature)[:, None]
        of_hidden = torch.empty_like(hidden)
        of_weight = of_bias = None
        for start in range(0, len(hidden), LOGIT_CHUNK):
            rows = slice(start, start + LOGIT_CHUNK)
            residual = kept
            if residual is None:
                logits = _logits(hidden[rows], weight, bias, ctx.autocast)
                for block in _blocks(logits):
                    logits[block] = torch.softmax(logits[block] / ctx.temperature, dim=-1)
                residual = _subtract_one(logits, targets[rows])
            with ctx.autocast():
                of_hidden[rows] = scale[rows] * (residual @ weight)
                of_weight = _add(of_weight, residual.T @ (scale[rows] * hidden[rows]))
            if bias is not None:
                of_bias = _add(of_bias, residual.T @ scale[rows, 0])
        if of_weight is None:  # no rows
            of_weight, of_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        return of_hidden, of_weight, of_bias, None, None, None, None, None


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, autocast: Autocast) -> torch.Tensor:
    with autocast():
        return F.linear(hidden, weight, bias).float()


def _blocks(logits: torch.Tensor) -> list[slice]:
    """The rows that softmax and what follows it take at once: all of them on a GPU."""
    size = CPU_BLOCK if logits.device.type == "cpu" else LOGIT_CHUNK
    return [slice(start, min(start + size, len(logits))) for start in range(0, len(logits), size)]


def _subtract_one(probabilities: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """p − onehot(y), in place and before anything is rounded to the precision of a matrix product."""
    rows = torch.arange(len(targets), device=targets.device)
    probabilities[rows, targets] -= 1
    return probabilities


def _add(total: torch.Tensor | None, part: torch.Tensor) -> torch.Tensor:
    return part.float() if total is None else total.add_(part)
