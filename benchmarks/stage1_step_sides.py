"""What ``stage1_step.py`` compares: one batch's loss and gradients of Stage I by this project, by a peer, and by the book.

Each side lives in a process of its own, see :func:`serve`, with the same weights, records, limits and threads.
"""

from __future__ import annotations

import resource
import tempfile
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F

from configs.schema import OptimizerConfig, Stage1DataConfig, Stage1LossConfig
from data_pipeline.records import Stage1Record
from models.backbone import Backbone
from models.batching import pad_right, plan_micro_batches
from models.views import raw_view
from objectives.engine_torch import ReplicaEngine
from objectives.losses import alignment_loss, contrastive_loss, rationale_lm_loss
from objectives.stage1 import Stage1Batch, Stage1Collator, stage1_backward


@dataclass(frozen=True)
class Setup:
    """What all sides share.

    Attributes:
        model: folder of a causal LM.
        records: the batch.
        prompt_style: see :func:`models.views.rationale_prompt`.
    """

    model: str
    records: list[Stage1Record]
    data: Stage1DataConfig
    loss: Stage1LossConfig
    prompt_style: str
    threads: int


class Side(ABC):
    """One way to compute the loss of the batch and its gradients."""

    def __init__(self, setup: Setup):
        self.setup = setup

    @property
    @abstractmethod
    def parameters(self) -> list[torch.nn.Parameter]: ...

    @abstractmethod
    def backward(self, option: int) -> float:
        """Accumulate the gradients and return the loss; ``option`` is the side's own affair."""

    def step(self, option: int = 0) -> dict[str, float]:
        """Seconds, loss and gradient norm of one step, without the optimizer's update, which is the same for all."""
        for parameter in self.parameters:
            parameter.grad = None
        start = time.perf_counter()
        loss = self.backward(option)
        seconds = time.perf_counter() - start
        norms = [p.grad.double().norm() for p in self.parameters if p.grad is not None]
        return {"seconds": seconds, "loss": loss, "grad_norm": torch.stack(norms).norm().item()}


class Ours(Side):
    """``stage1_backward``, as ``skillreason train stage1`` calls it."""

    def __init__(self, setup: Setup):
        super().__init__(setup)
        backbone, self.batch = _load(setup)
        self.engine = ReplicaEngine(backbone, OptimizerConfig())

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.engine.backbone.model.parameters())

    def backward(self, option: int) -> float:
        return stage1_backward(self.engine, self.batch, self.setup.loss, update=0)["loss/total"]


class SentenceTransformersSide(Side):
    """Eq. 2 by sentence-transformers: ``MultipleNegativesRankingLoss``, cached in mini-batches of ``option`` rows, or not (0)."""

    def __init__(self, setup: Setup):
        super().__init__(setup)
        from sentence_transformers import SentenceTransformer

        from models.export import export_retriever

        with tempfile.TemporaryDirectory() as scratch:
            folder = export_retriever(Backbone.load(setup.model), f"{scratch}/model", setup.data.max_length)
            self.model = SentenceTransformer(str(folder), device="cpu")
        records = setup.records
        negatives = zip(*(r.negatives[: setup.data.negatives_per_record] for r in records), strict=True)
        documents = [[r.positive for r in records], *map(list, negatives)]
        self.columns = [self._tokenized([raw_view(r.query).text for r in records], setup.data.max_length)]
        self.columns += [self._tokenized(column, setup.data.document_max_length) for column in documents]

    def _tokenized(self, texts: list[str], limit: int) -> dict[str, Any]:
        """A column as the library's collator makes it, padded to its longest text."""
        self.model.max_seq_length = limit
        return self.model.preprocess(texts)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())

    def backward(self, option: int) -> float:
        from sentence_transformers.sentence_transformer.losses import (
            CachedMultipleNegativesRankingLoss,
            MultipleNegativesRankingLoss,
        )

        scale = 1 / self.setup.loss.tau
        if option:
            loss_of = CachedMultipleNegativesRankingLoss(self.model, scale=scale, mini_batch_size=option)
        else:
            loss_of = MultipleNegativesRankingLoss(self.model, scale=scale)
        loss = loss_of([dict(column) for column in self.columns], torch.empty(0))
        loss.backward()
        return loss.item()


class ViewByView(Side):
    """Eq. 7 as one would write it with transformers: every view for itself, padded, in mini-batches of like lengths.

    Documents are encoded as the records list them, and one that another record lists too does not count as a second candidate.
    Where the encoder's inputs exceed the token budget, their embeddings are gradient-cached, with the same budget as ours.
    """

    def __init__(self, setup: Setup):
        super().__init__(setup)
        self.backbone, batch = _load(setup)
        self.model = self.backbone.model
        self.batch = batch
        k = setup.data.negatives_per_record
        column = {skill: number for number, skill in enumerate(batch.document_ids)}
        listed = [column[skill] for r in setup.records for skill in (r.positive_id, *r.negative_ids[:k])]
        first = {number: place for place, number in reversed(list(enumerate(listed)))}
        repeated = torch.tensor([first[number] != place for place, number in enumerate(listed)])
        self.masked = batch.masked[:, listed] | repeated
        self.positive = torch.tensor([first[int(p)] for p in batch.positive])
        self.trained = {
            "raw": batch.raw,
            "privileged": batch.privileged,
            "documents": [batch.documents[n] for n in listed],
        }

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())

    def backward(self, option: int) -> float:
        config, batch = self.setup.loss, self.batch
        with torch.no_grad():
            teacher = torch.cat([self._embed(batch.teacher, rows) for rows in self._cut(batch.teacher)])[
                _back(self._cut(batch.teacher))
            ]
        pieces = [(name, rows) for name, view in self.trained.items() for rows in self._cut(view)]
        padded = sum(len(rows) * max(len(self.trained[name][r]) for r in rows) for name, rows in pieces)
        cached = padded > config.micro_batch_tokens
        with torch.set_grad_enabled(not cached):
            outputs = [self._embed(self.trained[name], rows) for name, rows in pieces]
        leaves = [output.detach().requires_grad_() for output in outputs]
        embedded = {
            name: torch.cat([leaf for leaf, piece in zip(leaves, pieces, strict=True) if piece[0] == name])[
                _back([rows for owner, rows in pieces if owner == name])
            ]
            for name in self.trained
        }
        common = (embedded["documents"], self.positive, self.masked, config.tau, batch.weights)
        loss = config.lambda_raw * contrastive_loss(embedded["raw"], *common)
        loss = loss + config.lambda_cot * contrastive_loss(embedded["privileged"], *common)
        loss = loss + config.lambda_kl * alignment_loss(
            embedded["raw"],
            teacher,
            embedded["documents"],
            self.masked,
            config.tau,
            config.kl_temperature,
            batch.weights,
        )
        gradients = torch.autograd.grad(loss, leaves)
        if cached:
            for (name, rows), gradient in zip(pieces, gradients, strict=True):
                self._embed(self.trained[name], rows).backward(gradient)
        else:
            torch.autograd.backward(outputs, gradients)
        return loss.item() + config.lambda_lm * self._write()

    def _write(self) -> float:
        """Eq. 6, logits at the rationales' positions alone."""
        config, batch = self.setup.loss, self.batch
        sequences = [[*p, *r] for p, r in zip(batch.prompts, batch.rationales, strict=True)]
        total = float(sum(map(len, batch.rationales)))
        value = 0.0
        for rows in self._cut(sequences):
            ids, mask = pad_right([sequences[r] for r in rows], self.backbone.tokenizer.pad_id)
            hidden = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            written = torch.zeros_like(mask, dtype=torch.bool)
            for place, row in enumerate(rows):
                written[place, len(batch.prompts[row]) : len(sequences[row])] = True
            logits = self.model.get_output_embeddings()(hidden[:, :-1][written[:, 1:]])
            log_probs = -F.cross_entropy(logits.float(), ids[written], reduction="none")
            loss = rationale_lm_loss(
                log_probs, torch.ones_like(log_probs), config.lm_reduction, total, len(batch.rationales)
            )
            (config.lambda_lm * loss).backward()
            value += loss.item()
        return value

    def _cut(self, sequences: list[list[int]]) -> list[list[int]]:
        return plan_micro_batches([len(s) for s in sequences], self.setup.loss.micro_batch_tokens)

    def _embed(self, sequences: list[list[int]], rows: list[int]) -> torch.Tensor:
        ids, mask = pad_right([sequences[r] for r in rows], self.backbone.tokenizer.pad_id)
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return F.normalize(hidden[torch.arange(len(rows)), mask.sum(1) - 1], dim=-1)


SIDES: dict[str, type[Side]] = {
    "ours": Ours,
    "sentence-transformers": SentenceTransformersSide,
    "view by view": ViewByView,
}


def serve(name: str, setup: Setup, connection: Connection) -> None:
    """Take a step for each option received; None asks for the peak memory (GiB) and ends the process."""
    torch.set_num_threads(setup.threads)
    side = SIDES[name](setup)
    connection.send("ready")
    while (option := connection.recv()) is not None:
        connection.send(side.step(option))
    connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def _load(setup: Setup) -> tuple[Backbone, Stage1Batch]:
    backbone = Backbone.load(setup.model).eval()
    backbone.tokenizer.prompt_style = setup.prompt_style
    return backbone, Stage1Collator(backbone, setup.data)(setup.records)


def _back(plan: list[list[int]]) -> torch.Tensor:
    """The order that undoes a plan's."""
    return torch.argsort(torch.tensor([row for rows in plan for row in rows]))
