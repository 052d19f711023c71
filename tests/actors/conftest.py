"""A policy, a small batch of rollouts and what the roles need to load the tiny backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.policy import Policy
from actors.policy_batch import PolicyBatch
from configs.schema import ActorConfig, ModelConfig, OptimizerConfig

PROMPTS = {"a": [5, 6, 7], "b": [30, 31, 32, 33, 34], "c": [50]}
RESPONSES = {
    "a": [[20, 21, 22, 1], [23, 1], [24, 25, 26, 27, 28, 1]],
    "b": [[40, 41, 1], [42, 43, 44, 45, 1]],
    "c": [[60, 61, 1], [1], [62, 63, 64]],
}
REWARDS = {"a": [1.0, -0.5, 0.2], "b": [0.1, 0.7], "c": [-1.0, 0.3, 0.9]}


@pytest.fixture(scope="session")
def model_config(tiny_folder: Path) -> ModelConfig:
    return ModelConfig(path=str(tiny_folder), dtype="float32")


@pytest.fixture
def make_policy(model_config: ModelConfig) -> Callable[..., Policy]:
    """A policy with actor keys of the test's choice; learning rate 1e-3, no weight decay, no clipping."""

    def make(temperature: float = 0.8, lr: float = 1e-3, clip_grad: float = 0.0, **keys: Any) -> Policy:
        optim = OptimizerConfig(lr=lr, weight_decay=0.0, clip_grad=clip_grad)
        config = ActorConfig(optim=optim, **keys)
        return Policy(model_config, config, temperature=temperature, threads=0, device="cpu", seed=0)

    return make


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., PolicyBatch]:
    """Eight rollouts of three requests in uneven groups, in any order, with a reference a little off the policy."""

    def make(policy: Policy, order: list[int] | None = None, shift: float = 0.1, **changes: Any) -> PolicyBatch:
        rows = [
            (query, PROMPTS[query], response, reward)
            for query in PROMPTS
            for response, reward in zip(RESPONSES[query], REWARDS[query], strict=True)
        ]
        rows = [rows[i] for i in order or range(len(rows))]
        with torch.no_grad():
            own = [
                policy.backbone.response_log_probs([prompt], [response], policy.temperature)[0][0].numpy()
                for _, prompt, response, _ in rows
            ]
        reference = [values + shift * np.cos(np.arange(len(values), dtype=np.float32)) for values in own]
        attributes: dict[str, Any] = {
            "query_ids": [row[0] for row in rows],
            "prompts": [row[1] for row in rows],
            "responses": [row[2] for row in rows],
            "rewards": torch.tensor([row[3] for row in rows]),
            "ref_log_probs": reference,
        }
        return PolicyBatch(**{**attributes, **changes})

    return make
