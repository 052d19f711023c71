"""Results as the commands write them, small enough to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write_result(tmp_path: Path) -> Write:
    """Write a result of ``skillreason evaluate``: one query, metrics as given."""

    def write(name: str, model: str, bench: str, recall: float, **extra: Any) -> Path:
        metrics = {
            "recall@1": recall,
            "recall@5": recall,
            "recall@10": recall,
            "ndcg@10": recall,
            "multi_fc@10": recall,
        }
        value = {
            "metrics": metrics,
            "model": model,
            "benchmark": {"name": bench, "protocol": "", "notes": []},
            **extra,
            "queries": [{"query_id": "q", "ids": ["a", "b"], "scores": [2, 1], "qrels": {"b": 1}}],
        }
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
        return path

    return write
