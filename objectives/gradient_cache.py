"""Gradient caching: contrastive batches of any size in the memory of one micro-batch.

A contrastive loss needs every embedding of the batch at once, but the chain rule lets the batch be cut: embed everything
without activations, take the loss and its gradient with respect to the embeddings, then embed each micro-batch again and
push its share of that gradient through (Gao et al., 2021). The result equals the uncut computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import get_device_states, set_device_states

from models.batching import pad_right, plan_micro_batches

Embed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""``(input_ids[B, T], attention_mask[B, T]) -> [B, d]``."""
LossOfEmbeddings = Callable[[Mapping[str, torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]


def cached_backward(
    embed: Embed,
    views: Mapping[str, Sequence[Sequence[int]]],
    loss_of: LossOfEmbeddings,
    *,
    pad_id: int,
    device: torch.device | str,
    token_budget: int,
    stop_gradient: frozenset[str] = frozenset(),
    cache: bool = True,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Accumulate the gradients of ``loss_of(embeddings)`` into the parameters behind ``embed``.

    Args:
        embed: differentiable encoder of one padded micro-batch.
        views: name to token sequences; micro-batches mix the views by length.
        loss_of: gets ``{name: [N_name, d]}`` and returns the scalar loss and metrics to report.
        token_budget: padded tokens of a micro-batch, see :func:`plan_micro_batches`.
        stop_gradient: views that are embedded once, without gradient.
        cache: false keeps every activation instead of embedding twice: faster where memory allows.

    Returns:
        The detached loss and ``loss_of``'s metrics.
    """
    names = list(views)
    sequences = [s for name in names for s in views[name]]
    owners = [name for name in names for _ in views[name]]
    trained = [i for i, owner in enumerate(owners) if owner not in stop_gradient]
    frozen = [i for i, owner in enumerate(owners) if owner in stop_gradient]

    def micro_batches(rows: list[int]) -> list[list[int]]:
        return [[rows[j] for j in plan] for plan in plan_micro_batches([len(sequences[i]) for i in rows], token_budget)]

    def run(rows: list[int]) -> torch.Tensor:
        ids, mask = pad_right([sequences[r] for r in rows], pad_id, device)
        return embed(ids, mask)

    def gather(chunks: list[tuple[list[int], torch.Tensor]]) -> torch.Tensor:
        order = torch.tensor([r for rows, _ in chunks for r in rows], device=device)
        stacked = torch.cat([out for _, out in chunks])
        return stacked[torch.argsort(order)]

    with torch.no_grad():
        frozen_chunks = [(rows, run(rows)) for rows in micro_batches(frozen)]
    plan = micro_batches(trained)
    cache = cache and len(plan) > 1
    states: list[Any] = []
    trained_chunks: list[tuple[list[int], torch.Tensor]] = []
    with torch.set_grad_enabled(not cache):
        for rows in plan:
            if cache:
                states.append(_rng_state(device))
            trained_chunks.append((rows, run(rows)))
    embeddings = gather(trained_chunks + frozen_chunks)
    if cache:
        embeddings = embeddings.detach().requires_grad_()

    by_view = dict(zip(names, embeddings.split([len(views[n]) for n in names]), strict=True))
    for name in stop_gradient & by_view.keys():
        by_view[name] = by_view[name].detach()
    loss, metrics = loss_of(by_view)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the retrieval loss is {loss.item()}; terms: {metrics}")
    loss.backward()
    if cache:
        assert embeddings.grad is not None
        gradient = embeddings.grad
        for rows, state in zip(plan, states, strict=True):
            with torch.random.fork_rng(devices=_cuda_devices(device)):
                _restore_rng(state)
                (run(rows) * gradient[rows]).sum().backward()
    return loss.detach(), metrics


def _cuda_devices(device: torch.device | str) -> list[int]:
    resolved = torch.device(device)
    return [resolved.index or 0] if resolved.type == "cuda" else []


def _rng_state(device: torch.device | str) -> Any:
    """What dropout would draw from: the second pass must see what the first saw."""
    cuda = _cuda_devices(device)
    devices = get_device_states(torch.empty(0, device=device)) if cuda else None
    return torch.random.get_rng_state(), devices


def _restore_rng(state: Any) -> None:
    cpu, devices = state
    torch.random.set_rng_state(cpu)
    if devices is not None:
        set_device_states(*devices)
