"""The reward as the driver sees it: a pool of frozen retrievers, and one actor that scores what they encode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from actors.members import MAX_FAILURES, Note, RoleError
from actors.pool import ElasticPool, piece_sizes
from actors.reward import RequestEmbedder, RewardRequest, RewardResult
from cluster.errors import LOST, last_line, loss
from models.views import View

SCORE_S = 3600.0
"""Seconds that a batch's terms may take before the actor counts as hung: a term may ask a model elsewhere about every rollout."""


class RewardRole:
    """Scores batches; survives the loss of a retriever, of all of them, and of the actor.

    Embeddings pass through the driver (a few megabytes a batch), which keeps those of documents. So neither side has to outlive
    the other: a lost retriever is the pool's matter, and a lost actor is started again and gets the same batch.
    """

    def __init__(
        self,
        create: Callable[[], Any],
        retrievers: ElasticPool,
        note: Note,
        *,
        max_query_length: int,
        document_max_length: int,
    ):
        """
        Args:
            create: starts an actor of :class:`actors.reward.EmbeddedScorer` and returns its handle.
            retrievers: a pool of :class:`actors.retriever.RewardRetriever`.
        """
        self.retrievers = retrievers
        self._create, self._note = create, note
        self._embedder = RequestEmbedder(
            self._encode, max_query_length=max_query_length, document_max_length=document_max_length
        )
        self._closed = False
        self.handle = create()

    def score(self, request: RewardRequest) -> RewardResult:
        """Rewards of all rollouts of a batch, see :meth:`actors.reward.EmbeddedScorer.score_embedded`.

        Raises:
            RewardError: as the term raised it, inside a RayTaskError.
            RoleError: the actor died or hung again and again over this batch.
        """
        embeddings = self._embedder.embed(request)
        bare = replace(request, documents={})
        for attempt in range(1, MAX_FAILURES + 1):
            try:
                return ray.get(self.handle.score_embedded.remote(bare, embeddings), timeout=SCORE_S)
            except RayTaskError:
                raise
            except (*LOST, GetTimeoutError) as error:
                event, reason = loss(error)
                if getattr(error, "_actor_init_failed", False):
                    reason = last_line(error)
                if self._closed or attempt == MAX_FAILURES:
                    raise RoleError(f"the reward role was lost {attempt} times over one batch: {reason}") from error
                ray.kill(self.handle)  # it may only be silent
                self._note(event, f"reward actor: {reason}; it is started again for the same batch", role="reward")
                self.handle = self._create()
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End the actor and the retrievers."""
        self._closed = True
        ray.kill(self.handle)
        self.retrievers.stop()

    def _encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        pieces, start = [], 0
        for size in piece_sizes(len(views), self.retrievers.most):
            pieces.append((list(views[start : start + size]), max_length))
            start += size
        return np.concatenate(self.retrievers.map("encode", pieces))
