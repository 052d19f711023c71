"""The frozen Stage-I encoder h_φ that measures retrieval margins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.device import place, release_cache
from configs.schema import ModelConfig
from models.backbone import Backbone
from models.views import View


class RewardRetriever:
    """Encodes query views and documents for the reward; it never changes, so its document embeddings may be kept."""

    def __init__(self, model: ModelConfig, *, token_budget: int, threads: int, device: str, release: bool = False):
        """
        Args:
            release: give cached GPU memory back after each call; other roles share the GPU.
        """
        self.token_budget = token_budget
        self._release = release
        self.backbone = Backbone.load(
            model.path, dtype=model.dtype, device=place(device, threads), share_prefixes=model.share_prefixes
        ).eval()
        self.backbone.requires_grad_(False)

    def ready(self) -> int:
        """Parameters of the model, once it is loaded."""
        return sum(p.numel() for p in self.backbone.parameters())

    def encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        """Unit-length embeddings ``[N, d]``, float32."""
        tokens = self.backbone.tokenizer.encode_views(views, max_length)
        embeddings = self.backbone.encode(tokens, self.token_budget).numpy()
        if self._release:
            release_cache()
        return embeddings
