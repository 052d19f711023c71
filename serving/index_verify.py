"""Verify an index beyond its checksums: the model is the one that encoded it, and encodes its documents to the same vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from serving.index import load_model, open_index
from serving.versions import IndexCorruptError

SAMPLE = 16
"""Documents that are encoded again."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.02}
"""Largest difference of a component by the model's precision: batches and machines round differently."""


def verify_index(root: str | Path, model: str | Path | None = None, device: str | None = None) -> str:
    """Check every file, load the model, encode some documents again and compare; a sentence on what was found.

    Raises:
        IndexNotFoundError, IndexCorruptError: a file is missing or damaged, or the model gives other vectors; it is named.
        ModelMismatchError: the model is gone or has changed.
    """
    index = open_index(root)
    checked = f"verified: all files of version {index.info.version} are as they were written"
    if index.dense is None:
        return checked
    encoder = load_model(index.info, model, device)
    rows = np.random.default_rng(0).permutation(len(index.skills))[:SAMPLE]
    documents = [index.skills[row].serialize(index.info.document_format) for row in rows]
    differences = np.abs(encoder.encode_documents(documents) - index.dense.embeddings[rows]).max(axis=1)
    worst = int(np.argmax(differences))
    if differences[worst] > TOLERANCE[encoder.dtype]:
        raise IndexCorruptError(
            f"{index.folder}: the vector of {index.skills[int(rows[worst])].skill_id!r} differs from the model's by "
            f"{differences[worst]:.2g} in a component; build the index again"
        )
    return f"{checked}; the model gives the same vectors for {len(rows)} skills (largest difference {differences[worst]:.1e})"
