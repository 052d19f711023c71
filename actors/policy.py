"""The trainable policy: the only role whose weights change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.device import place, release_cache
from actors.policy_batch import PolicyBatch, PolicyShare, whole_share
from configs.schema import ActorConfig, ModelConfig, RolloutCorrectionConfig
from models.backbone import Backbone
from models.export import export_causal_lm, export_retriever
from models.views import View
from objectives.checkpoint import load_checkpoint, save_checkpoint
from objectives.engine import Engine, build_engine
from objectives.losses import rationale_lm_loss
from objectives.rollout_correction import Mismatch, importance_weights

LOSSES = (
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/entropy",
)
"""Metrics that are sums over the batch's tokens: micro-batches and ranks add up to them."""


class Policy:
    """The Stage-II policy π_θ with its optimizer: in one process, or one rank of several that hold it together.

    With several, every method but :meth:`ready` is collective: all ranks call it, each with its own share or with the same
    arguments.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: ActorConfig,
        *,
        temperature: float,
        threads: int,
        device: str,
        seed: int,
        engine_temperature: float = 1.0,
        correction: RolloutCorrectionConfig | None = None,
        release: bool = False,
    ):
        """
        Args:
            model: where the Stage-I full causal LM lies.
            config: the actor's own keys.
            temperature: the rollouts' sampling temperature; log-probabilities are taken at it.
            engine_temperature: the one of the rollout engine's own log-probabilities.
            correction: importance sampling between rollout engine and policy.
            release: give cached GPU memory back after each call; other roles share the GPU.
        """
        self.config = config
        self.temperature = temperature
        self.engine_temperature = engine_temperature
        self.correction = correction or RolloutCorrectionConfig()
        self._release = release
        backbone = Backbone.load(
            model.path, dtype=model.dtype, device=place(device, threads, seed), share_prefixes=model.share_prefixes
        )
        self.engine = build_engine(
            backbone,
            config.optim,
            config.parallel,
            default_strategy="fsdp2",
            optim_key="actor.optim",
            parallel_key="actor.parallel",
        )
        self.version = 0

    @property
    def backbone(self) -> Backbone:
        """The model, or this rank's shard of it."""
        return self.engine.backbone

    def ready(self) -> int:
        """Parameters of the whole model, once it is loaded."""
        return sum(int(np.prod(shape)) for shape in self.engine.shapes.values())

    def update(self, batch: PolicyBatch) -> dict[str, float]:
        """:meth:`update_share` of a whole batch, where there is one process."""
        return self.update_share(whole_share(batch))

    def update_share(self, share: PolicyShare) -> dict[str, float]:
        """One GRPO step with this rank's rollouts: ``ppo_epochs`` clipped updates over the whole batch of all ranks.

        Token losses are normalized by the tokens of the whole batch, whatever the micro-batches and the ranks. With one update a
        batch the old log-probabilities are the detached ones of the same forward pass.

        Returns:
            verl's actor metrics by verl's names, of the whole batch on every rank, and the seconds spent.

        Raises:
            FloatingPointError: on every rank, where the gradient's norm is not finite; the weights stay as they were.
        """
        start = time.perf_counter()
        if self.correction.rollout_is and share.rollout_log_probs is None:
            raise ValueError(
                "rollout_correction.rollout_is is set, and the batch has no log-probabilities of the rollout engine"
            )
        plan = equal_passes(self.engine, share.prompts, share.responses, self.config.ppo_max_token_len)
        old = None
        if self.config.ppo_epochs > 1:
            old = response_log_probs(self.engine, share.prompts, share.responses, self.temperature, plan)
        mismatch = Mismatch()
        sums: dict[str, float] = {}
        norm = 0.0
        for epoch in range(self.config.ppo_epochs):
            sums = dict.fromkeys(LOSSES, 0.0)
            for rows in plan:
                if not rows:
                    self.engine.dummy_pass("response_log_probs", backward=True)
                    continue
                for key, value in self._backward(share, rows, old, mismatch if epoch == 0 else None).items():
                    sums[key] += value
            if self.config.sft_coef > 0:
                sums["actor/sft_loss"] = self._sft_backward(share)
            norm = self.engine.step(self.config.optim.clip_grad)
        self.version += 1
        sums["actor/nonzero_advantages"] = float(share.advantages.ne(0).sum()) / max(share.info.num_sequences, 1)
        totals = self.engine.collectives.sum(torch.tensor(list(sums.values()), dtype=torch.float64))
        metrics = dict(zip(sums, totals.tolist(), strict=True))
        if share.rollout_log_probs is not None:
            metrics |= Mismatch.merged(self.engine.collectives.gather_objects(mismatch)).curves()
        self.rest()
        return {**metrics, "actor/grad_norm": norm, "time/update": time.perf_counter() - start}

    def _backward(
        self, share: PolicyShare, rows: list[int], old: list[np.ndarray] | None, mismatch: Mismatch | None
    ) -> dict[str, float]:
        """The gradients of one micro-batch, and its part of :data:`LOSSES`; ``mismatch`` counts it where given."""
        from objectives.policy_gradient import policy_objective

        prompts, responses = [share.prompts[r] for r in rows], [share.responses[r] for r in rows]
        if share.rollout_log_probs is None:
            log_probs, entropy, mask = self.engine.response_log_probs(prompts, responses, self.temperature)
        else:
            log_probs, entropy, mask, compared = self.engine.response_log_probs_compared(
                prompts, responses, self.temperature, self.engine_temperature
            )
        old_log_probs = log_probs.detach() if old is None else self._pad([old[r] for r in rows])
        weights = None
        if share.rollout_log_probs is not None:
            sampled = self._pad([share.rollout_log_probs[r] for r in rows])
            weights = importance_weights(old_log_probs, sampled, mask, self.correction)
            if mismatch is not None:
                mismatch.add(compared, sampled, mask, weights, self.correction.rollout_is_threshold)
        loss, reported = policy_objective(
            log_probs,
            old_log_probs,
            self._pad([share.ref_log_probs[r] for r in rows]),
            share.advantages[rows].to(self.engine.device),
            mask,
            self.config,
            share.info,
            weights,
        )
        self.engine.backward(loss)
        return {**reported, "actor/entropy": float((entropy * mask).sum()) / max(share.info.num_tokens, 1)}

    def _sft_backward(self, share: PolicyShare) -> float:
        value = 0.0
        for rows in equal_passes(self.engine, share.sft_prompts, share.sft_rationales, self.config.ppo_max_token_len):
            if not rows:
                self.engine.dummy_pass("response_log_probs", backward=True)
                continue
            log_probs, _, mask = self.engine.response_log_probs(
                [share.sft_prompts[r] for r in rows], [share.sft_rationales[r] for r in rows]
            )
            loss = rationale_lm_loss(log_probs, mask, "token_mean", float(share.sft_tokens), len(rows))
            self.engine.backward(self.config.sft_coef * loss)
            value += loss.item()
        return value

    def _pad(self, rows: Sequence[np.ndarray]) -> torch.Tensor:
        tensors = [torch.from_numpy(np.asarray(r, dtype=np.float32)) for r in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.engine.device)

    def rest(self) -> None:
        """Give cached GPU memory back, if others share the GPU."""
        if self._release:
            release_cache()

    # -- what others ask of it ------------------------------------------------------------------------------------------

    def encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        """Embeddings ``[N, d]`` of the current policy: in-training recall never uses the reward's cache."""
        tokens = self.backbone.tokenizer.encode_views(views, max_length)
        embeddings = self.engine.encode(tokens, self.config.ppo_max_token_len).numpy()
        self.rest()
        return embeddings

    def save(self, folder: str, step: int, progress: dict[str, Any], keep: int) -> str:
        """Write a checkpoint, see :func:`objectives.checkpoint.save_checkpoint`."""
        return save_checkpoint(folder, step, self.engine, progress, keep)

    def restore(self, path: str) -> dict[str, Any]:
        """Load a checkpoint, of any number of workers, and return its progress."""
        progress = load_checkpoint(path, self.engine)
        self.version = int(progress["step"])
        return progress

    def export(self, retriever: str, causal_lm: str, max_length: int) -> None:
        """Write the SentenceTransformer folder and the full causal LM folder."""
        export_retriever(self.engine, Path(retriever), max_length)
        export_causal_lm(self.engine, Path(causal_lm))


def equal_passes(
    engine: Engine, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], token_budget: int
) -> list[list[int]]:
    """Micro-batches of this rank's rows, then empty ones where other ranks have more and the engine minds. Collective.

    Where the model packs sequences, responses to one prompt are kept together, and the budget counts their prompt once.
    """
    sequences = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
    plan = engine.backbone.plan(sequences, token_budget)[0]
    if engine.needs_equal_passes:
        plan += [[] for _ in range(engine.collectives.max_int(len(plan)) - len(plan))]
    return plan


def response_log_probs(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    temperature: float,
    plan: list[list[int]],
) -> list[np.ndarray]:
    """Log-probabilities of every response token without gradients, one float32 array a row, in row order.

    Args:
        plan: of :func:`equal_passes`.
    """
    out: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(prompts)
    with torch.no_grad():
        for rows in plan:
            if not rows:
                engine.dummy_pass("response_log_probs", backward=False)
                continue
            log_probs, _, _ = engine.response_log_probs(
                [prompts[r] for r in rows], [responses[r] for r in rows], temperature
            )
            for row, values in zip(rows, log_probs.cpu().numpy(), strict=True):
                out[row] = values[: len(responses[row])].copy()
    return out
