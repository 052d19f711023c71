"""The SentenceTransformer encoder: prompts, limits, fingerprints, and what it refuses to load."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from models.encoder import load_encoder, resolve_encoder_folder

PROMPTS = {"query": "query : ", "document": "document : "}


def test_embeddings_are_float32_with_unit_rows_in_the_order_given(tiny_model):
    encoder = load_encoder(tiny_model())
    texts = ["find pdf", "convert the table to a chart in the document", "chart"]
    rows = encoder.encode_documents(texts)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    for text, row in zip(texts, rows, strict=True):
        np.testing.assert_allclose(encoder.encode_documents([text])[0], row, atol=1e-5)


def test_requests_and_documents_get_the_models_prompts(tiny_model):
    with_prompts, bare = load_encoder(tiny_model(PROMPTS)), load_encoder(tiny_model())
    np.testing.assert_allclose(
        with_prompts.encode_queries(["find pdf"]), bare.encode_queries(["query : find pdf"]), atol=1e-6
    )
    np.testing.assert_allclose(
        with_prompts.encode_documents(["find pdf"]), bare.encode_documents(["document : find pdf"]), atol=1e-6
    )


def test_a_model_without_prompts_encodes_requests_and_documents_alike(tiny_model):
    encoder = load_encoder(tiny_model())
    np.testing.assert_allclose(encoder.encode_queries(["find pdf"]), encoder.encode_documents(["find pdf"]), atol=1e-6)


@pytest.mark.parametrize(("asked", "used"), [(None, 16), (8, 8), (1000, 16)])
def test_the_models_own_limit_wins_where_it_is_lower(tiny_model, asked, used):
    encoder = load_encoder(tiny_model(max_seq_length=16), max_length=asked)
    assert encoder.max_length == used
    # Two tokens frame the words, so word `used - 2` is the first one that is cut.
    long, cut = ["pdf"] * (used - 2) + ["chart"], ["pdf"] * (used - 2) + ["table"]
    np.testing.assert_allclose(
        encoder.encode_documents([" ".join(long)]), encoder.encode_documents([" ".join(cut)]), atol=1e-6
    )
    seen = ["pdf"] * (used - 3) + ["chart"]
    assert np.abs(encoder.encode_documents([" ".join(seen)]) - encoder.encode_documents([" ".join(cut)])).max() > 1e-3


def test_no_texts_give_an_empty_matrix_of_the_right_width(tiny_model):
    assert load_encoder(tiny_model()).encode_queries([]).shape == (0, 16)


def test_the_fingerprint_does_not_depend_on_where_the_folder_is(tiny_model, tmp_path):
    folder = tiny_model()
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert load_encoder(copy).fingerprint == load_encoder(folder).fingerprint


def test_the_fingerprint_changes_with_weights_prompts_limit_and_precision(tiny_model, tmp_path):
    folder = tiny_model(PROMPTS)
    fingerprints = [
        load_encoder(folder).fingerprint,
        load_encoder(folder, max_length=9).fingerprint,
        load_encoder(folder, dtype="bfloat16").fingerprint,
    ]
    other_prompts = shutil.copytree(folder, tmp_path / "prompts")
    config = json.loads((other_prompts / "config_sentence_transformers.json").read_text())
    config["prompts"]["query"] = "find : "
    (other_prompts / "config_sentence_transformers.json").write_text(json.dumps(config))
    other_weights = shutil.copytree(folder, tmp_path / "weights")
    weights = bytearray((other_weights / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other_weights / "model.safetensors").write_bytes(bytes(weights))
    fingerprints += [load_encoder(other_prompts).fingerprint, load_encoder(other_weights).fingerprint]
    assert len(set(fingerprints)) == 5


def test_a_stored_fusion_weight_does_not_change_the_fingerprint(tiny_model):
    folder = tiny_model()
    before = load_encoder(folder).fingerprint
    (folder / "retrieval.json").write_text('{"fusion_weight": 0.5}')
    assert load_encoder(folder).fingerprint == before


def test_a_runs_folder_stands_for_its_export(tiny_model, tmp_path):
    export = shutil.copytree(tiny_model(), tmp_path / "run" / "export")
    assert resolve_encoder_folder(tmp_path / "run") == export


def test_reduced_precision_still_gives_float32_unit_rows(tiny_model):
    rows = load_encoder(tiny_model(), dtype="bfloat16").encode_documents(["find pdf", "chart"])
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        load_encoder(tmp_path / "nowhere")


def test_a_missing_folder_within_one_that_exists_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(FileNotFoundError, match="no folder runs/demo"):
        load_encoder("runs/demo")


def test_a_hub_id_that_cannot_be_fetched_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="no-such-owner/no-such-model is neither a folder here"):
        load_encoder("no-such-owner/no-such-model")


def test_a_folder_without_modules_json_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no modules\.json"):
        load_encoder(tmp_path)


def test_a_file_is_refused(tmp_path):
    (tmp_path / "corpus.jsonl").write_text("{}")
    with pytest.raises(FileNotFoundError, match="is a file"):
        load_encoder(tmp_path / "corpus.jsonl")


def test_a_folder_without_weights_is_refused_by_name(tiny_model):
    folder = tiny_model()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=f"{folder.name}: cannot be loaded"):
        load_encoder(folder)


def test_code_that_comes_with_a_model_is_not_run(tiny_model, tmp_path):
    folder, trace = tiny_model(), tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(trace)!r}, 'w')\nclass Own: pass\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "own.Own"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=r"own\.Own"):
        load_encoder(folder)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("arguments", "message"), [({"max_length": 0}, "max_length is 0"), ({"dtype": "int4"}, "int4")]
)
def test_impossible_options_are_refused(tiny_model, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_encoder(tiny_model(), **arguments)
