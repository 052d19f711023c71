"""The trainable policy: the only role whose weights change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.device import place
from configs.schema import ActorConfig, ModelConfig
from models.backbone import Backbone
from models.batching import plan_micro_batches
from models.export import export_causal_lm, export_retriever
from models.views import View
from objectives.checkpoint import load_checkpoint, save_checkpoint
from objectives.losses import rationale_lm_loss
from objectives.optimizers import build_optimizer, clip_gradients


@dataclass(frozen=True)
class PolicyBatch:
    """R rollouts to learn from, in any order.

    Attributes:
        query_ids: ``[R]``, the group of each rollout; groups may differ in size.
        prompts, responses: ``[R]`` token ids; a response includes its end token.
        rewards: float32 ``[R]``.
        ref_log_probs: ``[R]`` arrays, one float a response token, from the frozen reference at the sampling temperature.
        sft_prompts, sft_rationales: teacher rationales for the auxiliary SFT loss of E.3, empty where it is off.
    """

    query_ids: list[str]
    prompts: list[list[int]]
    responses: list[list[int]]
    rewards: torch.Tensor
    ref_log_probs: list[np.ndarray]
    sft_prompts: list[list[int]] = field(default_factory=list)
    sft_rationales: list[list[int]] = field(default_factory=list)


class Policy:
    """The Stage-II policy π_θ with its optimizer."""

    def __init__(
        self, model: ModelConfig, config: ActorConfig, *, temperature: float, threads: int, device: str, seed: int
    ):
        """
        Args:
            model: where the Stage-I full causal LM lies.
            config: the actor's own keys.
            temperature: the rollouts' sampling temperature; log-probabilities are taken at it.
        """
        self.config = config
        self.temperature = temperature
        self.device = place(device, threads, seed)
        self.backbone = Backbone.load(model.path, dtype=model.dtype, device=self.device).eval()
        self.optimizer = build_optimizer(self.backbone.parameters(), config.optim)
        self.version = 0

    def ready(self) -> int:
        """Parameters of the model, once it is loaded."""
        return sum(p.numel() for p in self.backbone.parameters())

    def update(self, batch: PolicyBatch) -> dict[str, float]:
        """One GRPO step: group-relative advantages, then ``ppo_epochs`` clipped updates over the whole batch.

        Token losses are normalized by the tokens of the whole batch, whatever the micro-batches. With one update a batch the old
        log-probabilities are the detached ones of the same forward pass.

        Returns:
            verl's actor metrics by verl's names, and the seconds spent.
        """
        from objectives.policy_gradient import BatchInfo, group_relative_advantages, policy_objective

        start = time.perf_counter()
        advantages = group_relative_advantages(batch.rewards, batch.query_ids)
        info = BatchInfo(
            num_tokens=sum(len(r) for r in batch.responses),
            num_sequences=len(batch.responses),
            rollout_n=max(2, len(batch.responses) // max(1, len(set(batch.query_ids)))),
        )
        lengths = [len(p) + len(r) for p, r in zip(batch.prompts, batch.responses, strict=True)]
        plan = plan_micro_batches(lengths, self.config.ppo_max_token_len)
        old = self._old_log_probs(batch, plan) if self.config.ppo_epochs > 1 else None
        metrics: dict[str, float] = {}
        for _ in range(self.config.ppo_epochs):
            metrics = {"actor/pg_loss": 0.0, "actor/kl_loss": 0.0, "actor/entropy": 0.0}
            for rows in plan:
                log_probs, entropy, mask = self.backbone.response_log_probs(
                    [batch.prompts[r] for r in rows], [batch.responses[r] for r in rows], self.temperature
                )
                old_log_probs = log_probs.detach() if old is None else self._pad([old[r] for r in rows])
                loss, reported = policy_objective(
                    log_probs,
                    old_log_probs,
                    self._pad([batch.ref_log_probs[r] for r in rows]),
                    advantages[rows].to(self.device),
                    mask,
                    self.config,
                    info,
                )
                loss.backward()
                reported["actor/entropy"] = float((entropy * mask).sum()) / max(info.num_tokens, 1)
                for key, value in reported.items():
                    metrics[key] = metrics.get(key, 0.0) + value
            if self.config.sft_coef > 0:
                metrics["actor/sft_loss"] = self._sft_backward(batch)
            metrics["actor/grad_norm"] = self._step()
        self.version += 1
        spread = advantages.abs().gt(0).float().mean()
        return {**metrics, "actor/nonzero_advantages": float(spread), "time/update": time.perf_counter() - start}

    def _step(self) -> float:
        try:
            norm = clip_gradients(self.backbone.parameters(), self.config.optim.clip_grad)
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _sft_backward(self, batch: PolicyBatch) -> float:
        tokens = float(sum(len(r) for r in batch.sft_rationales))
        lengths = [len(p) + len(r) for p, r in zip(batch.sft_prompts, batch.sft_rationales, strict=True)]
        value = 0.0
        for rows in plan_micro_batches(lengths, self.config.ppo_max_token_len):
            log_probs, _, mask = self.backbone.response_log_probs(
                [batch.sft_prompts[r] for r in rows], [batch.sft_rationales[r] for r in rows]
            )
            loss = rationale_lm_loss(log_probs, mask, "token_mean", tokens, len(batch.sft_rationales))
            (self.config.sft_coef * loss).backward()
            value += loss.item()
        return value

    def _old_log_probs(self, batch: PolicyBatch, plan: list[list[int]]) -> list[np.ndarray]:
        return response_log_probs(self.backbone, batch.prompts, batch.responses, self.temperature, plan)

    def _pad(self, rows: Sequence[np.ndarray]) -> torch.Tensor:
        tensors = [torch.from_numpy(np.asarray(r, dtype=np.float32)) for r in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.device)

    # -- what others ask of it ------------------------------------------------------------------------------------------

    def weights(self) -> tuple[int, dict[str, np.ndarray]]:
        """The version (updates made) and all parameters as float32 arrays."""
        return self.version, {name: tensor.cpu().numpy().copy() for name, tensor in self.backbone.state().items()}

    def encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        """Embeddings ``[N, d]`` of the current policy: in-training recall never uses the reward's cache."""
        tokens = self.backbone.tokenizer.encode_views(views, max_length)
        return self.backbone.encode(tokens, self.config.ppo_max_token_len).numpy()

    def save(self, folder: str, step: int, progress: dict[str, Any], keep: int) -> str:
        """Write a checkpoint, see :func:`objectives.checkpoint.save_checkpoint`."""
        return str(save_checkpoint(folder, step, self.backbone, self.optimizer, progress, keep))

    def restore(self, path: str) -> dict[str, Any]:
        """Load a checkpoint and return its progress."""
        progress = load_checkpoint(path, self.backbone, self.optimizer)
        self.version = int(progress["step"])
        return progress

    def export(self, retriever: str, causal_lm: str, max_length: int) -> None:
        """Write the SentenceTransformer folder and the full causal LM folder."""
        export_retriever(self.backbone, Path(retriever), max_length)
        export_causal_lm(self.backbone, Path(causal_lm))


def response_log_probs(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    temperature: float,
    plan: list[list[int]],
) -> list[np.ndarray]:
    """Log-probabilities of every response token without gradients, one float32 array a row, in row order."""
    out: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(prompts)
    with torch.no_grad():
        for rows in plan:
            log_probs, _, _ = backbone.response_log_probs(
                [prompts[r] for r in rows], [responses[r] for r in rows], temperature
            )
            for row, values in zip(rows, log_probs.cpu().numpy(), strict=True):
                out[row] = values[: len(responses[row])].copy()
    return out
