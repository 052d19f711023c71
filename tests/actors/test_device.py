"""Roles that share a GPU give back what PyTorch keeps of it after each of their calls; others keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors import policy as policy_module
from actors import reference as reference_module
from actors import retriever as retriever_module
from actors.policy import Policy
from actors.policy_batch import PolicyBatch
from actors.reference import Reference
from actors.retriever import RewardRetriever
from configs.schema import ActorConfig, ModelConfig
from models.views import raw_view


@pytest.mark.parametrize("release", [True, False])
def test_memory_goes_back_after_each_call_where_others_need_it(
    model_config: ModelConfig,
    make_batch: Callable[..., PolicyBatch],
    monkeypatch: pytest.MonkeyPatch,
    release: bool,
):
    given: list[str] = []
    for module in (policy_module, reference_module, retriever_module):
        monkeypatch.setattr(module, "release_cache", lambda name=module.__name__: given.append(name))
    keys: dict[str, Any] = {"threads": 0, "device": "cpu", "release": release}
    policy = Policy(model_config, ActorConfig(), temperature=0.8, seed=0, **keys)
    batch = make_batch(policy)
    policy.update(batch)
    policy.encode([raw_view("draw")], 64)
    Reference(model_config, temperature=0.8, token_budget=64, **keys).log_probs(batch.prompts, batch.responses)
    RewardRetriever(model_config, token_budget=64, **keys).encode([raw_view("draw")], 64)
    expected = ["actors.policy", "actors.policy", "actors.reference", "actors.retriever"]
    assert given == (expected if release else [])
