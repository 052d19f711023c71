"""Gradient caching: contrastive batches of any size in the memory of one micro-batch, on any number of processes.

A contrastive loss needs every embedding of the batch at once, but the chain rule lets the batch be cut: embed everything
without activations, take the loss and its gradient with respect to the embeddings, then embed each micro-batch again and
push its share of that gradient through (Gao et al., 2021). The result equals the uncut computation. The last micro-batch keeps
its activations at once: they need the memory that each of the others needs later, and it is not embedded twice.

Across processes each one embeds its share of the sequences, the embeddings are gathered, and every process takes the same
loss of all of them: none needs another's activations, and none needs another's gradient but its own rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.checkpoint import get_device_states, set_device_states

from models.batching import pad_right, plan_over_ranks, plan_packed
from objectives.engine import Engine


class Face(NamedTuple):
    """What an engine computes of each sequence, by the name of its method, and how many numbers that is.

    A packed face takes token sequences as they are, and computes what they begin with once (:mod:`models.shared_prefix`); another
    takes a padded batch and its mask.
    """

    name: str
    width: int
    packed: bool = False


LossOfEmbeddings = Callable[[Mapping[str, torch.Tensor]], tuple[torch.Tensor, dict[str, float]]]


def cached_backward(
    engine: Engine,
    views: Mapping[str, Sequence[Sequence[int]]],
    loss_of: LossOfEmbeddings,
    *,
    token_budget: int,
    stop_gradient: frozenset[str] = frozenset(),
    cache: bool = True,
    face: Face | None = None,
    of: str = "retrieval",
) -> tuple[torch.Tensor, dict[str, float]]:
    """Accumulate the gradients of ``loss_of(embeddings)`` in the engine. Collective: every rank passes the same arguments.

    Args:
        views: name to token sequences; micro-batches mix the views by length.
        loss_of: gets ``{name: [N_name, d]}`` and returns the scalar loss and metrics to report.
        token_budget: tokens of a micro-batch, padded ones or distinct ones, see :func:`plan_over_ranks` and :func:`plan_packed`.
        stop_gradient: views that are embedded once, without gradient.
        cache: false keeps every activation instead of embedding twice: faster where memory allows.
        face: what is computed of a sequence instead of its embedding; the rows then are as wide as it says.
        of: the loss's name in errors.

    Returns:
        The detached loss and ``loss_of``'s metrics, the same on every rank.

    Raises:
        FloatingPointError: the loss is not finite; on every rank, before any gradient.
    """
    names = list(views)
    sequences = [s for name in names for s in views[name]]
    owners = [name for name in names for _ in views[name]]
    face = face or embedding_face(engine)
    everything = range(len(sequences))
    without_gradient = {i for i in everything if owners[i] in stop_gradient}
    # padded, what gets no gradient needs no activations; packed, it costs only the tokens that it shares with no other sequence
    apart = set() if face.packed else without_gradient
    frozen = _Share(engine, sequences, [i for i in everything if i in apart], token_budget, face)
    trained = _Share(engine, sequences, [i for i in everything if i not in apart], token_budget, face)

    with torch.no_grad():
        frozen_outputs = [frozen.embed(rows) for rows in frozen.passes]
    twice = len(trained.passes) - 1 if cache else 0  # passes that are run again
    states: list[Any] = []
    outputs: list[torch.Tensor] = []
    for number, rows in enumerate(trained.passes):
        states.append(_rng_state(engine.device) if number < twice else None)
        with torch.set_grad_enabled(number >= twice):
            outputs.append(trained.embed(rows))
    gathered = torch.cat([trained.gather(outputs), frozen.gather(frozen_outputs)])
    order = torch.tensor(trained.order + frozen.order, device=gathered.device)
    embeddings = gathered[torch.argsort(order)].requires_grad_()

    by_view = dict(zip(names, embeddings.split([len(views[n]) for n in names]), strict=True))
    for name in stop_gradient & by_view.keys():
        by_view[name] = by_view[name].detach()
    loss, metrics = loss_of(by_view)
    if not torch.isfinite(loss):
        raise FloatingPointError(f"the {of} loss is {loss.item()}; terms: {metrics}")
    (gradient,) = torch.autograd.grad(loss, embeddings)
    # one backward pass for all that is kept: ZeRO-3 takes a second one without a forward pass before it for an update's first
    kept = [(o * gradient[rows]).sum() for rows, o in zip(trained.passes, outputs, strict=True) if o.requires_grad]
    del outputs
    if kept:
        engine.backward(torch.stack(kept).sum())
    del kept
    for rows, state in zip(trained.passes[:twice], states, strict=False):
        rows = [row for row in rows if row not in without_gradient]
        if rows or engine.needs_equal_passes:
            with torch.random.fork_rng(devices=_cuda_devices(engine.device)):
                _restore_rng(state)
                engine.backward((trained.embed(rows) * gradient[rows]).sum())
    return loss.detach(), metrics


def embedding_face(engine: Engine) -> Face:
    """Embeddings, packed where the model allows it."""
    packs = engine.backbone.packs
    return Face("embed_sequences" if packs else "embed", engine.backbone.hidden_size, packed=packs)


def rows_of(engine: Engine, sequences: Sequence[Sequence[int]], token_budget: int, face: Face) -> torch.Tensor:
    """A face's rows ``[N, width]`` of all sequences, in their order, without gradients, on every rank. Collective."""
    share = _Share(engine, sequences, list(range(len(sequences))), token_budget, face)
    with torch.no_grad():
        gathered = share.gather([share.embed(rows) for rows in share.passes])
    return gathered[torch.argsort(torch.tensor(share.order, dtype=torch.long, device=gathered.device))]


class _Share:
    """Some of the sequences, spread over the ranks: this rank's passes over them, and the way back to all.

    Attributes:
        passes: row numbers of each of this rank's micro-batches; an empty one is a dummy.
        order: row number of each gathered embedding.
    """

    def __init__(
        self, engine: Engine, sequences: Sequence[Sequence[int]], rows: list[int], token_budget: int, face: Face
    ):
        self.engine, self.face = engine, face
        self.sequences = sequences
        ranks = engine.collectives.size
        if face.packed:
            plan = plan_packed([sequences[i] for i in rows], token_budget, ranks)
        else:
            plan = plan_over_ranks([len(sequences[i]) for i in rows], token_budget, ranks)
        by_rank = [[[rows[j] for j in batch] for batch in passes] for passes in plan]
        self.passes = by_rank[engine.collectives.rank]
        self.order = [row for passes in by_rank for batch in passes for row in batch]

    def embed(self, rows: list[int]) -> torch.Tensor:
        """``[len(rows), width]``, with gradients where they are enabled; of no rows, a dummy's where ranks run equal passes."""
        tokenizer, device = self.engine.backbone.tokenizer, self.engine.device
        if not rows and not self.engine.needs_equal_passes:
            return torch.empty(0, self.face.width, device=device)
        sequences = [self.sequences[r] for r in rows] or [[tokenizer.pooling_token_id]]
        face = getattr(self.engine, self.face.name)
        inputs = [sequences] if self.face.packed else pad_right(sequences, tokenizer.pad_id, device)
        return face(*inputs)[: len(rows)]

    def gather(self, outputs: list[torch.Tensor]) -> torch.Tensor:
        """Every rank's embeddings without gradients, in :attr:`order`."""
        empty = torch.empty(0, self.face.width, device=self.engine.device)
        return self.engine.collectives.gather_rows(torch.cat([o.detach() for o in outputs]) if outputs else empty)


def _cuda_devices(device: torch.device) -> list[int]:
    return [device.index or 0] if device.type == "cuda" else []


def _rng_state(device: torch.device) -> Any:
    """What dropout would draw from: the second pass must see what the first saw."""
    devices = get_device_states(torch.empty(0, device=device)) if device.type == "cuda" else None
    return torch.random.get_rng_state(), devices


def _restore_rng(state: Any) -> None:
    cpu, devices = state
    torch.random.set_rng_state(cpu)
    if devices is not None:
        set_device_states(*devices)
