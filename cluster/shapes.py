"""The shape of a causal LM, and what follows from it alone: parameters, saved activations, keys and values of a token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import ConfigError

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    """A pre-norm transformer with grouped queries, rotary positions and a gated MLP: the Llama and Qwen families.

    Attributes:
        vocab, hidden, intermediate, layers, heads, kv_heads, head_dim: sizes, as in ``config.json``.
        tied: the LM head is the input embedding.
        qk_norm: queries and keys are normalized (Qwen3).
        attention_bias: 0, 3 (query, key, value: Qwen2) or 4 (also the output) projections with a bias.
    """

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = True
    qk_norm: bool = True
    attention_bias: int = 0

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    def matrices(self) -> list[tuple[int, int]]:
        """Rows and columns of one layer's weight matrices: query, key, value, output, gate, up, down."""
        d, q, kv, i = self.hidden, self.query_width, self.kv_width, self.intermediate
        return [(q, d), (kv, d), (kv, d), (d, q), (i, d), (i, d), (d, i)]

    def vectors(self) -> list[int]:
        """Sizes of one layer's vectors: two norms, the norms of queries and keys, biases."""
        biases = [self.query_width, self.kv_width, self.kv_width, self.hidden][: self.attention_bias]
        return [self.hidden, self.hidden, *([self.head_dim] * 2 if self.qk_norm else []), *biases]

    @property
    def layer_matrix_parameters(self) -> int:
        return sum(rows * columns for rows, columns in self.matrices())

    @property
    def layer_parameters(self) -> int:
        return self.layer_matrix_parameters + sum(self.vectors())

    @property
    def embedding_parameters(self) -> int:
        """The input embedding, which is also the LM head where that is tied."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, a tied head once."""
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    def adafactor_moments(self) -> int:
        """Numbers that Adafactor keeps: a row and a column mean of each matrix, every entry of a vector."""
        layer = sum(rows + columns for rows, columns in self.matrices()) + sum(self.vectors())
        embeddings = (self.vocab + self.hidden) * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    def layer_activation_bytes(self, dtype: str) -> int:
        """Bytes of one token that a layer keeps for its backward pass, weights stored in float32.

        ``d`` hidden, ``q`` and ``k`` query and key width, ``i`` intermediate, ``h`` heads:

        - norms: their input and the normalized input in float32, twice: 16d (and one statistic each);
        - inputs of the projections: bfloat16 casts one, query, key, value, gate and up: 10d; in float32 two tensors: 8d;
        - queries: 4q before and 2q after their norm, 2q rotated, 2q attention output; in float32 4q each;
        - keys and values: 4k, 2k, 2k and 2k; in float32 4k each;
        - MLP: gate, its activation, up and their product: 8i; in float32 16i;
        - attention's log-sum-exp: 4h.
        """
        d, q, k, i, h = self.hidden, self.query_width, self.kv_width, self.intermediate, self.heads
        size = 2 if dtype == "bfloat16" else 4
        inputs = 10 * d if dtype == "bfloat16" else 8 * d
        norm = (4 + size) * (q + k) + 4 * (h + self.kv_heads) if self.qk_norm else 0
        attention = size * (2 * q + 2 * k) + 4 * h
        return 16 * d + 8 + inputs + norm + attention + 4 * size * i

    def kv_bytes(self, dtype: str) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_width * (2 if dtype == "bfloat16" else 4)


KNOWN: Mapping[str, ModelShape] = {
    "Qwen/Qwen3-Embedding-0.6B": ModelShape(151669, 1024, 3072, 28, 16, 8, 128),
    "Qwen/Qwen3-Embedding-4B": ModelShape(151665, 2560, 9728, 36, 32, 8, 128),
}
"""The paper's backbones, from their config.json: no download is needed to plan with them."""


def read_shape(path: str, key: str = "model.path") -> tuple[ModelShape, str]:
    """The shape of a model folder or a known model, and where it comes from.

    A folder that does not exist yet, such as the export of a run still to be made, counts as the known model whose size its path
    names: ``runs/stage1-4b/export/causal_lm`` is Qwen3-Embedding-4B.

    Raises:
        ConfigError: no such folder, an architecture this module has no formula for, or a ``config.json`` without a size.
    """
    if path in KNOWN:
        return KNOWN[path], path
    file = Path(path) / "config.json"
    if file.is_file():
        try:
            return _from_config(json.loads(file.read_text(encoding="utf-8")), str(file)), path
        except json.JSONDecodeError as error:
            raise ConfigError(f"{file}: not JSON: {error}") from error
    for name, shape in KNOWN.items():
        size = re.escape(name.rsplit("-", 1)[1])
        if re.search(rf"(?<![\d.]){size}(?![a-z])", path, re.IGNORECASE):
            return shape, f"{name}, assumed from the name {path}"
    raise ConfigError(f"{key} is {path!r}: no folder with a config.json; expected one, or one of {', '.join(KNOWN)}")


def _from_config(config: dict[str, Any], source: str) -> ModelShape:
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(f"{source}: model_type is {kind!r}; sizes are known for {', '.join(ARCHITECTURES)}")
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return ModelShape(
            vocab=int(config["vocab_size"]),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=kind == "qwen3",
            attention_bias=3 if kind == "qwen2" else 4 if config.get("attention_bias") else 0,
        )
    except KeyError as error:
        raise ConfigError(f"{source}: {error.args[0]} is missing") from error
