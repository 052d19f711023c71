"""Sizes of a library, and how much of it a retriever reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_pipeline.corpus import INDEX_TEXT, SkillCorpus
from models.encoder import SentenceTransformerEncoder
from models.views import BODY_CHARS, DESCRIPTION_CHARS
from retrieval.retriever import DenseRetriever, HybridRetriever, Retriever


def overview(corpus: SkillCorpus, retriever: Retriever, document_format: str, domains: Sequence[str]) -> dict[str, Any]:
    """Counts, lengths in words, and truncation: by characters (E.1) and, for an encoder, by its tokens.

    ``partly_read`` counts skills of which something is cut by either; ``read_share`` is the mean share of a skill's text
    (characters of name, description and body) that is left, tokens taken as of equal length within a document.
    """
    documents = corpus.documents(document_format)
    whole = np.array([len(s.name) + len(s.description) + len(s.body) for s in corpus], dtype=float)
    kept = np.minimum([len(document) for document in documents], whole)
    own_text = np.array([INDEX_TEXT in skill.metadata for skill in corpus])
    descriptions = np.array([len(s.description) > DESCRIPTION_CHARS for s in corpus]) & ~own_text
    bodies = np.array([len(s.body) > BODY_CHARS for s in corpus]) & ~own_text
    value: dict[str, Any] = {
        "skills": len(corpus),
        "domains": dict(Counter(domains).most_common()),
        "description_words": _lengths([s.description for s in corpus]),
        "body_words": _lengths([s.body for s in corpus]),
        "description_chars": DESCRIPTION_CHARS,
        "body_chars": BODY_CHARS,
        "cut_descriptions": int(descriptions.sum()),
        "cut_bodies": int(bodies.sum()),
    }
    partly = descriptions | bodies
    encoder = encoder_of(retriever)
    tokens = encoder.document_tokens(documents) if isinstance(encoder, SentenceTransformerEncoder) else None
    if encoder is not None and tokens is not None:
        limit = encoder.max_length
        over = tokens > limit
        partly = partly | over
        kept = kept * np.minimum(1.0, limit / np.maximum(tokens, 1))
        value |= {"max_length": limit, "median_tokens": float(np.median(tokens)), "cut_by_tokens": int(over.sum())}
    value["partly_read"] = int(partly.sum())
    value["read_share"] = float(np.mean(kept / np.maximum(whole, 1)))
    return value


def encoder_of(retriever: Retriever) -> Any:
    """The encoder of a dense or hybrid retriever; None for any other."""
    dense = retriever.dense if isinstance(retriever, HybridRetriever) else retriever
    return dense.encoder if isinstance(dense, DenseRetriever) else None


def _lengths(texts: Sequence[str]) -> dict[str, float]:
    counts = [len(text.split()) for text in texts]
    return {"median": float(np.median(counts)), "p90": float(np.percentile(counts, 90)), "max": float(max(counts))}
