"""Finding documents for requests: BM25, exact vector search, their fusion, and the embedding cache."""

from __future__ import annotations

from retrieval.bm25 import BM25Index
from retrieval.dense import DenseIndex
from retrieval.embedding_cache import EmbeddingCache, default_cache_dir
from retrieval.fusion import fuse, fuse_lists
from retrieval.ranking import Ranking
from retrieval.retriever import (
    DenseRetriever,
    HybridRetriever,
    Retriever,
    open_retriever,
    read_fusion_weight,
    write_fusion_weight,
)

__all__ = [
    "BM25Index",
    "DenseIndex",
    "DenseRetriever",
    "EmbeddingCache",
    "HybridRetriever",
    "Ranking",
    "Retriever",
    "default_cache_dir",
    "fuse",
    "fuse_lists",
    "open_retriever",
    "read_fusion_weight",
    "write_fusion_weight",
]
