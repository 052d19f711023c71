"""One forward pass over many token sequences in which nothing is padded and what sequences begin with is computed once.

Sequences are laid end to end in one row. Where one begins as another does, it holds only the tokens that are its own, and these
attend to the other's tokens as to their own past: a tree, whose inner nodes are shared prefixes. Norms, projections and MLPs,
most of a transformer's work on inputs of a few hundred tokens, see each distinct token once::

    packed = pack([prompt + response for response in responses])  # the prompt is found, and kept once
    hidden = packed_hidden_states(model, packed)  # [T, d], of T distinct tokens
    last = hidden[packed.rows[3][-1]]  # of the fourth sequence's last token

Values and gradients are those of each sequence by itself, up to rounding: positions go on from the prefix, and a token that
several sequences share collects the gradients of all of them. Only attention runs sequence by sequence, in buckets of like
lengths, over keys and values gathered from the row. It takes the place of the model's attention function for the call
(transformers' ``AttentionInterface``), so the model's own layers run unchanged; :func:`can_pack` says for which models this is
known to be exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from models.batching import MIN_SHARED, prefix_order

PROVEN_MODEL_TYPES = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma", "olmo2", "phi3", "smollm3", "starcoder2"}
)
"""Architectures whose packed values and gradients the tests compare with the plain ones, in float64."""
PROVEN_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""The others scale by the longest position of the pass, which depends on what else is in it."""
PADDED_AREA = 1.3
"""Query-key pairs of an attention bucket, padding included, over those of its sequences; 1 would be one call a length."""
SMALL_AREA = 1 << 16
"""Query-key pairs that a bucket may have whatever the share of padding: a call of its own would cost more."""

_NAME = "shared_prefix"


@dataclass(frozen=True)
class Bucket:
    """Sequences that attend in one call.

    Attributes:
        queries: ``[B, m]`` rows of their own tokens; padding repeats row 0 and its output is dropped.
        keys: ``[B, n]`` rows of all their tokens.
        mask: bool ``[B, 1, m, n]``, true where a query sees a key; None where it is the plain causal one.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Packed:
    """Sequences as one row of T distinct tokens.

    Attributes:
        input_ids, position_ids: int64 ``[1, T]``.
        rows: for each sequence, in the order given, the row of each of its tokens, shared ones included.
        buckets: how attention runs.
        restore: ``[T]``, the place of each row's output in the buckets' outputs one after the other.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    rows: list[np.ndarray]
    buckets: list[Bucket]
    restore: torch.Tensor

    @property
    def last_rows(self) -> torch.Tensor:
        """int64 ``[N]``, the row of each sequence's last token."""
        return torch.tensor([int(rows[-1]) for rows in self.rows], device=self.input_ids.device)


def pack(
    sequences: Sequence[Sequence[int]], *, device: torch.device | str = "cpu", min_shared: int = MIN_SHARED
) -> Packed:
    """Lay token sequences end to end, each shared prefix once.

    Args:
        sequences: token ids, none empty; equal ones are computed once.
        min_shared: shorter common prefixes are not shared.

    Raises:
        ValueError: a sequence is empty, or there is none.
    """
    if not sequences or not all(len(s) for s in sequences):
        raise ValueError("cannot pack: no sequence, or one without tokens")
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    rows: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(sequences)
    attending: list[_Attending] = []
    total = 0
    before = rows[0]  # of the sequence before, whose first tokens this one shares
    for index, shared in prefix_order(sequences, min_shared):
        ids = np.asarray(sequences[index], dtype=np.int64)
        own = len(ids) - shared
        rows[index] = np.concatenate([before[:shared], np.arange(total, total + own)])
        tokens.append(ids[shared:])
        positions.append(np.arange(shared, len(ids)))
        if own:
            attending.append(_Attending(shared, rows[index]))
        total += own
        before = rows[index]
    buckets, restore = _plan_attention(attending, total, device)
    return Packed(
        input_ids=torch.from_numpy(np.concatenate(tokens))[None].to(device),
        position_ids=torch.from_numpy(np.concatenate(positions))[None].to(device),
        rows=rows,
        buckets=buckets,
        restore=restore,
    )


def packed_hidden_states(model: Any, packed: Packed) -> torch.Tensor:
    """Final hidden states ``[T, d]`` of a causal LM's distinct tokens, with gradients where they are enabled.

    Args:
        model: one for which :func:`can_pack` is true, in evaluation mode: dropout would draw for each sequence anew. No other
            thread may run it meanwhile, for its attention function is another one.
    """
    with _packed_attention(model, packed):
        output = model.base_model(input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False)
    return output.last_hidden_state[0]


def can_pack(model: Any) -> bool:
    """Whether a model's packed values are known to be the plain ones: its attention sees all of the past and nothing else."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in PROVEN_MODEL_TYPES
        and rope.get("rope_type", "default") in PROVEN_ROPE_TYPES
        and all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())
        and not (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True))
    )


def distinct_tokens(sequences: Sequence[Sequence[int]], min_shared: int = MIN_SHARED) -> int:
    """T of the packed sequences, without packing them."""
    return sum(len(sequences[index]) - shared for index, shared in prefix_order(sequences, min_shared))


# -- attention ------------------------------------------------------------------------------------------------------------

_CURRENT: ContextVar[Packed] = ContextVar("packed")


@dataclass(frozen=True)
class _Attending:
    """A sequence with tokens of its own: how many before them are shared, and the rows of all."""

    shared: int
    rows: np.ndarray

    @property
    def own(self) -> int:
        return len(self.rows) - self.shared


def _plan_attention(
    sequences: list[_Attending], total: int, device: torch.device | str
) -> tuple[list[Bucket], torch.Tensor]:
    """Buckets of like sizes, those that share nothing apart: their mask is causal, and kernels know it without being given it."""
    buckets: list[Bucket] = []
    restore = np.empty(total, dtype=np.int64)
    offset = 0
    for alike in (
        sorted((s for s in sequences if not s.shared), key=lambda s: -s.own),
        sorted((s for s in sequences if s.shared), key=lambda s: (-s.own, -s.shared)),
    ):
        for members in _split(alike):
            bucket, places = _bucket(members, device)
            for member, row in zip(members, places, strict=True):
                restore[member.rows[member.shared :]] = offset + row[: member.own]
            offset += places.size
            buckets.append(bucket)
    return buckets, torch.from_numpy(restore).to(device)


def _split(sequences: list[_Attending]) -> Iterator[list[_Attending]]:
    """Cut a list into buckets whose padding is bounded."""
    current: list[_Attending] = []
    queries = keys = area = 0
    for sequence in sequences:
        own, length = sequence.own, len(sequence.rows)
        padded = (len(current) + 1) * max(queries, own) * max(keys, length)
        if current and padded > max(PADDED_AREA * (area + own * length), SMALL_AREA):
            yield current
            current, queries, keys, area = [], 0, 0, 0
        current.append(sequence)
        queries, keys, area = max(queries, own), max(keys, length), area + own * length
    if current:
        yield current


def _bucket(members: list[_Attending], device: torch.device | str) -> tuple[Bucket, np.ndarray]:
    """The bucket of some sequences, and the place of each query in its output, ``[B, m]``."""
    width, length = max(s.own for s in members), max(len(s.rows) for s in members)
    queries = np.zeros((len(members), width), dtype=np.int64)
    keys = np.zeros((len(members), length), dtype=np.int64)
    for row, sequence in enumerate(members):
        queries[row, : sequence.own] = sequence.rows[sequence.shared :]
        keys[row, : len(sequence.rows)] = sequence.rows
    mask = None
    if members[0].shared:
        # query j has position shared + j: it sees that key and all before it, and none of the padding
        seen = np.array([s.shared for s in members])[:, None] + np.arange(width)
        mask = torch.from_numpy(np.arange(length) <= seen[:, :, None])[:, None].to(device)
    places = np.arange(queries.size).reshape(queries.shape)
    return Bucket(torch.from_numpy(queries).to(device), torch.from_numpy(keys).to(device), mask), places


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers: ``query[1, H, T, D]``, ``key`` and ``value[1, H_kv, T, D]`` to ``[1, T, H, D]``."""
    packed = _CURRENT.get()
    groups = query.shape[1] // key.shape[1]
    outputs = []
    for bucket in packed.buckets:
        queries = _take(query, bucket.queries)
        keys, values = _take(key, bucket.keys), _take(value, bucket.keys)
        if (
            groups > 1 and bucket.mask is not None and query.is_cuda
        ):  # grouped heads and a mask have no fused kernel there
            keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=bucket.mask,
            is_causal=bucket.mask is None,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=keys.shape[1] != queries.shape[1],
        )
        outputs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, packed.restore)[None], None


def _take(states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows ``[B, n]`` of ``states[1, H, T, D]`` as ``[B, H, n, D]``."""
    taken = states[0].transpose(0, 1).flatten(1).index_select(0, rows.flatten())
    return taken.view(*rows.shape, states.shape[1], states.shape[3]).transpose(1, 2)


@contextmanager
def _packed_attention(model: Any, packed: Packed) -> Iterator[None]:
    """Within it the model's attention is that of the packed sequences."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attention)
    config = model.config
    own = config._attn_implementation
    token = _CURRENT.set(packed)
    # no mask function has this name: transformers then builds no mask, which would have T² entries
    config._attn_implementation = _NAME
    try:
        yield
    finally:
        config._attn_implementation = own
        _CURRENT.reset(token)
