"""TF-IDF/SVD vectors: the stand-in where no encoder fits whose cosines the 0.85 gate was made for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

# Beyond the most frequent 100,000 words are identifiers and typos, and the decomposition's time grows with them.
_MAX_WORDS = 100_000


class TfidfSvdEncoder:
    """Words of the corpus, sublinear TF-IDF, truncated SVD, rows L2-normalized; the interface of ``models`` encoders.

    Fitted on the documents it is given. A text without a known word becomes a zero row. The same documents and seed
    give the same vectors.
    """

    name = "tfidf-svd"

    def __init__(self, documents: Sequence[str], dimensions: int = 256, seed: int = 42) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer

        if not documents:
            raise ValueError("TF-IDF needs at least one document")
        if dimensions < 1:
            raise ValueError(f"dimensions = {dimensions}: expected at least 1")
        self._vectorizer = TfidfVectorizer(token_pattern=r"[^\W_]+", sublinear_tf=True, max_features=_MAX_WORDS)
        matrix = self._vectorizer.fit_transform(documents)
        # Below this size the rank of the matrix is the limit, and the vectors keep all of TF-IDF.
        rank = min(dimensions, *matrix.shape)
        self.dimension = rank
        with np.errstate(invalid="ignore"):  # a single document has no variance to explain
            self._svd = TruncatedSVD(rank, random_state=seed).fit(matrix)
        digest = hashlib.sha256(f"{self.name}:{dimensions}:{seed}".encode())
        for document in documents:
            digest.update(hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest())
        self.fingerprint = digest.hexdigest()

    def encode_queries(self, requests: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        """Unit vectors ``[n, d]``, float32; the same as for documents."""
        return self.encode_documents(requests, batch_size, progress)

    def encode_documents(self, documents: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        """Unit vectors ``[n, d]``, float32. Sparse products need no batches: the last two arguments change nothing."""
        if not len(documents):
            return np.zeros((0, self.dimension), dtype=np.float32)
        vectors = self._svd.transform(self._vectorizer.transform(documents))
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
