"""A small library and an encoder whose vectors the test chooses."""

from __future__ import annotations

import gzip
import json
import random
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline import Skill, SkillCorpus


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Write rows with the standard library alone, so that readers are not tested against our own writer."""

    def write(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        path = tmp_path / name
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.fixture
def library() -> SkillCorpus:
    """Three categories of fourteen skills; a category's words stand in all of its skills, beside made-up words of their own."""
    topics = {"finance": "budget invoice ledger", "media": "video caption audio", "legal": "contract clause statute"}
    generator = random.Random(0)
    skills = []
    for category, words in topics.items():
        for i in range(14):
            own = " ".join("".join(generator.choices(string.ascii_lowercase, k=7)) for _ in range(60))
            body = f"Work on {words}. {own} {category}{i}step1 {category}{i}step2"
            skills.append(Skill(f"{category}/s{i}", f"s{i}-{category}", f"Handles {words}", body))
    return SkillCorpus(skills)


class TableEncoder:
    """Looks vectors up by text and normalizes them."""

    name = "table"
    fingerprint = "table-1"

    def __init__(self, vectors: Mapping[str, Sequence[float]]) -> None:
        self.vectors = vectors

    def encode_queries(self, requests: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        matrix = np.array([self.vectors[text] for text in requests], dtype=np.float32)
        return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)

    encode_documents = encode_queries


@pytest.fixture
def table_encoder() -> type[TableEncoder]:
    return TableEncoder
