"""From a model's name on the command line (``bm25``, a folder, ``hybrid:`` a folder) to a ranked corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from models.views import DEFAULT_FORMAT
from retrieval.bm25 import BM25Index
from retrieval.dense import DenseIndex
from retrieval.embedding_cache import EmbeddingCache, default_cache_dir
from retrieval.fusion import fuse
from retrieval.ranking import Ranking

if TYPE_CHECKING:
    from models.encoder import Encoder

RETRIEVAL_FILE = "retrieval.json"
FUSION_DEPTH = 100
"""Results of each list that fusion sees, when fewer are asked of it."""


class Retriever(Protocol):
    """Anything that ranks documents for requests."""

    def search(self, queries: Sequence[str], k: int) -> Ranking: ...


@dataclass(frozen=True)
class DenseRetriever:
    """Requests through an encoder into an index of the same encoder's documents."""

    encoder: Encoder
    index: DenseIndex
    batch_size: int = 32
    progress: bool = False

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """The ``k`` nearest documents of each request, scores the cosine."""
        embeddings = self.encoder.encode_queries(queries, batch_size=self.batch_size, progress=self.progress)
        return self.index.search(embeddings, k)


@dataclass(frozen=True)
class HybridRetriever:
    """BM25 and a dense retriever, fused by :func:`retrieval.fusion.fuse` with one weight."""

    dense: Retriever
    bm25: BM25Index
    weight: float

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """The ``k`` best of the fused lists, each at least :data:`FUSION_DEPTH` deep."""
        depth = max(k, FUSION_DEPTH)
        return fuse(
            self.dense.search(queries, depth),
            self.bm25.search(queries, depth, matched_only=True),
            self.weight,
            k,
        )


def split_model_spec(spec: str | Path) -> tuple[str, str]:
    """``bm25`` → ``("bm25", "")``; ``hybrid:DIR`` → ``("hybrid", DIR)``; other text → ``("dense", text)``.

    Raises:
        ValueError: ``hybrid`` without a folder, or nothing at all.
    """
    text = str(spec)
    if text == "bm25":
        return "bm25", ""
    kind, path = ("hybrid", text.removeprefix("hybrid:")) if text.startswith("hybrid:") else ("dense", text)
    if not path or text == "hybrid":
        raise ValueError(f"model is {text!r}; expected bm25, a model folder, or hybrid:FOLDER")
    return kind, path


def document_format(spec: str | Path) -> str:
    """How the documents must be put together for what ``spec`` names: as in the model's training, E.1's format for BM25.

    Raises:
        FileNotFoundError, ValueError: the model is missing, or its format is unknown.
    """
    kind, path = split_model_spec(spec)
    if kind == "bm25":
        return DEFAULT_FORMAT
    from models.encoder import read_document_format, resolve_encoder_folder

    return read_document_format(resolve_encoder_folder(path))


def open_retriever(
    spec: str | Path,
    ids: Sequence[str],
    texts: Sequence[str],
    *,
    cache_dir: str | Path | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    fusion_weight: float | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: str | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> Retriever:
    """Load what ``spec`` names and index the documents.

    Args:
        spec: ``bm25``, a model folder or hub id, or ``hybrid:`` and one of these.
        ids, texts: the corpus, in its order; texts in the model's :func:`document_format`.
        cache_dir: where document embeddings are kept; :func:`default_cache_dir` if not given.
        max_length, dtype, query_prompt, document_prompt, similarity: see :func:`models.encoder.load_encoder`.
        fusion_weight: the hybrid's weight of the dense list; read from the folder's ``retrieval.json`` if not
            given.

    Raises:
        FileNotFoundError, ValueError: the model cannot be loaded, a hybrid has no weight, or BM25 got a prompt.
    """
    kind, path = split_model_spec(spec)
    prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt, "similarity": similarity}
    if kind == "bm25":
        given = [name.replace("_", " ") for name, value in prompts.items() if value is not None]
        if given:
            raise ValueError(f"bm25 takes no {' and no '.join(given)}; expected one with an embedding model only")
        return BM25Index(ids, texts)
    from models.encoder import load_encoder, resolve_encoder_folder

    weight = 0.0
    if kind == "hybrid":  # Before the corpus is encoded: a missing weight should not cost an hour.
        weight = read_fusion_weight(resolve_encoder_folder(path)) if fusion_weight is None else fusion_weight
        if not 0 <= weight <= 1:
            raise ValueError(f"fusion weight is {weight}; expected a number between 0 (BM25 alone) and 1 (dense alone)")
    encoder = load_encoder(path, max_length=max_length, dtype=dtype, **prompts)
    cache = EmbeddingCache(cache_dir or default_cache_dir())
    embeddings = cache.encode_documents(encoder, texts, batch_size=batch_size, progress=progress)
    dense = DenseRetriever(encoder, DenseIndex(ids, embeddings), batch_size, progress)
    return HybridRetriever(dense, BM25Index(ids, texts), weight) if kind == "hybrid" else dense


def read_fusion_weight(folder: str | Path) -> float:
    """The weight that training stored with a model.

    Raises:
        ValueError: the folder stores none, or not a number between 0 and 1; the message names the option that
            gives one.
    """
    path = Path(folder) / RETRIEVAL_FILE
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        weight = stored["fusion_weight"]
    except (FileNotFoundError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} has no fusion_weight ({type(error).__name__}), so the hybrid's weight is unknown; "
            "give one with --fusion-weight, a number between 0 (BM25 alone) and 1 (dense alone)"
        ) from error
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise ValueError(
            f"{path}: fusion_weight is {weight!r}; expected a number between 0 and 1, or give --fusion-weight"
        )
    return float(weight)


def write_fusion_weight(folder: str | Path, weight: float, **details: Any) -> Path:
    """Store the weight, and how it was chosen, in the folder's ``retrieval.json``; returns that path."""
    if not 0 <= weight <= 1:
        raise ValueError(f"fusion weight is {weight}; expected a number between 0 (BM25 alone) and 1 (dense alone)")
    path = Path(folder) / RETRIEVAL_FILE
    from models.folders import atomic_write_text

    atomic_write_text(path, json.dumps({"fusion_weight": weight, **details}, indent=2) + "\n")
    return path
