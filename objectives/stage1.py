"""One Stage-I step: from records to accumulated gradients of eq. 7."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from configs.schema import Stage1DataConfig, Stage1LossConfig
from models.backbone import Backbone
from models.views import document_view, privileged_view, raw_view, teacher_view
from objectives.engine import Engine
from objectives.gradient_cache import cached_backward
from objectives.losses import alignment_loss, contrastive_loss, rationale_lm_loss

if TYPE_CHECKING:
    from data_pipeline.records import Stage1Record


@dataclass(frozen=True)
class Stage1Batch:
    """N records as token ids, with every document of the batch once.

    Attributes:
        raw, privileged, teacher: encoder inputs of the three views, ``[N]`` each.
        documents: encoder inputs of the D unique candidates.
        positive: int64 ``[N]``, column of each record's target.
        masked: bool ``[N, D]``, candidates that are left out of a record's denominators.
        prompts, rationales: the LM branch, ``[N]`` each.
        weights: float32 ``[N]``.
    """

    raw: list[list[int]]
    privileged: list[list[int]]
    teacher: list[list[int]]
    documents: list[list[int]]
    document_ids: list[str]
    positive: torch.Tensor
    masked: torch.Tensor
    prompts: list[list[int]]
    rationales: list[list[int]]
    weights: torch.Tensor


class Stage1Collator:
    """Turns records into a :class:`Stage1Batch`; documents are tokenized once per run."""

    def __init__(
        self,
        backbone: Backbone,
        config: Stage1DataConfig,
        exclusions: Mapping[str, Set[str]] | None = None,
        known_positives: Mapping[str, Set[str]] | None = None,
    ):
        """
        Args:
            exclusions: exclusion graph; a positive's neighbours leave its record's denominators (readings of eqs. 2-5).
            known_positives: query text to all its labeled targets, where records share a query.
        """
        self.backbone = backbone
        self.config = config
        self.exclusions = exclusions or {}
        self.known_positives = known_positives or {}
        self._documents: dict[str, list[int]] = {}

    def __call__(self, records: Sequence[Stage1Record]) -> Stage1Batch:
        data, backbone = self.config, self.backbone
        k = data.negatives_per_record
        texts: dict[str, str] = {}
        for record in records:
            texts.setdefault(record.positive_id, record.positive)
            for skill_id, text in zip(record.negative_ids[:k], record.negatives[:k], strict=True):
                texts.setdefault(skill_id, text)
        ids = list(texts)
        column = {skill_id: i for i, skill_id in enumerate(ids)}
        masked = torch.zeros(len(records), len(ids), dtype=torch.bool)
        for row, record in enumerate(records):
            others = set(self.exclusions.get(record.positive_id, ())) | set(self.known_positives.get(record.query, ()))
            for other in others - {record.positive_id}:
                if other in column:
                    masked[row, column[other]] = True
        new = [skill_id for skill_id in ids if skill_id not in self._documents]
        tokens = backbone.tokenizer.encode_views([document_view(texts[s]) for s in new], data.document_max_length)
        self._documents.update(zip(new, tokens, strict=True))
        queries = [r.query for r in records]
        rationales = [r.query_capability for r in records]
        return Stage1Batch(
            raw=backbone.tokenizer.encode_views([raw_view(q) for q in queries], data.max_length),
            privileged=backbone.tokenizer.encode_views(
                [privileged_view(q, c) for q, c in zip(queries, rationales, strict=True)], data.max_length
            ),
            teacher=backbone.tokenizer.encode_views(
                [teacher_view(q, c) for q, c in zip(queries, rationales, strict=True)], data.max_length
            ),
            documents=[self._documents[s] for s in ids],
            document_ids=ids,
            positive=torch.tensor([column[r.positive_id] for r in records], dtype=torch.long),
            masked=masked,
            prompts=backbone.tokenizer.encode_prompts(queries, data.lm_max_length - data.rationale_max_length),
            rationales=backbone.tokenizer.encode_rationales(rationales, data.rationale_max_length),
            weights=torch.tensor([r.sample_weight for r in records], dtype=torch.float32),
        )


def stage1_backward(engine: Engine, batch: Stage1Batch, config: Stage1LossConfig, update: int) -> dict[str, float]:
    """Accumulate the gradients of eq. 7 in the engine and return its terms. Collective: every rank passes the whole batch.

    Args:
        update: optimizer updates already made; the KL term joins at ``config.kl_start_update``.

    Returns:
        ``loss/total`` and the unweighted terms ``loss/raw``, ``loss/cot``, ``loss/kl``, ``loss/lm``, and the in-batch
        accuracies of both query views; the same on every rank.

    Raises:
        FloatingPointError: a loss is not finite; on every rank, with no gradients left.
    """
    retrieval = config.lambda_raw > 0 or config.lambda_cot > 0 or config.lambda_kl > 0
    value, metrics = _retrieval_backward(engine, batch, config, update) if retrieval else (0.0, {})
    if config.lambda_lm > 0:
        metrics["loss/lm"] = rationale_backward(
            engine,
            batch.prompts,
            batch.rationales,
            weight=config.lambda_lm,
            reduction=config.lm_reduction,
            token_budget=config.micro_batch_tokens,
        )
        value += config.lambda_lm * metrics["loss/lm"]
    return {"loss/total": value, **metrics}


def _retrieval_backward(
    engine: Engine, batch: Stage1Batch, config: Stage1LossConfig, update: int
) -> tuple[float, dict[str, float]]:
    """Eqs. 2, 3 and 5 over documents that are encoded once; the weighted sum and the terms."""
    device = engine.device
    with_kl = config.lambda_kl > 0 and update >= config.kl_start_update
    views: dict[str, Sequence[Sequence[int]]] = {"raw": batch.raw, "documents": batch.documents}
    if config.lambda_cot > 0:
        views["privileged"] = batch.privileged
    if with_kl:
        views["teacher"] = batch.teacher
    positive, masked = batch.positive.to(device), batch.masked.to(device)
    weights = batch.weights.to(device)

    def retrieval_loss(embedded: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        documents = embedded["documents"]
        raw = contrastive_loss(embedded["raw"], documents, positive, masked, config.tau, weights)
        loss = config.lambda_raw * raw
        metrics = {
            "loss/raw": raw.item(),
            "train/accuracy_raw": _accuracy(embedded["raw"], documents, positive, masked),
        }
        if "privileged" in embedded:
            cot = contrastive_loss(embedded["privileged"], documents, positive, masked, config.tau, weights)
            loss = loss + config.lambda_cot * cot
            metrics["loss/cot"] = cot.item()
            metrics["train/accuracy_cot"] = _accuracy(embedded["privileged"], documents, positive, masked)
        if "teacher" in embedded:
            kl = alignment_loss(
                embedded["raw"],
                embedded["teacher"],
                documents,
                masked,
                config.tau,
                config.kl_temperature,
                weights,
            )
            loss = loss + config.lambda_kl * kl
            metrics["loss/kl"] = kl.item()
        return loss, metrics

    total, metrics = cached_backward(
        engine,
        views,
        retrieval_loss,
        token_budget=config.micro_batch_tokens,
        stop_gradient=frozenset({"teacher"}),
        cache=config.gradient_cache,
    )
    return total.item(), metrics


def rationale_backward(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    rationales: Sequence[Sequence[int]],
    *,
    weight: float,
    reduction: str = "token_mean",
    token_budget: int,
) -> float:
    """Accumulate ``weight`` times eq. 6 over the batch, spread over the ranks, one micro-batch at a time; its value. Collective.

    Args:
        prompts: ``[N]``, the whole batch on every rank.
        rationales: ``[N]`` with their end tokens.
        token_budget: tokens of a micro-batch: padded ones, or distinct ones where the model packs them.

    Raises:
        FloatingPointError: the loss is not finite; on every rank, with no gradients left.
    """
    total_tokens = float(sum(len(r) for r in rationales))
    ranks = engine.collectives
    written = [[*p, *r] for p, r in zip(prompts, rationales, strict=True)]
    value = torch.zeros((), device=engine.device)
    for rows in engine.backbone.plan(written, token_budget, ranks.size)[ranks.rank]:
        if not rows:
            engine.dummy_pass("response_log_probs", backward=True)
            continue
        log_probs, _, mask = engine.response_log_probs([prompts[r] for r in rows], [rationales[r] for r in rows])
        loss = rationale_lm_loss(log_probs, mask, reduction, total_tokens, len(rationales))
        engine.backward(weight * loss)
        value += loss.detach()
    total = ranks.sum(value).item()
    if not math.isfinite(total):
        engine.zero_grad()
        raise FloatingPointError(f"the rationale LM loss is {total}")
    return total


@torch.no_grad()
def _accuracy(queries: torch.Tensor, documents: torch.Tensor, positive: torch.Tensor, masked: torch.Tensor) -> float:
    best = (queries @ documents.T).masked_fill(masked, float("-inf")).argmax(dim=1)
    return (best == positive).float().mean().item()
