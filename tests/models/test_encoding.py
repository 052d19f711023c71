"""Batching of texts by their tokens: the order, the budget, and the vectors of sentence-transformers itself."""

from __future__ import annotations

import numpy as np
import pytest

from models.encoding import CPU_TOKENS, encode_by_tokens, token_budget, token_lengths


class Recorder:
    """Embeds a text as its number, and keeps the batches it was given."""

    def __init__(self):
        self.batches: list[list[str]] = []

    def __call__(self, texts: list[str], size: int) -> np.ndarray:
        assert size == len(texts)
        self.batches.append(texts)
        return np.array([[float(text), -float(text)] for text in texts])


def test_vectors_come_back_in_the_order_of_the_texts():
    texts, lengths = ["0", "1", "2", "3"], [3, 9, 1, 5]
    found = encode_by_tokens(Recorder(), texts, lengths, token_budget=10)
    np.testing.assert_array_equal(found, np.array([[0, 0], [1, -1], [2, -2], [3, -3]], dtype=np.float32))


def test_a_batch_stays_within_the_budget_and_holds_like_lengths():
    encode = Recorder()
    encode_by_tokens(encode, ["0", "1", "2", "3", "4"], [4, 12, 5, 4, 5], token_budget=10)
    # 12 alone although it exceeds the budget; 5 + 5 fill it; 4 + 4 are left
    assert encode.batches == [["1"], ["2", "4"], ["0", "3"]]


def test_an_empty_text_is_encoded_too():
    assert encode_by_tokens(Recorder(), ["7", "8"], [0, 0], token_budget=2).tolist() == [[7, -7], [8, -8]]


def test_no_texts_are_an_error():
    with pytest.raises(ValueError, match="no texts to encode"):
        encode_by_tokens(Recorder(), [], [], token_budget=10)


def test_a_model_without_a_tokenizer_has_no_lengths():
    assert token_lengths(object(), ["a text"]) is None


@pytest.mark.parametrize(
    ("batch_size", "max_length", "device", "expected"),
    [(32, 256, "cpu", CPU_TOKENS), (2, 256, "cpu", 512), (32, 256, "cuda", 8192)],
)
def test_budget(batch_size, max_length, device, expected):
    assert token_budget(batch_size, max_length, device) == expected


def test_vectors_are_those_of_sentence_transformers(tiny_folder, tmp_path):
    from sentence_transformers import SentenceTransformer

    from models.backbone import Backbone
    from models.encoder import load_encoder
    from models.export import export_retriever

    tiny_export = export_retriever(Backbone.load(tiny_folder), tmp_path / "export")
    texts = [("collect the invoices and sort them by month " * (1 + i % 7))[: 20 + 31 * i] for i in range(23)] + [
        "",
        "née",
    ]
    peer = SentenceTransformer(str(tiny_export), device="cpu")
    ours = load_encoder(tiny_export)
    np.testing.assert_allclose(ours.encode_documents(texts), peer.encode_document(texts, batch_size=5), atol=1e-6)
    np.testing.assert_allclose(ours.encode_queries(texts), peer.encode_query(texts, batch_size=5), atol=1e-6)
    lengths = token_lengths(peer, texts)
    assert lengths == [int(peer.tokenizer(text, return_tensors="pt")["input_ids"].shape[1]) for text in texts]
