"""Requests with a rationale: through BM25, a dense retriever, a hybrid, and with several rationales."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval import BM25Index, DenseIndex, DenseRetriever, HybridRetriever
from retrieval.augmented import AugmentedRetriever

TEXTS = {"a": "apple pear", "b": "banana plum", "c": "cherry fig", "d": "date melon"}
IDS = list(TEXTS)


class WordEncoder:
    """Unit vectors by the first letter of the last word; a rationale's vector points where the rationale does."""

    name = fingerprint = "words"

    def encode_queries(self, requests, batch_size=32, progress=False):
        return np.eye(4, dtype=np.float32)[[IDS.index(text.split()[-1][0]) for text in requests]].reshape(-1, 4)

    def encode_documents(self, documents, batch_size=32, progress=False):
        return self.encode_queries(documents)

    def encode_augmented(self, requests, rationales, batch_size=32, progress=False):
        return self.encode_queries(rationales) + 0.5 * self.encode_queries(requests)


@pytest.fixture
def bm25() -> BM25Index:
    return BM25Index(IDS, list(TEXTS.values()))


@pytest.fixture
def dense() -> DenseRetriever:
    return DenseRetriever(WordEncoder(), DenseIndex(IDS, np.eye(4, dtype=np.float32)))


def test_bm25_gets_the_rationale_appended(bm25):
    augmented = AugmentedRetriever(bm25, {"apple": ["fig fig cherry"]}).search(["apple"], 4)
    expected = bm25.search(["apple\nfig fig cherry"], 4)
    assert augmented.ids == expected.ids
    np.testing.assert_array_equal(augmented.scores, expected.scores)


def test_a_dense_retriever_gets_its_models_own_input(dense):
    found = AugmentedRetriever(dense, {"apple": ["banana"]}).search(["apple", "cherry"], 2)
    assert found.ids[0] == ["b", "a"]
    np.testing.assert_allclose(found.scores[0], [1.0, 0.5])
    assert found.ids[1][0] == "c"  # without a rationale, as it is


def test_an_encoder_without_such_an_input_gets_the_rationale_appended():
    class Plain:
        name = fingerprint = "plain"

        def encode_queries(self, requests, batch_size=32, progress=False):
            return WordEncoder().encode_queries(requests)

        def encode_documents(self, documents, batch_size=32, progress=False):
            return WordEncoder().encode_documents(documents)

    plain = DenseRetriever(Plain(), DenseIndex(IDS, np.eye(4, dtype=np.float32)))
    assert AugmentedRetriever(plain, {"apple": ["date"]}).search(["apple"], 1).ids == [["d"]]


@pytest.mark.parametrize(("weight", "first"), [(1.0, "b"), (0.0, "c")])
def test_a_hybrid_augments_both_sides(bm25, dense, weight, first):
    hybrid = HybridRetriever(dense, bm25, weight)
    assert AugmentedRetriever(hybrid, {"apple": ["cherry cherry fig banana"]}).search(["apple"], 4).ids[0][0] == first


def test_several_rationales_are_fused_by_reciprocal_ranks(bm25):
    found = AugmentedRetriever(bm25, {"fig": ["banana", "banana plum"], "pear": ["x"]}).search(["fig", "pear"], 4)
    # "fig banana": c and b match one word each and tie, so corpus order: b, c; "fig banana plum": b before c.
    assert found.ids[0] == ["b", "c"]
    np.testing.assert_allclose(found.scores[0][:2], [2 / 61, 2 / 62])
    assert found.ids[1][0] == "a"


def test_an_empty_rationale_is_one_like_any_other(dense):
    calls = []

    class Recording(WordEncoder):
        def encode_augmented(self, requests, rationales, batch_size=32, progress=False):
            calls.append((list(requests), list(rationales)))
            return self.encode_queries(requests)

    retriever = DenseRetriever(Recording(), dense.index)
    AugmentedRetriever(retriever, {"apple": [""]}).search(["apple", "banana"], 1)
    assert calls == [(["apple"], [""])]


def test_no_requests_give_no_rows(bm25):
    assert AugmentedRetriever(bm25, {}).search([], 3).ids == []
