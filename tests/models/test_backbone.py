"""Loading a backbone: which architectures and heads work, what is refused, and its parameters as a whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from models.backbone import Backbone
from models.batching import pad_left, pad_right
from models.tokenization import BackboneError

SIZES: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture
def model_folder(tiny_folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Save a model of the given config class with the tiny backbone's tokenizer."""

    def save(config_name: str, **options: Any) -> Path:
        import transformers

        config = getattr(transformers, config_name)(vocab_size=400, **{**SIZES, **options})
        folder = tmp_path / config_name
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config)
        bias = getattr(model.get_output_embeddings(), "bias", None)
        if bias is not None:
            torch.nn.init.normal_(bias)  # it begins as zero, which would hide that it is left out
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_folder / name, folder)
        return folder

    return save


def test_a_tied_head_is_one_parameter_with_the_embeddings(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    assert backbone.model.get_output_embeddings().weight is backbone.model.get_input_embeddings().weight
    assert "lm_head.weight" not in backbone.state()


def test_weights_go_straight_to_their_device(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch):
    import transformers

    asked: list[Any] = []
    load = transformers.AutoModelForCausalLM.from_pretrained

    def watched(*arguments: Any, **options: Any) -> Any:
        asked.append(options.get("device_map"))
        return load(*arguments, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", watched)
    backbone = Backbone.load(tiny_folder, device="cpu")
    assert asked == [{"": "cpu"}]
    assert not any(hasattr(module, "_hf_hook") for module in backbone.modules())  # accelerate moves nothing at run time


def test_an_untied_head_is_loaded_from_its_own_weights(model_folder):
    from safetensors.torch import load_file

    folder = model_folder("Qwen3Config", tie_word_embeddings=False, num_key_value_heads=1, head_dim=8)
    backbone = Backbone.load(folder)
    torch.testing.assert_close(
        backbone.state()["lm_head.weight"], load_file(folder / "model.safetensors")["lm_head.weight"]
    )


def test_an_untied_checkpoint_without_its_head_is_refused(model_folder):
    from safetensors.torch import load_file, save_file

    folder = model_folder("Qwen3Config", tie_word_embeddings=False, num_key_value_heads=1, head_dim=8)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match=r"weights are missing for lm_head\.weight"):
        Backbone.load(folder)


def test_weights_that_are_not_safetensors_are_refused(tiny_folder: Path, tmp_path: Path):
    from safetensors.torch import load_file

    folder = shutil.copytree(tiny_folder, tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match="pickled: cannot be loaded as a causal LM"):
        Backbone.load(folder)


def test_truncated_weights_are_refused_by_name(tiny_folder: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_folder, tmp_path / "truncated")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(BackboneError, match="truncated"):
        Backbone.load(folder)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(BackboneError, match=f"{tmp_path}/nowhere"):
        Backbone.load(tmp_path / "nowhere")


def test_a_folder_that_wants_to_run_its_own_code_is_refused(tiny_folder: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_folder, tmp_path / "custom")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "custom", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(BackboneError, match="custom"):
        Backbone.load(folder)


def test_an_unknown_dtype_is_refused_by_key(tiny_folder: Path):
    with pytest.raises(BackboneError, match=r"model\.dtype is 'float16'; expected one of \['bfloat16', 'float32'\]"):
        Backbone.load(tiny_folder, dtype="float16")


@pytest.mark.parametrize(
    ("config_name", "options"),
    [
        ("Qwen3Config", {"tie_word_embeddings": False, "num_key_value_heads": 1, "head_dim": 8}),
        ("LlamaConfig", {"num_key_value_heads": 1}),
        ("GPTNeoXConfig", {}),
        ("PhiConfig", {}),  # a head with a bias
        ("GPT2Config", {}),  # learned absolute positions: padding in front must not shift them
    ],
)
def test_an_architecture_encodes_alike_under_either_padding_and_predicts(model_folder, config_name, options):
    backbone = Backbone.load(model_folder(config_name, **options)).eval()
    sequences = [[5, 6, 7, 8, 0], [9, 0]]
    with torch.no_grad():
        right = backbone.embed(*pad_right(sequences, backbone.tokenizer.pad_id))
        left = backbone.embed(*pad_left(sequences, backbone.tokenizer.pad_id))
        single = backbone.embed(torch.tensor([sequences[1]]), torch.ones(1, 2, dtype=torch.long))
        log_probs, _, _ = backbone.response_log_probs([[5, 6]], [[7]])
        direct = backbone.model(torch.tensor([[5, 6]])).logits[0, -1].double().log_softmax(-1)[7]
    torch.testing.assert_close(right, left, atol=1e-5, rtol=0)
    torch.testing.assert_close(right[1:], single, atol=1e-5, rtol=0)
    assert log_probs.item() == pytest.approx(direct.item(), abs=1e-5)


def test_a_pooling_token_that_pads_in_the_models_config_is_trained_all_the_same(model_folder):
    folder = model_folder("LlamaConfig", pad_token_id=0)
    backbone = Backbone.load(folder)
    assert backbone.tokenizer.pooling_token_id == backbone.model.config.pad_token_id == 0
    backbone.embed(torch.tensor([[5, 0]]), torch.ones(1, 2, dtype=torch.long)).sum().backward()
    gradient = backbone.model.get_input_embeddings().weight.grad
    assert gradient[0].abs().sum() > 0


def test_master_weights_are_float32_whatever_the_compute_precision(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder, dtype="bfloat16")
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}


def test_bfloat16_weights_on_disk_become_float32(tiny_folder: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    folder = shutil.copytree(tiny_folder, tmp_path / "bf16")
    AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert {p.dtype for p in Backbone.load(folder).parameters()} == {torch.float32}


def test_a_state_that_was_taken_can_be_put_back(tiny_folder: Path):
    backbone, other = Backbone.load(tiny_folder), Backbone.load(tiny_folder)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state(backbone.state())
    for name, value in backbone.state().items():
        assert torch.equal(other.state()[name], value), name


def test_a_state_with_other_names_is_refused_with_the_names(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    state = backbone.state()
    state["extra.weight"] = state.pop("model.norm.weight")
    with pytest.raises(BackboneError, match=r"unknown \['extra\.weight'\], missing \['model\.norm\.weight'\]"):
        backbone.load_state(state)


def test_a_state_with_another_shape_is_refused_with_both_shapes(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    state = {**backbone.state(), "model.norm.weight": torch.ones(7)}
    with pytest.raises(BackboneError, match=r"model\.norm\.weight: shape \(7,\), expected \(32,\)"):
        backbone.load_state(state)


@pytest.mark.parametrize("tied", [True, False])
def test_a_blank_copy_with_the_weights_loaded_is_the_same_model(model_folder, tied: bool):
    folder = model_folder("Qwen3Config", tie_word_embeddings=tied, num_key_value_heads=1, head_dim=8)
    backbone = Backbone.load(folder)
    copy = backbone.blank_copy()
    copy.load_state(backbone.state())
    with torch.no_grad():
        assert torch.equal(
            copy.model(torch.tensor([[5, 6, 7]])).logits, backbone.model(torch.tensor([[5, 6, 7]])).logits
        )
    assert (copy.model.get_output_embeddings().weight is copy.model.get_input_embeddings().weight) is tied
    for name, parameter in copy.model.named_parameters():
        assert parameter.data_ptr() != backbone.model.get_parameter(name).data_ptr()


def test_a_face_can_be_called_through_the_module(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    ids, mask = torch.tensor([[5, 6, 0]]), torch.ones(1, 3, dtype=torch.long)
    assert torch.equal(backbone("embed", ids, mask), backbone.embed(ids, mask))


def test_the_log_probabilities_share_the_heads_weight(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    assert backbone.token_log_probs.weight is backbone.model.get_output_embeddings().weight
    assert sum(p.numel() for p in backbone.parameters()) == sum(p.numel() for p in backbone.model.parameters())
