"""A batch of two requests with five rollouts over four pool documents, in float32 unit vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rewards import RewardBatch


def unit(rows: int, seed: int) -> torch.Tensor:
    values = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)) * 0.1 + 1.0
    return values / values.norm(dim=1, keepdim=True)


@pytest.fixture
def make_batch() -> Callable[..., RewardBatch]:
    """The batch, with any attribute replaced; the rollouts of the two requests are mixed and uneven in number."""

    def make(**changes: Any) -> RewardBatch:
        attributes: dict[str, Any] = {
            "query_ids": ["q-one", "q-two"],
            "queries": ["draw it", "fill it"],
            "rationales": ["a", "b", "", "d", "e"],
            "lengths": torch.tensor([5, 128, 1, 129, 400]),
            "group": torch.tensor([1, 0, 1, 1, 0]),
            "document_ids": ["chart", "form", "sql", "notes"],
            "query_embeddings": unit(2, 0),
            "rollout_embeddings": unit(5, 1),
            "document_embeddings": unit(4, 2),
            "positive": torch.tensor([0, 1]),
            "negatives": torch.tensor([[False, True, True, True], [True, False, True, False]]),
        }
        return RewardBatch(**{**attributes, **changes})

    return make
