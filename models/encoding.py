"""How texts are batched for a SentenceTransformer: by their tokens, so that little is padding and a CPU's caches hold a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from models.batching import plan_micro_batches

CPU_TOKENS = 2048
"""Padded tokens of a batch on a CPU: more do not fit its caches, fewer waste the matrix products (docs/performance.md)."""

_TOKENIZED_AT_ONCE = 4096

Encode = Callable[[list[str], int], np.ndarray]
"""``(texts, batch_size) -> [n, d]``."""


def encode_by_tokens(
    encode: Encode, texts: Sequence[str], lengths: Sequence[int], token_budget: int, *, progress: bool = False
) -> np.ndarray:
    """Embeddings ``[n, d]`` of texts, in their order, from batches of like lengths.

    The library sorts by characters and takes a fixed number of texts: a batch then has rows of different lengths, and
    attention gets a mask. Rows of equal length need none.

    Args:
        lengths: tokens of each text; what decides the batches, not the result.
        token_budget: largest ``rows * longest row`` of a batch; a longer text is alone.
    """
    out: np.ndarray | None = None
    with tqdm(total=len(texts), desc="encoding", unit="text", disable=not progress) as bar:
        for rows in plan_micro_batches([max(length, 1) for length in lengths], token_budget):
            embedded = encode([texts[row] for row in rows], len(rows))
            if out is None:
                out = np.empty((len(texts), embedded.shape[1]), dtype=np.float32)
            out[rows] = embedded
            bar.update(len(rows))
    if out is None:
        raise ValueError("no texts to encode; expected at least one")
    return out


def token_lengths(model: Any, texts: Sequence[str]) -> list[int] | None:
    """Tokens of each text after truncation, prompts not counted; None for a model without a tokenizer that counts them."""
    tokenizer = getattr(model, "tokenizer", None)
    if not callable(tokenizer):
        return None
    lengths: list[int] = []
    for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
        chunk = list(texts[start : start + _TOKENIZED_AT_ONCE])
        try:
            encoded: Any = tokenizer(chunk, truncation=True, max_length=model.max_seq_length, padding=False)
            found = encoded["input_ids"]
        except (TypeError, KeyError, ValueError):  # a processor of images, a word list
            return None
        lengths.extend(len(ids) for ids in found)
    return lengths


def token_budget(batch_size: int, max_length: int, device: str) -> int:
    """Padded tokens of a batch: as many as ``batch_size`` texts of full length have, at most :data:`CPU_TOKENS` on a CPU."""
    full = batch_size * max_length
    return min(full, CPU_TOKENS) if device == "cpu" else full
