"""Exports give the embeddings and logits of training, through nothing but the public loaders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbone import Backbone
from models.export import export_causal_lm, export_retriever
from models.tokenization import ModelTokenizer
from models.views import document_view, raw_view

LIMIT = 64
REQUESTS = ["Draw a chart of my sales", "", "a chart, a table and a form " * 30, "  spaces around \n"]
DOCUMENTS = ["chart-maker | Makes charts | # Chart\n", "", "form-filler | Fills forms | " + "Reads fields. " * 60]


@pytest.fixture(scope="module")
def exported(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_retriever(backbone, tmp_path_factory.mktemp("export") / "retriever", LIMIT)


@pytest.fixture(scope="module")
def sentence_transformer(exported: Path):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(exported), device="cpu")


def assert_same_embeddings(model, backbone: Backbone) -> None:
    tokenizer = backbone.tokenizer
    queries = backbone.encode(tokenizer.encode_views([raw_view(r) for r in REQUESTS], LIMIT), 0).numpy()
    documents = backbone.encode(tokenizer.encode_views([document_view(d) for d in DOCUMENTS], LIMIT), 0).numpy()
    np.testing.assert_allclose(model.encode_query(REQUESTS), queries, atol=1e-5)
    np.testing.assert_allclose(model.encode_document(DOCUMENTS), documents, atol=1e-5)


def test_encode_query_and_encode_document_give_our_embeddings(sentence_transformer, backbone: Backbone):
    assert len(backbone.tokenizer.encode_views([raw_view(REQUESTS[2])], LIMIT)[0]) == LIMIT
    assert_same_embeddings(sentence_transformer, backbone)


def test_one_text_at_a_time_gives_the_same_embeddings_as_a_batch(sentence_transformer):
    together = sentence_transformer.encode_document(DOCUMENTS)
    alone = np.stack([sentence_transformer.encode_document(d) for d in DOCUMENTS])
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_the_similarity_is_the_cosine(sentence_transformer):
    assert sentence_transformer.similarity_fn_name == "cosine"


def test_the_export_keeps_its_length_limit_and_prompts(sentence_transformer):
    assert sentence_transformer.max_seq_length == LIMIT
    assert sentence_transformer.prompts["document"] == ""
    assert sentence_transformer.prompts["query"].startswith("Instruct: Given a task description")
    assert sentence_transformer.prompts["query"].endswith("\nQuery:")


def test_the_export_is_float32_safetensors(exported: Path):
    from safetensors.torch import load_file

    assert not list(exported.rglob("*.bin"))
    (weights,) = exported.rglob("*.safetensors")
    assert {tensor.dtype for tensor in load_file(weights).values()} == {torch.float32}


def test_a_limit_beyond_the_models_positions_is_lowered_to_them(backbone: Backbone, tmp_path: Path):
    folder = export_retriever(backbone, tmp_path / "long", 100_000)
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(folder), device="cpu").max_seq_length == 4096


@pytest.mark.parametrize("change", ["appends nothing", "chat template", "pads left"])
def test_a_tokenizer_with_habits_of_its_own_exports_alike(tiny_folder: Path, tmp_path: Path, change: str):
    from sentence_transformers import SentenceTransformer

    folder = shutil.copytree(tiny_folder, tmp_path / "source")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if change == "appends nothing":
        tokenizer["post_processor"] = None
    elif change == "chat template":
        settings["chat_template"] = "{% for m in messages %}<|im_end|>{{ m['content'] }}{% endfor %}"
    else:
        settings["padding_side"] = "left"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    backbone = Backbone.load(folder).eval()
    assert backbone.tokenizer.pooling_token_id == 0
    model = SentenceTransformer(str(export_retriever(backbone, tmp_path / "out", LIMIT)), device="cpu")
    assert_same_embeddings(model, backbone)


# -- the causal LM ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def causal_lm(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_causal_lm(backbone, tmp_path_factory.mktemp("export") / "causal_lm")


def test_the_causal_lm_has_equal_logits(causal_lm: Path, backbone: Backbone):
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert torch.equal(
            AutoModelForCausalLM.from_pretrained(causal_lm).eval()(ids).logits, backbone.model(ids).logits
        )


def test_the_causal_lm_keeps_pooling_token_stop_ids_and_prompt_style(causal_lm: Path, backbone: Backbone):
    ours, theirs = backbone.tokenizer, ModelTokenizer.load(causal_lm)
    assert theirs.pooling_token_id == ours.pooling_token_id
    assert theirs.stop_token_ids == ours.stop_token_ids
    assert theirs.prompt_style == ours.prompt_style == "short"


def test_transformers_generation_stops_where_ours_does(causal_lm: Path, backbone: Backbone):
    settings = json.loads((causal_lm / "generation_config.json").read_text())
    assert settings["eos_token_id"] == list(backbone.tokenizer.stop_token_ids)


def test_the_causal_lm_is_a_backbone_again_with_the_same_embeddings(causal_lm: Path, backbone: Backbone):
    again = Backbone.load(causal_lm).eval()
    sequences = backbone.tokenizer.encode_views([raw_view("Draw a chart")], LIMIT)
    assert again.tokenizer.encode_views([raw_view("Draw a chart")], LIMIT) == sequences
    assert torch.equal(again.encode(sequences, 0), backbone.encode(sequences, 0))


def test_a_pooling_token_that_was_inferred_is_stored_with_the_export(tiny_folder: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_folder, tmp_path / "source")
    config = json.loads((folder / "config.json").read_text())
    del config["pooling_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    out = export_causal_lm(Backbone.load(folder), tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["pooling_token_id"] == 0
