"""The vectors of an index: exact search or an approximate one, and what the choice costs in recall."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from retrieval.approximate import (
    APPROXIMATE_KINDS,
    AUTO_KIND,
    EXACT_VALUES,
    MIN_RECALL,
    RECALL_K,
    SAMPLE,
    ApproximateIndex,
)

if TYPE_CHECKING:
    from models.encoder import Encoder

KINDS = ("auto", "flat", *APPROXIMATE_KINDS)


def write_vectors(
    path: Path, skills: SkillCorpus, encoder: Encoder, embeddings: np.ndarray, requested: str, batch_size: int
) -> tuple[str, dict[str, Any]]:
    """Choose the kind of the index and write FAISS's file where it has one.

    Returns:
        The kind, and how it came about: its parameters, and its recall on requests that the skills' descriptions stand in for.
    """
    how: dict[str, Any] = {"requested": requested}
    if requested == "flat" or (requested == "auto" and embeddings.size <= EXACT_VALUES):
        return "flat", how
    kind = AUTO_KIND if requested == "auto" else requested
    index = ApproximateIndex(skills.ids, embeddings, kind)
    described = [skill.description for skill in skills if skill.description.strip()] or [skill.name for skill in skills]
    drawn = np.random.default_rng(0).permutation(len(described))[:SAMPLE]
    queries = encoder.encode_queries([described[i] for i in drawn], batch_size=batch_size)
    if len(queries) < 2:
        queries = np.concatenate([queries, queries])
    recall = index.tune(queries)
    how |= {"recall": round(recall, 4), "recall_k": RECALL_K, "recall_requests": len(queries) - len(queries) // 2}
    how |= {"kind": kind, "parameters": index.parameters}
    if requested == "auto" and recall < MIN_RECALL:
        return "flat", how
    index.save(path)
    return kind, how | {"effort": index.effort}
