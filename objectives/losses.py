"""The Stage-I losses, eqs. 2-7 of the SkillReason paper, as plain functions on tensors.

Shapes: N queries, D unique candidate documents, d embedding dimensions. All inputs are float32 and unit length, so an inner
product is the cosine similarity h of eq. 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def candidate_logits(
    queries: torch.Tensor, documents: torch.Tensor, masked: torch.Tensor, temperature: float
) -> torch.Tensor:
    """h(q, s) / temperature over the candidates ``[N, D]``; masked candidates get -inf.

    Args:
        queries: ``[N, d]``.
        documents: ``[D, d]``, every document of the global batch once.
        masked: bool ``[N, D]``; true where a document is another known positive of the query or an excluded neighbour.
        temperature: τ in eqs. 2 and 3, τT in eq. 4.
    """
    return (queries @ documents.T / temperature).masked_fill(masked, float("-inf"))


def contrastive_loss(
    queries: torch.Tensor,
    documents: torch.Tensor,
    positive: torch.Tensor,
    masked: torch.Tensor,
    tau: float,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Eq. 2 for the raw view and eq. 3 for the privileged view, averaged over the batch with sample weights.

    Args:
        positive: int64 ``[N]``, each query's target among the documents; must not be masked.
        weights: float ``[N]`` sample weights.
    """
    losses = F.cross_entropy(candidate_logits(queries, documents, masked, tau), positive, reduction="none")
    return (losses * weights).sum() / weights.sum()


def alignment_loss(
    raw: torch.Tensor,
    teacher: torch.Tensor,
    documents: torch.Tensor,
    masked: torch.Tensor,
    tau: float,
    distillation_temperature: float,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Eqs. 4 and 5: T² · KL(sg[p^T(·|teacher view)] ‖ p^T(·|raw view)), averaged over the batch.

    The stop-gradient covers the whole teacher distribution, its document embeddings included; gradients reach the raw queries and
    the documents through the student distribution alone.
    """
    temperature = tau * distillation_temperature
    student = F.log_softmax(candidate_logits(raw, documents, masked, temperature), dim=-1)
    with torch.no_grad():
        target = F.log_softmax(candidate_logits(teacher, documents, masked, temperature), dim=-1)
    # -inf on both sides of a masked candidate would give nan; its probability is zero in both distributions
    difference = (target - student).masked_fill(masked, 0.0)
    divergence = (target.exp() * difference).sum(-1)
    return distillation_temperature**2 * (divergence * weights).sum() / weights.sum()


def rationale_lm_loss(
    log_probs: torch.Tensor, mask: torch.Tensor, reduction: str, total_tokens: float, batch_size: int
) -> torch.Tensor:
    """Eq. 6 for one micro-batch, normalized for the whole batch so that micro-batches add up.

    Args:
        log_probs: ``[B, R]`` log π(c_t | q, c_<t) of the rationale tokens and their end token.
        mask: ``[B, R]``, 1 where a token carries loss.
        reduction: ``token_mean`` divides by the tokens of the whole batch; ``sum`` is the equation literally, a sum per rationale
            averaged over the batch.
        total_tokens: rationale tokens of the whole batch.
        batch_size: queries of the whole batch.
    """
    total = -(log_probs * mask).sum()
    if reduction == "token_mean":
        return total / max(total_tokens, 1.0)
    if reduction == "sum":
        return total / batch_size
    raise ValueError(f"loss.lm_reduction is {reduction!r}; expected 'token_mean' or 'sum'")
