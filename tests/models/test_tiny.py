"""The tiny backbone: reproducible, loadable and shaped as its config says."""

from __future__ import annotations

import json
from pathlib import Path

from models.backbone import Backbone
from models.tiny import TinyConfig, create_tiny

TEXTS = ["Draw a chart of my sales", "Fill the form of the table"]
SHAPE = TinyConfig(
    vocab_size=280, hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_key_value_heads=1
)


def test_the_same_texts_and_config_give_the_same_files(tmp_path: Path):
    first, second = create_tiny(TEXTS, tmp_path / "a", SHAPE), create_tiny(TEXTS, tmp_path / "b", SHAPE)
    names = sorted(p.name for p in first.iterdir())
    assert names == sorted(p.name for p in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_another_seed_gives_other_weights(tmp_path: Path):
    first = create_tiny(TEXTS, tmp_path / "a", SHAPE)
    second = create_tiny(TEXTS, tmp_path / "b", TinyConfig(**{**vars(SHAPE), "seed": 1}))
    assert (first / "model.safetensors").read_bytes() != (second / "model.safetensors").read_bytes()


def test_it_is_a_tied_qwen3_of_the_configs_shape(tmp_path: Path):
    backbone = Backbone.load(create_tiny(TEXTS, tmp_path / "tiny", SHAPE))
    config = backbone.model.config
    assert (config.model_type, config.tie_word_embeddings, config.num_hidden_layers) == ("qwen3", True, 1)
    assert (backbone.hidden_size, config.intermediate_size, config.vocab_size) == (16, 24, len(backbone.tokenizer.hf))


def test_its_pooling_token_pads_and_is_not_its_end_token(tmp_path: Path):
    folder = create_tiny(TEXTS, tmp_path / "tiny", SHAPE)
    tokenizer = Backbone.load(folder).tokenizer
    assert tokenizer.pooling_token_id == tokenizer.pad_id != tokenizer.eos_id
    assert tokenizer.hf.convert_ids_to_tokens([tokenizer.pooling_token_id, tokenizer.eos_id]) == [
        "<|endoftext|>",
        "<|im_end|>",
    ]
    assert json.loads((folder / "config.json").read_text())["pooling_token_id"] == tokenizer.pooling_token_id


def test_its_pooling_token_starts_without_a_direction_of_its_own(tmp_path: Path):
    backbone = Backbone.load(create_tiny(TEXTS, tmp_path / "tiny", SHAPE))
    assert backbone.model.get_input_embeddings().weight[backbone.tokenizer.pooling_token_id].abs().sum() == 0


def test_creating_it_leaves_the_global_random_state(tmp_path: Path):
    import torch

    before = torch.random.get_rng_state()
    create_tiny(TEXTS, tmp_path / "tiny", SHAPE)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_any_unicode_text_survives_its_tokenizer(tmp_path: Path):
    tokenizer = Backbone.load(create_tiny(TEXTS, tmp_path / "tiny", SHAPE)).tokenizer
    text = "naïve 世界 🙂 \t x"
    assert tokenizer.decode([tokenizer.hf(text, add_special_tokens=False)["input_ids"]]) == [text]
