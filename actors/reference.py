"""The frozen reference policy: the Stage-I causal LM that the KL term holds on to."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from actors.device import place, release_cache
from actors.policy import equal_passes, response_log_probs
from configs.schema import ModelConfig, ParallelConfig
from models.backbone import Backbone
from objectives.engine import build_engine


class Reference:
    """log π_ref of every response token, at the sampling temperature: in one process, or one rank of several."""

    def __init__(
        self,
        model: ModelConfig,
        *,
        temperature: float,
        token_budget: int,
        threads: int,
        device: str,
        parallel: ParallelConfig | None = None,
        release: bool = False,
    ):
        """
        Args:
            release: give cached GPU memory back after each call; other roles share the GPU.
        """
        self.temperature = temperature
        self.token_budget = token_budget
        self._release = release
        backbone = Backbone.load(
            model.path, dtype=model.dtype, device=place(device, threads), share_prefixes=model.share_prefixes
        )
        self.engine = build_engine(
            backbone, None, parallel or ParallelConfig(), default_strategy="fsdp2", parallel_key="ref.parallel"
        )

    @property
    def backbone(self) -> Backbone:
        """The model, or this rank's shard of it."""
        return self.engine.backbone

    def ready(self) -> int:
        """Parameters of the whole model, once it is loaded."""
        return sum(int(np.prod(shape)) for shape in self.engine.shapes.values())

    def log_probs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> tuple[list[np.ndarray], float]:
        """One float32 array per response, and the seconds it took. Collective: each rank passes its own rows."""
        start = time.perf_counter()
        plan = equal_passes(self.engine, prompts, responses, self.token_budget)
        out = response_log_probs(self.engine, prompts, responses, self.temperature, plan)
        if self._release:
            release_cache()
        return out, time.perf_counter() - start
