"""TF-IDF/SVD vectors: unit rows, the words' similarities, reproducible."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from data_pipeline.tfidf import TfidfSvdEncoder

TEXTS = ["budget variance report", "budget variance memo", "video caption timing", "contract clause review"]


def test_rows_have_unit_length() -> None:
    vectors = TfidfSvdEncoder(TEXTS).encode_documents(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_small_libraries_keep_the_full_tfidf_cosine() -> None:
    vectors = TfidfSvdEncoder(TEXTS).encode_documents(TEXTS)
    full = TfidfVectorizer(sublinear_tf=True).fit_transform(TEXTS).toarray()
    np.testing.assert_allclose(vectors @ vectors.T, full @ full.T, atol=1e-5)


def test_a_text_without_known_words_is_a_zero_row() -> None:
    assert not TfidfSvdEncoder(TEXTS).encode_queries(["zzz"]).any()


def test_same_documents_same_vectors_and_fingerprint() -> None:
    one, two = TfidfSvdEncoder(TEXTS, 2), TfidfSvdEncoder(TEXTS, 2)
    assert one.fingerprint == two.fingerprint
    np.testing.assert_array_equal(one.encode_documents(TEXTS), two.encode_documents(TEXTS))


def test_fingerprint_tells_documents_and_dimensions_apart() -> None:
    prints = {TfidfSvdEncoder(TEXTS, 2), TfidfSvdEncoder(TEXTS, 3), TfidfSvdEncoder([*TEXTS[:3], "other words"], 2)}
    assert len({encoder.fingerprint for encoder in prints}) == 3


def test_no_documents_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one document"):
        TfidfSvdEncoder([])


def test_a_single_document_has_a_vector_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = TfidfSvdEncoder(["sort the invoices by their due date"])
    assert encoder.encode_documents(["due invoices"]).tolist() == [[pytest.approx(1.0)]]
