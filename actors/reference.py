"""The frozen reference policy: the Stage-I causal LM that the KL term holds on to."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from actors.device import place
from actors.policy import response_log_probs
from configs.schema import ModelConfig
from models.backbone import Backbone
from models.batching import plan_micro_batches


class Reference:
    """log π_ref of every response token, at the sampling temperature."""

    def __init__(self, model: ModelConfig, *, temperature: float, token_budget: int, threads: int, device: str):
        self.temperature = temperature
        self.token_budget = token_budget
        self.backbone = Backbone.load(model.path, dtype=model.dtype, device=place(device, threads)).eval()
        self.backbone.requires_grad_(False)

    def ready(self) -> int:
        """Parameters of the model, once it is loaded."""
        return sum(p.numel() for p in self.backbone.parameters())

    def log_probs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> tuple[list[np.ndarray], float]:
        """One float32 array per response, and the seconds it took."""
        start = time.perf_counter()
        lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
        plan = plan_micro_batches(lengths, self.token_budget)
        out = response_log_probs(self.backbone, prompts, responses, self.temperature, plan)
        return out, time.perf_counter() - start
