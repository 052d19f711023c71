"""Exact search against a plain matrix product, its tie order, and what an index refuses."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval import DenseIndex


def unit_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_finds_what_a_full_matrix_product_finds():
    documents, queries = unit_rows(500, 24), unit_rows(70, 24, seed=1)
    ids = [f"s{i}" for i in range(500)]
    scores = queries.astype(np.float64) @ documents.T.astype(np.float64)
    order = np.argsort(-scores, axis=1)[:, :20]
    ranking = DenseIndex(ids, documents).search(queries, 20)
    assert ranking.ids == [[ids[i] for i in row] for row in order]
    np.testing.assert_allclose(ranking.scores, np.take_along_axis(scores, order, axis=1), atol=1e-12)


def test_equal_embeddings_are_ranked_in_corpus_order_across_the_cut():
    documents = unit_rows(400, 8)
    copies = list(range(30, 390, 3))
    documents[copies] = documents[30]
    ranking = DenseIndex([str(i) for i in range(400)], documents).search(documents[[30]], 50)
    assert ranking.ids[0] == [str(i) for i in copies[:50]]


def test_a_query_is_ranked_alike_alone_and_in_a_batch():
    documents, queries = unit_rows(300, 16), unit_rows(100, 16, seed=2)
    index = DenseIndex([str(i) for i in range(300)], documents)
    together = index.search(queries, 10)
    for row in (0, 63, 64, 99):
        alone = index.search(queries[[row]], 10)
        assert alone.ids[0] == together.ids[row]
        assert alone.scores[0].tolist() == together.scores[row].tolist()


@pytest.mark.parametrize("size", [1, 9, 200])
def test_a_search_within_some_documents_ranks_these_alone(size):
    documents, queries = unit_rows(300, 16), unit_rows(20, 16, seed=2)
    within = np.sort(np.random.default_rng(size).choice(300, size, replace=False))
    scores = queries.astype(np.float64) @ documents[within].T.astype(np.float64)
    expected = within[np.argsort(-scores, axis=1)[:, :10]]
    ranking = DenseIndex([str(i) for i in range(300)], documents).search(queries, 10, within=within)
    assert ranking.ids == [[str(i) for i in row] for row in expected]


def test_a_search_within_no_documents_finds_none():
    ranking = DenseIndex(["a", "b"], np.eye(2)).search(np.eye(2), 3, within=np.array([], dtype=np.int64))
    assert ranking.ids == [[], []]
    assert ranking.scores.shape == (2, 0)


def test_equal_embeddings_within_some_documents_are_ranked_in_corpus_order():
    documents = unit_rows(400, 8)
    documents[::2] = documents[0]
    within = np.arange(100, 300)
    ranking = DenseIndex([str(i) for i in range(400)], documents).search(documents[[0]], 50, within=within)
    assert ranking.ids[0] == [str(i) for i in range(100, 200, 2)]


def test_k_is_clipped_to_the_corpus():
    ranking = DenseIndex(["a", "b"], np.eye(2)).search(np.array([[0.1, 0.9]]), 10)
    assert ranking.ids == [["b", "a"]]
    assert ranking.scores.shape == (1, 2)


def test_no_queries_give_no_rankings():
    ranking = DenseIndex(["a", "b"], np.eye(2)).search(np.zeros((0, 2)), 1)
    assert ranking.ids == []
    assert len(ranking.scores) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_is_refused_by_row_and_id(value):
    embeddings = np.eye(4)
    embeddings[2, 1] = value
    with pytest.raises(ValueError, match=r"row 2 \('c'\)"):
        DenseIndex(["a", "b", "c", "d"], embeddings)


def test_a_query_that_is_not_finite_is_refused_by_row():
    with pytest.raises(ValueError, match="query embedding in row 1"):
        DenseIndex(["a", "b"], np.eye(2)).search(np.array([[1.0, 0.0], [np.nan, 0.0]]), 1)


def test_a_query_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match="3 components, the index has 2"):
        DenseIndex(["a", "b"], np.eye(2)).search(np.ones((1, 3)), 1)


@pytest.mark.parametrize(
    ("ids", "embeddings", "message"),
    [
        (["a", "b", "a"], np.eye(3), "'a' occurs twice, the second time in row 2"),
        (["a"], np.eye(2), "1 ids for 2 embeddings"),
        ([], np.zeros((0, 3)), "at least one document"),
        (["a", "b"], np.ones(2), r"expected \[n, d\]"),
    ],
)
def test_impossible_indexes_are_refused(ids, embeddings, message):
    with pytest.raises(ValueError, match=message):
        DenseIndex(ids, embeddings)
