"""Sizes from a model's config.json alone equal those of the model that transformers builds from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.optimization import Adafactor

from cluster.shapes import KNOWN, ModelShape, read_shape
from configs import ConfigError

SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
FAMILIES = [
    Qwen3Config(**SIZES, tie_word_embeddings=True),
    Qwen3Config(**SIZES, tie_word_embeddings=False, attention_bias=True),
    Qwen2Config(**{**SIZES, "hidden_size": 64}, tie_word_embeddings=True),
    LlamaConfig(**{**SIZES, "hidden_size": 64}, tie_word_embeddings=True),
    MistralConfig(**SIZES, tie_word_embeddings=False),
]


def saved(config: PretrainedConfig, folder: Path) -> ModelShape:
    """The shape that is read from the ``config.json`` that transformers writes."""
    config.save_pretrained(folder)
    return read_shape(str(folder))[0]


def build(config: PretrainedConfig) -> Any:
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    "config", FAMILIES, ids=lambda c: f"{c.model_type}-{'tied' if c.tie_word_embeddings else 'untied'}"
)
def test_the_parameters_are_those_of_the_model(config: PretrainedConfig, tmp_path: Path):
    assert saved(config, tmp_path).parameters == sum(p.numel() for p in build(config).parameters())


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_known_backbone_has_as_many_parameters_as_transformers_makes_of_its_sizes(name: str):
    shape = KNOWN[name]
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = build(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    # what the backbones are called by: 0.6 and 4 billion
    assert round(shape.parameters / 1e9, 1) == float(name.rsplit("-", 1)[1].removesuffix("B"))


@pytest.mark.parametrize("config", [FAMILIES[0], FAMILIES[1]], ids=["tied", "untied"])
def test_adafactor_keeps_as_many_moments_as_planned(config: PretrainedConfig, tmp_path: Path):
    model = build(config)
    optimizer = Adafactor(model.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    optimizer.step()
    kept = sum(v.numel() for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v) and v.dim())
    assert saved(config, tmp_path).adafactor_moments() == kept


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", [Qwen3Config, LlamaConfig], ids=lambda f: f.model_type)
def test_a_layer_saves_as_many_bytes_for_its_backward_pass_as_planned(
    family: type[PretrainedConfig], dtype: str, tmp_path: Path
):
    """Measured as the difference that one more layer makes to what autograd saves, weights and their casts left out."""
    rows, length = 3, 7

    def saved_bytes(layers: int) -> int:
        model = build(family(**{**SIZES, "hidden_size": 64, "num_hidden_layers": layers}))
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        matrices = {shape for p in model.parameters() if p.dim() == 2 for shape in (tuple(p.shape), tuple(p.T.shape))}
        found: dict[int, torch.Tensor] = {}

        def remember(tensor: torch.Tensor) -> torch.Tensor:
            key = tensor.untyped_storage().data_ptr()
            if key not in weights and tuple(tensor.shape) not in matrices:
                found[key] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(remember, lambda t: t):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                model.base_model(torch.zeros(rows, length, dtype=torch.long), use_cache=False)
            return sum(t.untyped_storage().nbytes() for t in found.values())

    shape = saved(family(**{**SIZES, "hidden_size": 64}), tmp_path)
    assert saved_bytes(2) - saved_bytes(1) == rows * length * shape.layer_activation_bytes(dtype)


def test_a_token_s_keys_and_values_are_those_of_the_model_s_cache(tmp_path: Path):
    config = FAMILIES[0]
    cache = build(config)(torch.zeros(1, 5, dtype=torch.long), use_cache=True).past_key_values
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert saved(config, tmp_path).kv_bytes("float32") * 5 == size


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("runs/stage1-4b/export/causal_lm", "Qwen/Qwen3-Embedding-4B"),
        ("/shared/runs/mine-0.6B/export/causal_lm", "Qwen/Qwen3-Embedding-0.6B"),
    ],
)
def test_an_export_still_to_be_made_counts_as_the_backbone_its_path_names(path: str, name: str):
    shape, source = read_shape(path)
    assert shape == KNOWN[name]
    assert "assumed" in source
    assert path in source


@pytest.mark.parametrize("path", ["runs/mine/export", "runs/14b/export", "runs/x-4bit"])
def test_a_path_that_names_no_size_is_refused_with_what_is_known(path: str):
    with pytest.raises(ConfigError, match=r"model\.path is .*; expected one, or one of Qwen/Qwen3-Embedding-0\.6B"):
        read_shape(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        (json.dumps({"model_type": "gpt2"}), "model_type is 'gpt2'; sizes are known for llama"),
        (json.dumps({"model_type": "qwen3", "hidden_size": 8}), "num_attention_heads is missing"),
    ],
)
def test_an_unreadable_config_is_refused_by_name(content: str, message: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_shape(str(tmp_path))
