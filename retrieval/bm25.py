"""Lexical search: BM25 over lower-cased alphanumeric tokens, by bm25s."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from retrieval.ranking import Ranking, check_ids, check_k, top_k

_TOKEN = re.compile(r"[^\W_]+")
_PARAMS = "params.index.json"
"""The file by which bm25s's folder is known."""


def tokenize(text: str) -> list[str]:
    """Runs of letters and digits of any script, lower-cased; no stemming and no stop words."""
    return _TOKEN.findall(text.lower())


class BM25Index:
    """BM25 as Lucene scores it (non-negative idf); a word repeated in a request counts each time.

    Args:
        ids: document ids, in corpus order; equal scores are ranked in this order.
        texts: their texts.
        k1: saturation of the term frequency.
        b: strength of the length normalization, between 0 and 1.

    Raises:
        ValueError: no documents, ids and texts of different number, an id twice, or k1 or b out of range.
    """

    def __init__(self, ids: Sequence[str], texts: Sequence[str], k1: float = 1.5, b: float = 0.75) -> None:
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG itself, and announces every index

        if k1 < 0:
            raise ValueError(f"k1 is {k1}; expected a number of at least 0")
        if not 0 <= b <= 1:
            raise ValueError(f"b is {b}; expected a number between 0 and 1")
        self.ids = check_ids(ids, len(texts), "texts")
        tokens = [tokenize(text) for text in texts]
        self._vocabulary = {token for document in tokens for token in document}
        self._bm25: Any = bm25s.BM25(k1=k1, b=b, method="lucene")
        if self._vocabulary:
            self._bm25.index(tokens, show_progress=False)

    def save(self, folder: str | Path) -> None:
        """Write what :meth:`load` reads into ``folder``, bm25s's own files; the ids are the caller's to keep."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        if self._vocabulary:
            self._bm25.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: str | Path, ids: Sequence[str]) -> BM25Index:
        """The index that :meth:`save` wrote, over the documents with these ids, in the same order.

        A folder without bm25s's files is the index of documents without a word.

        Raises:
            ValueError: another number of ids than documents, or damaged files; the folder is named.
        """
        import bm25s

        logging.getLogger("bm25s").setLevel(logging.WARNING)
        index = cls.__new__(cls)
        index.ids = check_ids(ids, len(ids), "texts")
        index._vocabulary = set()
        index._bm25 = bm25s.BM25(method="lucene")
        if not (Path(folder) / _PARAMS).is_file():
            return index
        try:
            index._bm25 = bm25s.BM25.load(folder, show_progress=False)
            count = int(index._bm25.scores["num_docs"])
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
            raise ValueError(f"{folder}: not a BM25 index that bm25s wrote ({error}); build it again") from error
        if count != len(index.ids):
            raise ValueError(f"{folder}: a BM25 index of {count} documents for {len(index.ids)} ids; build it again")
        index._vocabulary = set(index._bm25.vocab_dict)
        return index

    def __len__(self) -> int:
        return len(self.ids)

    def search(
        self,
        queries: Sequence[str],
        k: int,
        matched_only: bool = False,
        progress: bool = False,
        within: np.ndarray | None = None,
    ) -> Ranking:
        """The ``k`` best documents of each query; ``k`` is clipped to the corpus.

        Documents that share no word with the query score 0 and come last, in corpus order, so every row is
        full, for an empty query too. ``matched_only`` leaves them out, as fusion wants it: their order says
        nothing.

        Args:
            within: positions of the documents to rank, ascending; None: all. Scores are those of the whole corpus.

        Raises:
            ValueError: ``k`` is not positive.
        """
        check_k(k)
        rows = []
        for query in tqdm(queries, desc="BM25", unit="query", disable=not progress):
            scores = self.scores(query)
            best = top_k(scores, k) if within is None else within[top_k(scores[within], k)]
            if matched_only:
                best = best[scores[best] > 0]
            rows.append(([self.ids[i] for i in best], scores[best]))
        return Ranking.from_rows(rows)

    def scores(self, query: str) -> np.ndarray:
        """BM25 score of every document, ``[n_documents]``, in corpus order."""
        known = [token for token in tokenize(query) if token in self._vocabulary]
        if not known:
            return np.zeros(len(self.ids))
        return self._bm25.get_scores(known).astype(np.float64)
