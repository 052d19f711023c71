"""The encoder with prompts and similarities that are given, and its input for a request with a rationale."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from models.encoder import load_encoder
from models.views import QUERY_PREFIX


def test_given_prompts_stand_before_requests_and_documents(tiny_model):
    bare = load_encoder(tiny_model())
    given = load_encoder(tiny_model({"query": "find : "}), query_prompt="query : ", document_prompt="document : ")
    np.testing.assert_allclose(given.encode_queries(["pdf"]), bare.encode_queries(["query : pdf"]), atol=1e-6)
    np.testing.assert_allclose(given.encode_documents(["pdf"]), bare.encode_documents(["document : pdf"]), atol=1e-6)


def test_a_prompt_for_passages_is_used_for_documents(tiny_model):
    bare, passages = load_encoder(tiny_model()), load_encoder(tiny_model({"query": "", "passage": "document : "}))
    np.testing.assert_allclose(passages.encode_documents(["pdf"]), bare.encode_documents(["document : pdf"]), atol=1e-6)


def test_the_cache_key_changes_with_each_prompt_and_the_similarity(tiny_model):
    folder = tiny_model()
    keys = [
        load_encoder(folder).fingerprint,
        load_encoder(folder, query_prompt="a: ").fingerprint,
        load_encoder(folder, document_prompt="a: ").fingerprint,
        load_encoder(folder, similarity="dot").fingerprint,
    ]
    assert len(set(keys)) == 4
    # naming what is the model's own anyway changes nothing, and leaves the cache valid
    assert load_encoder(folder, query_prompt="", document_prompt="none", similarity="cosine").fingerprint == keys[0]


def test_a_model_that_compares_by_dot_product_keeps_its_lengths(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model(), tmp_path / "dot")
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"similarity_fn_name": "dot"}))
    raw, unit = load_encoder(folder), load_encoder(folder, similarity="cosine")
    rows = raw.encode_documents(["find pdf", "chart"])
    lengths = np.linalg.norm(rows, axis=1)
    assert (np.abs(lengths - 1) > 0.1).all()
    np.testing.assert_allclose(unit.encode_documents(["find pdf", "chart"]), rows / lengths[:, None], atol=1e-6)


def test_a_rationale_stands_on_a_line_after_the_request(tiny_model):
    encoder = load_encoder(tiny_model({"query": "query : "}))
    np.testing.assert_allclose(
        encoder.encode_augmented(["find pdf"], ["chart"]), encoder.encode_queries(["find pdf\nchart"]), atol=1e-6
    )


def test_a_model_of_ours_reads_the_privileged_view(tiny_model):
    encoder = load_encoder(tiny_model({"query": QUERY_PREFIX}, 60))
    bare = load_encoder(tiny_model(max_seq_length=60))
    text = (
        "Instruct: Given a task description, retrieve the most relevant skill document that would help an agent complete the "
        "task\nQuery:find pdf\nQuery analysis:chart\nIn summary, the retrieval representation for this task is:"
    )
    np.testing.assert_allclose(
        encoder.encode_augmented(["find pdf"], ["chart"]), bare.encode_queries([text]), atol=1e-6
    )


def test_too_long_a_request_loses_its_end_and_the_rationale_stays(tiny_model):
    encoder = load_encoder(tiny_model({"query": "query : "}))  # 16 tokens
    bare = load_encoder(tiny_model())
    # [CLS] query : + 9 x pdf + chart table chart + [SEP] are the 16
    expected = bare.encode_queries(["query : " + "pdf " * 9 + "\nchart table chart"])
    got = encoder.encode_augmented(["pdf " * 30], ["chart table chart"])
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_a_rationale_that_leaves_no_room_stands_alone(tiny_model):
    encoder = load_encoder(tiny_model())
    alone = encoder.encode_queries(["chart " * 14])
    np.testing.assert_allclose(encoder.encode_augmented(["pdf " * 5], ["chart " * 14]), alone, atol=1e-6)


def test_too_long_a_rationale_loses_its_end_and_the_anchor_stays(tiny_model):
    encoder = load_encoder(tiny_model({"query": QUERY_PREFIX}, 60))
    bare = load_encoder(tiny_model(max_seq_length=60))
    anchor = "\nIn summary, the retrieval representation for this task is:"
    # a word of this vocabulary is one token, so as many as the fixed parts leave room for
    fixed = len(encoder._tokenize(QUERY_PREFIX + "\nQuery analysis:" + anchor)["input_ids"])
    expected = bare.encode_queries([QUERY_PREFIX + "\nQuery analysis:" + "chart " * (60 - fixed) + anchor])
    np.testing.assert_allclose(encoder.encode_augmented(["pdf"], ["chart " * 50]), expected, atol=1e-6)


def test_dot_products_of_long_vectors_rank_as_numpy_does():
    from retrieval import DenseIndex

    rng = np.random.default_rng(0)
    documents = (rng.normal(size=(300, 8)) * rng.uniform(1, 900, size=(300, 1))).astype(np.float32)
    documents[200:] = documents[100:200]  # ties rank in corpus order
    queries = (50 * rng.normal(size=(20, 8))).astype(np.float32)
    exact = queries.astype(np.float64) @ documents.astype(np.float64).T
    expected = np.argsort(-exact, axis=1, kind="stable")[:, :10]
    found = DenseIndex([str(n) for n in range(300)], documents).search(queries, 10)
    assert found.ids == [[str(n) for n in row] for row in expected]


@pytest.mark.parametrize("option", [{"query_prompt": "q: "}, {"similarity": "dot"}])
def test_bm25_takes_no_prompt(option: dict[str, str]):
    from retrieval.retriever import open_retriever

    with pytest.raises(ValueError, match=r"bm25 takes no (query prompt|similarity)"):
        open_retriever("bm25", ["a"], ["text"], **option)  # type: ignore[arg-type]
