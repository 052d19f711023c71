"""The part of ``gpu.py`` that trains: both stages of a pretrained backbone on real records, without Ray or verl, and recall.

The reward, the losses and the gradients are this project's. The GRPO loss is written out here, since verl is not there: one
update a batch, so the ratio is 1 and nothing is clipped; the tests compare it with verl's.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.retriever import RewardRetriever
from actors.reward import EmbeddedScorer, RequestEmbedder, RewardRequest
from configs.schema import ModelConfig, OptimizerConfig, RewardConfig, Stage1DataConfig, Stage1LossConfig, TermConfig
from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import Stage1Record
from models.backbone import Backbone
from models.generation import SamplingParams, sample_rollouts
from models.views import document_view, raw_view
from objectives.engine_torch import ReplicaEngine
from objectives.stage1 import Stage1Collator, stage1_backward

TEMPERATURE = 0.8
KL_COEFFICIENT = 0.001
QUERY_TOKENS, DOCUMENT_TOKENS = 512, 512
BENCHES = ("dev_bench", "dev_bench_hard")


def train(
    model: str, data: Path, device: str, stage1_updates: int, stage2_updates: int, seconds: float
) -> dict[str, Any]:
    """Recall untrained, after Stage I and after Stage II, and the curves; stops early where ``seconds`` run out."""
    begun = time.perf_counter()
    dtype = "bfloat16" if device == "cuda" else "float32"
    corpus = SkillCorpus.from_jsonl(data / "skills.jsonl.gz")
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    backbone = Backbone.load(model, dtype=dtype, device=device).eval()
    result: dict[str, Any] = {"model": model, "recall@10": {"untrained": recall(backbone, corpus, data)}}
    records = mine(backbone, corpus, rows)
    engine = ReplicaEngine(backbone, OptimizerConfig(lr=2e-5))
    collator = Stage1Collator(
        backbone, Stage1DataConfig(max_length=QUERY_TOKENS, document_max_length=DOCUMENT_TOKENS, negatives_per_record=4)
    )
    losses: list[float] = []
    order = random.Random(0)
    config = Stage1LossConfig(kl_start_update=stage1_updates // 2, micro_batch_tokens=32768)
    for update in range(stage1_updates):
        if time.perf_counter() - begun > 0.5 * seconds:
            break
        metrics = stage1_backward(engine, collator(order.sample(records, min(64, len(records)))), config, update)
        engine.step(1.0)
        losses.append(metrics["loss/raw"])
    result["stage1"] = {"updates": len(losses), "loss_raw": [round(v, 3) for v in losses]}
    result["stage1"]["seconds"] = round(time.perf_counter() - begun, 1)
    result["recall@10"]["stage1"] = recall(backbone, corpus, data)
    stage2 = _Stage2(backbone, engine, model, device, dtype)
    rewards: list[float] = []
    for update in range(stage2_updates):
        if time.perf_counter() - begun > 0.85 * seconds:
            break
        chosen = order.sample(range(len(records)), min(28, len(records)))
        queries = [rows[i]["implicit_query"] for i in chosen]
        rewards.append(stage2.update([records[i] for i in chosen], queries, update))
    result["stage2"] = {"updates": len(rewards), "reward": [round(v, 3) for v in rewards]}
    result["recall@10"]["stage2"] = recall(backbone, corpus, data)
    result["seconds"] = round(time.perf_counter() - begun, 1)
    return result


@torch.inference_mode()
def embed(backbone: Backbone, texts: list[str], *, queries: bool) -> np.ndarray:
    """Unit vectors ``[n, d]``."""
    views = [raw_view(text) if queries else document_view(text) for text in texts]
    limit = QUERY_TOKENS if queries else DOCUMENT_TOKENS
    return backbone.encode(backbone.tokenizer.encode_views(views, limit), 65536).numpy()


def recall(backbone: Backbone, corpus: SkillCorpus, data: Path) -> dict[str, float]:
    """R@10 in percent on each of :data:`BENCHES` that the folder has."""
    documents = embed(backbone, corpus.documents(), queries=False)
    found = {}
    for name in BENCHES:
        path = data / f"{name}.jsonl"
        if path.is_file():
            bench = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            scores = embed(backbone, [row["query"] for row in bench], queries=True) @ documents.T
            top = np.argpartition(-scores, 10, axis=1)[:, :10]
            hits = [corpus.position(row["skill_id"]) in places for row, places in zip(bench, top, strict=True)]
            found[name] = round(100 * float(np.mean(hits)), 1)
    return found


def mine(backbone: Backbone, corpus: SkillCorpus, rows: list[dict[str, str]]) -> list[Stage1Record]:
    """Records with ten of the model's own nearest documents as negatives, beyond its nearest twenty."""
    texts = corpus.documents()
    documents = embed(backbone, texts, queries=False)
    positives = [corpus.position(row["skill_id"]) for row in rows]
    similar = documents[positives] @ documents.T
    ranked = np.argsort(-similar, axis=1)[:, 20:30]
    return [
        Stage1Record(
            record_id=row["record_id"],
            query=row["query"],
            query_capability=row["query_capability"],
            positive_id=row["skill_id"],
            positive=texts[positive],
            negative_ids=tuple(corpus.ids[i] for i in near),
            negatives=tuple(texts[i] for i in near),
            category="",
            sample_weight=1.0,
        )
        for row, positive, near in zip(rows, positives, ranked, strict=True)
    ]


class _Stage2:
    """Policy, frozen reference, frozen retriever and reward in one process."""

    def __init__(self, backbone: Backbone, engine: ReplicaEngine, model: str, device: str, dtype: str):
        self.policy, self.engine = backbone, engine
        self.reference = Backbone.load(model, dtype=dtype, device=device).eval()
        self.reference.load_state(backbone.state())
        self.reference.requires_grad_(False)
        retriever = RewardRetriever(ModelConfig(path=model, dtype=dtype), token_budget=65536, threads=1, device=device)
        retriever.backbone.load_state(backbone.state())
        self.embedder = RequestEmbedder(
            retriever.encode, max_query_length=QUERY_TOKENS, document_max_length=DOCUMENT_TOKENS
        )
        self.scorer = EmbeddedScorer(RewardConfig(terms={name: TermConfig() for name in ("margin", "gain", "length")}))
        for group in engine.optimizer.param_groups if engine.optimizer else ():
            group["lr"] = 2e-6

    def update(self, records: list[Stage1Record], queries: list[str], update: int) -> float:
        """One step on eight rollouts a request; the mean reward."""
        tokenizer, n = self.policy.tokenizer, 8
        prompts = tokenizer.encode_prompts(queries, 512)
        params = SamplingParams(
            n=n, temperature=TEMPERATURE, max_tokens=96, stop_token_ids=tuple(tokenizer.stop_token_ids)
        )
        groups = sample_rollouts(self.policy, prompts, params, [1000 * update + i for i in range(len(prompts))])
        responses = [rollout.tokens for group in groups for rollout in group]
        repeated = [prompt for prompt in prompts for _ in range(n)]
        documents = {r.positive_id: r.positive for r in records}
        for record in records:
            documents |= dict(zip(record.negative_ids, record.negatives, strict=True))
        request = RewardRequest(
            query_ids=[r.record_id for r in records],
            queries=queries,
            positive_ids=[r.positive_id for r in records],
            negative_ids=[list(r.negative_ids) for r in records],
            documents=documents,
            rationales=tokenizer.decode(responses),
            lengths=[len(r) for r in responses],
            group=[i // n for i in range(len(responses))],
        )
        rewards = self.scorer.score_embedded(request, self.embedder.embed(request)).total
        advantages = group_advantages(rewards, n).to(self.policy.device)
        tokens = sum(map(len, responses))
        sequences = [p + r for p, r in zip(repeated, responses, strict=True)]
        for rows in self.policy.plan(sequences, 16384)[0]:
            p, r = [repeated[i] for i in rows], [responses[i] for i in rows]
            with torch.no_grad():
                reference, _, _ = self.reference.response_log_probs(p, r, TEMPERATURE)
            found, _, mask = self.policy.response_log_probs(p, r, TEMPERATURE)
            self.engine.backward(grpo_loss(found, reference, advantages[rows], mask, tokens))
        self.engine.step(1.0)
        return float(rewards.mean())


def group_advantages(rewards: torch.Tensor, n: int) -> torch.Tensor:
    """Eq. 14 for groups of ``n`` rollouts that follow one another, ``[R]``."""
    groups = rewards.double().view(-1, n)
    centred = groups - groups.mean(dim=1, keepdim=True)
    spread = groups.std(dim=1, keepdim=True)
    return torch.where(spread > 0, centred / (spread + 1e-6), torch.zeros(())).flatten().float()


def grpo_loss(
    log_probs: torch.Tensor, reference: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, tokens: int
) -> torch.Tensor:
    """One micro-batch's part of the policy loss and the reference KL (k3), a mean over the ``tokens`` of the batch."""
    ratio = torch.exp(log_probs - log_probs.detach())
    difference = (reference - log_probs).clamp(-20, 20)
    kl = (torch.exp(difference) - difference - 1).clamp(-10, 10)
    return ((-advantages[:, None] * ratio + KL_COEFFICIENT * kl) * mask).sum() / tokens
