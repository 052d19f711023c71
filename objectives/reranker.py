"""One reranker step (E.5): from candidate groups to accumulated gradients of eq. 17 and the two query auxiliaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from configs.schema import RerankerDataConfig, RerankerLossConfig
from models.reranker_format import PairTokenizer
from objectives.engine import Engine
from objectives.gradient_cache import Face, cached_backward, rows_of
from objectives.stage1 import rationale_backward

if TYPE_CHECKING:
    from data_pipeline.candidate_groups import CandidateGroup

PAIR_SCORES = Face("pair_scores", 1)


@dataclass(frozen=True)
class GroupBatch:
    """G groups as token ids; R of them have a rationale.

    Attributes:
        pairs: ``[G]`` lists of the group's pairs.
        weights: ``[G]`` lists of y, one for each pair.
        explained: row numbers of the R groups with a rationale.
        privileged: ``[R]`` lists of the same pairs with the rationale beside the request; only for ``distill: kl``.
        queries, analyses: ``[R]`` query prefixes, and the same with the rationale.
        prompts, rationales: ``[R]``, the LM branch; rationales with their end token.
    """

    pairs: list[list[list[int]]]
    weights: list[list[float]]
    explained: list[int] = field(default_factory=list)
    privileged: list[list[list[int]]] = field(default_factory=list)
    queries: list[list[int]] = field(default_factory=list)
    analyses: list[list[int]] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    rationales: list[list[int]] = field(default_factory=list)


class GroupCollator:
    """Turns groups into a :class:`GroupBatch`."""

    def __init__(
        self,
        pairs: PairTokenizer,
        document_of: Callable[[str], str],
        data: RerankerDataConfig,
        loss: RerankerLossConfig,
    ):
        """
        Args:
            document_of: a skill's serialized document, by its id.
        """
        self.pairs, self.document_of, self.data, self.loss = pairs, document_of, data, loss

    def __call__(self, groups: Sequence[CandidateGroup]) -> GroupBatch:
        """Groups without a rationale have no part in the auxiliaries, and where these have weight 0 nobody has."""
        groups = [group.first(self.data.max_candidates) for group in groups]
        batch = self.pairs_of(groups)
        if self.loss.lambda_distill == 0 and self.loss.lambda_lm == 0:
            return batch
        for row, group in enumerate(groups):
            if not group.query_capability:
                continue
            (rationale,) = self.pairs.tokenizer.encode_rationales(
                [group.query_capability], self.data.rationale_max_length
            )
            batch.explained.append(row)
            batch.queries.append(self.pairs.query(group.query))
            batch.analyses.append(self.pairs.analysis(group.query, rationale[:-1]))
            batch.prompts.append(self.pairs.analysis_prompt(group.query))
            batch.rationales.append(rationale)
            if self.loss.lambda_distill > 0 and self.loss.distill == "kl":
                documents = [self.document_of(s) for s in group.skill_ids]
                batch.privileged.append(self.pairs.pairs(group.query, documents, group.query_capability))
        return batch

    def pairs_of(self, groups: Sequence[CandidateGroup]) -> GroupBatch:
        """The pairs and weights alone, of groups as they are."""
        return GroupBatch(
            [self.pairs.pairs(g.query, [self.document_of(s) for s in g.skill_ids]) for g in groups],
            [list(g.weights) for g in groups],
        )


# -- the losses, plain functions on tensors ------------------------------------------------------------------------------


def listwise_loss(scores: torch.Tensor, weights: torch.Tensor, tau: float = 1.0) -> torch.Tensor:
    """Eqs. 16 and 17 for one group: −Σ ȳ log softmax(r / τ) over its candidates.

    Args:
        scores: ``[n]`` r(q, s).
        weights: ``[n]`` y ≥ 0, at least one above 0; they are divided by their sum.
        tau: 1 in both papers.
    """
    return -(weights / weights.sum() * F.log_softmax(scores / tau, dim=-1)).sum()


def analysis_distillation(queries: torch.Tensor, analyses: torch.Tensor) -> torch.Tensor:
    """Σ 1 − cos(h(q), sg h([q; rationale])) over unit vectors ``[R, d]``; the caller divides by the batch's R."""
    return (1 - (queries * analyses.detach()).sum(dim=-1)).sum()


def score_distillation(scores: torch.Tensor, privileged: torch.Tensor, tau: float = 1.0) -> torch.Tensor:
    """KL(sg p(· | q, rationale) ‖ p(· | q)) over one group's candidates ``[n]``."""
    target = F.log_softmax(privileged.detach() / tau, dim=-1)
    return (target.exp() * (target - F.log_softmax(scores / tau, dim=-1))).sum()


# -- one update ------------------------------------------------------------------------------------------------------------


def reranker_backward(engine: Engine, batch: GroupBatch, config: RerankerLossConfig) -> dict[str, float]:
    """Accumulate the gradients of one update in the engine. Collective: every rank passes the whole batch.

    The groups go through in windows of ``window_groups`` for each rank, whose pairs all ranks share. Every loss is divided by the
    counts of the whole batch, so that windows, micro-batches and ranks change nothing but rounding.

    Returns:
        ``loss/total`` and the unweighted terms ``loss/rank``, ``loss/distill``, ``loss/lm``, and ``train/accuracy``, the share of
        groups whose best candidate is a positive; the same on every rank.

    Raises:
        FloatingPointError: a loss is not finite; on every rank, with no gradients left.
    """
    try:
        metrics = _ranking_backward(engine, batch, config)
        if batch.explained and config.lambda_distill > 0 and config.distill == "cosine":
            metrics["loss/distill"] = _cosine_backward(engine, batch, config)
        if batch.explained and config.lambda_lm > 0:
            metrics["loss/lm"] = rationale_backward(
                engine,
                batch.prompts,
                batch.rationales,
                weight=config.lambda_lm,
                token_budget=config.micro_batch_tokens,
            )
    except FloatingPointError:
        engine.zero_grad()
        raise
    total = metrics["loss/rank"] + config.lambda_distill * metrics.get("loss/distill", 0.0)
    return {"loss/total": total + config.lambda_lm * metrics.get("loss/lm", 0.0), **metrics}


def _ranking_backward(engine: Engine, batch: GroupBatch, config: RerankerLossConfig) -> dict[str, float]:
    """Eq. 17 and, where it is distilled into the scores, the KL term."""
    groups, explained = len(batch.pairs), len(batch.explained)
    place = {row: number for number, row in enumerate(batch.explained)}
    with_kl = bool(batch.privileged)
    sums = {"loss/rank": 0.0, "train/accuracy": 0.0} | ({"loss/distill": 0.0} if with_kl else {})
    window = config.window_groups * engine.collectives.size
    for start in range(0, groups, window):
        rows = range(start, min(start + window, groups))
        taught = [row for row in rows if row in place] if with_kl else []

        def loss_of(
            found: Mapping[str, torch.Tensor], rows: range = rows, taught: list[int] = taught
        ) -> tuple[torch.Tensor, dict[str, float]]:
            scores = dict(zip(rows, found["pairs"][:, 0].split([len(batch.pairs[r]) for r in rows]), strict=True))
            weights = {row: scores[row].new_tensor(batch.weights[row]) for row in rows}
            rank = torch.stack([listwise_loss(scores[r], weights[r], config.tau) for r in rows]).sum() / groups
            hits = sum(float(weights[row][scores[row].argmax()] > 0) for row in rows)
            terms = {"loss/rank": rank.item(), "train/accuracy": hits / groups}
            if not taught:
                return rank, terms
            teacher = found["privileged"][:, 0].split([len(batch.pairs[row]) for row in taught])
            kl = [score_distillation(scores[r], t, config.tau) for r, t in zip(taught, teacher, strict=True)]
            distilled = torch.stack(kl).sum() / explained
            return rank + config.lambda_distill * distilled, {**terms, "loss/distill": distilled.item()}

        views = {"pairs": [pair for row in rows for pair in batch.pairs[row]]}
        if taught:
            views["privileged"] = [pair for row in taught for pair in batch.privileged[place[row]]]
        _, terms = cached_backward(
            engine,
            views,
            loss_of,
            token_budget=config.micro_batch_tokens,
            stop_gradient=frozenset({"privileged"} & views.keys()),
            cache=config.gradient_cache,
            face=PAIR_SCORES,
            of="ranking",
        )
        for name, value in terms.items():
            sums[name] += value
    return sums


def _cosine_backward(engine: Engine, batch: GroupBatch, config: RerankerLossConfig) -> float:
    """Query-analysis distillation between last hidden states of the query prefix with and without the rationale."""

    def loss_of(found: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        value = analysis_distillation(found["queries"], found["analyses"]) / len(batch.explained)
        return config.lambda_distill * value, {"loss/distill": value.item()}

    _, terms = cached_backward(
        engine,
        {"queries": batch.queries, "analyses": batch.analyses},
        loss_of,
        token_budget=config.micro_batch_tokens,
        stop_gradient=frozenset({"analyses"}),
        cache=config.gradient_cache,
        of="distillation",
    )
    return terms["loss/distill"]


def score_groups(engine: Engine, batch: GroupBatch, token_budget: int) -> list[torch.Tensor]:
    """r(q, s) of every group's candidates, without gradients, on every rank. Collective."""
    pairs = [pair for group in batch.pairs for pair in group]
    scores = rows_of(engine, pairs, token_budget, PAIR_SCORES)[:, 0].cpu()
    return list(scores.split([len(group) for group in batch.pairs]))
