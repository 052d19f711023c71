"""Sampling rationales with transformers: the shared prompt is prefilled once for all samples of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from models.backbone import Backbone
from models.batching import pad_left, plan_micro_batches

NUCLEUS_CANDIDATES = 256
"""Tokens sorted first; rows whose nucleus needs more are sorted whole."""


@dataclass(frozen=True)
class Rollout:
    """One sampled rationale.

    Attributes:
        tokens: response ids; the end token is the last one unless the length limit cut the rationale.
        log_probs: the sampler's log-probability of each token over the whole vocabulary (nats), at
            ``SamplingParams.log_prob_temperature``.
    """

    tokens: list[int]
    log_probs: list[float]


@dataclass(frozen=True)
class SamplingParams:
    """How rationales are drawn (Table 16: n 8, temperature 0.8, top_p 0.95, 192 tokens); temperature 0 is greedy.

    ``log_prob_temperature`` is that of the log-probabilities returned with the tokens: 1, or the sampling temperature where the
    nucleus is the whole vocabulary, so that they are those of the distribution that was sampled.
    """

    n: int = 8
    temperature: float = 0.8
    top_p: float = 0.95
    max_tokens: int = 192
    stop_token_ids: tuple[int, ...] = ()
    log_prob_temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.log_prob_temperature != 1 and (self.log_prob_temperature != self.temperature or self.top_p < 1):
            raise ValueError(
                f"log-probabilities at temperature {self.log_prob_temperature} of samples at rollout.temperature "
                f"{self.temperature} and rollout.top_p {self.top_p}; expected temperature 1, or that of the samples with top_p 1"
            )


def sample_rollouts(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    seeds: Sequence[int],
    token_budget: int = 65536,
) -> list[list[Rollout]]:
    """Draw ``params.n`` rationales for each prompt.

    A group's random numbers depend on its seed alone, so the result is the same however prompts are spread over workers and
    micro-batches (to the rounding of batched matrix products).

    Args:
        prompts: token ids of each prompt, ``[Q]``.
        seeds: one a prompt.
        token_budget: ``(padded prompt + max_tokens) * n`` tokens decoded together.

    Returns:
        ``[Q][n]`` rollouts.
    """
    lengths = [(len(p) + params.max_tokens) * params.n for p in prompts]
    out: list[list[Rollout]] = [[] for _ in prompts]
    for rows in plan_micro_batches(lengths, token_budget):
        groups = _sample_micro_batch(backbone, [prompts[r] for r in rows], params, [seeds[r] for r in rows])
        for row, group in zip(rows, groups, strict=True):
            out[row] = group
    return out


@torch.inference_mode()
def _sample_micro_batch(
    backbone: Backbone, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
) -> list[list[Rollout]]:
    from transformers import DynamicCache

    device, n = backbone.device, params.n
    model, head = backbone.model.base_model, backbone.model.get_output_embeddings()
    ids, mask = pad_left(prompts, backbone.tokenizer.pad_id, device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=backbone.model.config)

    def step(tokens: torch.Tensor, attention: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        with backbone.autocast():
            hidden = model(
                input_ids=tokens,
                attention_mask=attention,
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
            return head(hidden).float()

    logits = step(ids, mask, positions).repeat_interleave(n, dim=0)
    cache.batch_repeat_interleave(n)
    mask = mask.repeat_interleave(n, dim=0)
    position = positions[:, -1].repeat_interleave(n, dim=0)

    uniforms = torch.stack([_uniforms(seed, n, params.max_tokens) for seed in seeds]).flatten(0, 1).to(device)
    stop = torch.tensor(params.stop_token_ids, dtype=torch.long, device=device)
    total = len(prompts) * n
    tokens: list[list[int]] = [[] for _ in range(total)]
    log_probs: list[list[float]] = [[] for _ in range(total)]
    alive = torch.arange(total, device=device)
    for t in range(params.max_tokens):
        chosen = _choose(logits, params, uniforms[alive, t])
        chosen_log_probs = (
            torch.log_softmax(logits / params.log_prob_temperature, dim=-1).gather(1, chosen[:, None]).squeeze(1)
        )
        for row, token, value in zip(alive.tolist(), chosen.tolist(), chosen_log_probs.tolist(), strict=True):
            tokens[row].append(token)
            log_probs[row].append(value)
        going = ~torch.isin(chosen, stop)
        if t + 1 == params.max_tokens or not going.any():
            break
        if not going.all():  # finished rows leave the batch, and their keys and values with them
            keep = torch.nonzero(going).flatten()
            alive, chosen, mask, position = alive[keep], chosen[keep], mask[keep], position[keep]
            cache.batch_select_indices(keep)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        position = position + 1
        logits = step(chosen[:, None], mask, position[:, None])
    rollouts = [Rollout(t, p) for t, p in zip(tokens, log_probs, strict=True)]
    return [rollouts[i * n : (i + 1) * n] for i in range(len(prompts))]


def _uniforms(seed: int, n: int, steps: int) -> torch.Tensor:
    """``[n, steps]`` numbers in [0, 1), a stream of its own for each sample, independent of the number of steps."""
    rows = [np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), i])).random(steps) for i in range(n)]
    return torch.from_numpy(np.stack(rows))


def _choose(logits: torch.Tensor, params: SamplingParams, uniform: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF draw from the tempered nucleus: ``[B]`` token ids."""
    if params.temperature == 0:
        return logits.argmax(dim=-1)
    probabilities = torch.softmax(logits / params.temperature, dim=-1)
    width = min(NUCLEUS_CANDIDATES, probabilities.shape[-1])
    top, index = probabilities.topk(width, dim=-1)
    chosen = _nucleus_draw(top, index, params.top_p, uniform)
    short = torch.nonzero(top.sum(-1) < params.top_p).flatten() if width < probabilities.shape[-1] else []
    if len(short):
        full, full_index = probabilities[short].sort(dim=-1, descending=True)
        chosen[short] = _nucleus_draw(full, full_index, params.top_p, uniform[short])
    return chosen


def _nucleus_draw(sorted_probs: torch.Tensor, index: torch.Tensor, top_p: float, uniform: torch.Tensor) -> torch.Tensor:
    """The nucleus is the smallest set of most likely tokens whose mass reaches ``top_p``; the draw is renormalized in it."""
    cumulative = sorted_probs.double().cumsum(-1)
    size = ((cumulative - sorted_probs) < top_p).sum(-1).clamp(min=1)
    mass = cumulative.gather(1, (size - 1)[:, None])
    place = torch.searchsorted(cumulative, uniform[:, None] * mass, right=True).squeeze(1)
    return index.gather(1, torch.minimum(place, size - 1)[:, None]).squeeze(1)
