"""Scoring a batch of rollouts at once against a reward function of one rollout, which is what verl's reward loop calls.

A batch is 112 requests with 8 rollouts each, compared with the pool of the batch's 1,232 candidates (E.4). Three functions of one
rollout stand on the other side:

- ``stateless`` embeds the two query views and the pool in every call: the same reward, and nothing kept between calls;
- ``own candidates`` embeds the two query views and the record's own 11 candidates: cheaper, and *another* reward;
- ``caching`` keeps documents and raw requests between calls: the same reward, the best that a function of one rollout can do.

The first two are timed over ``--samples`` rollouts and multiplied; the last runs whole. Two batches of different requests are
scored one after the other, so that the second finds some of its documents known.

    python benchmarks/reward_scoring.py --model FOLDER --records stage2.jsonl --threads 1
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModel

from actors.retriever import RewardRetriever
from actors.reward import EmbeddedScorer, RequestEmbedder, RewardRequest
from configs.schema import ModelConfig, RewardConfig, TermConfig
from data_pipeline.records import Stage2Record, read_stage2
from models.folders import write_json
from models.tokenization import ModelTokenizer
from models.views import View, document_view, privileged_view, raw_view

GROUP = 8
BATCHES = 2


class Rollout:
    """One rollout with its record and the candidates of its batch, as a function of one rollout gets them."""

    def __init__(self, record: Stage2Record, rationale: str, length: int, pool: dict[str, str]):
        self.record, self.rationale, self.length, self.pool = record, rationale, length, pool


class PerSample:
    """The reward of eqs. 8 to 13 for one rollout, written on transformers alone."""

    def __init__(self, model: str, max_query_length: int, document_max_length: int, *, cache: bool, own: bool):
        self.model = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
        self.tokenizer = ModelTokenizer.load(model)
        self.max_query_length, self.document_max_length = max_query_length, document_max_length
        self.cache = cache
        self.own = own
        self.known: dict[str, np.ndarray] = {}

    def __call__(self, rollout: Rollout) -> float:
        record = rollout.record
        ids = [record.positive_id, *record.negative_ids] if self.own else list(rollout.pool)
        documents = self._kept([document_view(rollout.pool[s]) for s in ids], self.document_max_length)
        query = self._kept([raw_view(record.query)], self.max_query_length)[0]
        augmented = self._embed([privileged_view(record.query, rollout.rationale)], self.max_query_length)[0]
        others = np.array([s != record.positive_id for s in ids])
        target = ids.index(record.positive_id)
        bare, with_rationale = (
            float((documents @ q)[target] - (documents @ q)[others].max()) for q in (query, augmented)
        )
        gain = min(1.0, max(-1.0, (with_rationale - bare) / 0.05))
        return float(np.tanh(with_rationale / 0.05)) + gain - min(0.4, 0.01 * max(0, rollout.length - 128))

    def _kept(self, views: list[View], max_length: int) -> np.ndarray:
        if not self.cache:
            return self._embed(views, max_length)
        new = list({view.text: view for view in views if view.text not in self.known}.values())
        if new:
            self.known.update(zip([view.text for view in new], self._embed(new, max_length), strict=True))
        return np.stack([self.known[view.text] for view in views])

    @torch.inference_mode()
    def _embed(self, views: list[View], max_length: int) -> np.ndarray:
        """In padded batches of 32, longest first."""
        tokens = self.tokenizer.encode_views(views, max_length)
        order = sorted(range(len(tokens)), key=lambda i: -len(tokens[i]))
        out = np.empty((len(tokens), self.model.config.hidden_size), dtype=np.float32)
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            width = len(tokens[rows[0]])
            ids = torch.tensor([[*tokens[r], *[self.tokenizer.pad_id] * (width - len(tokens[r]))] for r in rows])
            mask = torch.tensor([[1] * len(tokens[r]) + [0] * (width - len(tokens[r])) for r in rows])
            hidden = self.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            last = torch.tensor([len(tokens[r]) - 1 for r in rows])
            out[rows] = F.normalize(hidden[torch.arange(len(rows)), last], dim=-1).numpy()
        return out


def make_batch(records: Sequence[Stage2Record], tokenizer: ModelTokenizer, seed: int) -> list[Rollout]:
    """Eight rationales a request: its teacher's, cut at several places, and other requests'."""
    rng = random.Random(seed)
    pool: dict[str, str] = {}
    for record in records:
        pool |= {record.positive_id: record.positive, **dict(zip(record.negative_ids, record.negatives, strict=True))}
    rollouts = []
    for record in records:
        words = record.query_capability.split()
        rationales = [" ".join(words[: max(1, len(words) * part // 4)]) for part in range(1, 5)]
        rationales += [rng.choice(records).query_capability for _ in range(GROUP - len(rationales))]
        for rationale in rationales:
            length = len(tokenizer.encode_rationales([rationale], 10_000)[0])
            rollouts.append(Rollout(record, rationale, length, pool))
    return rollouts


def request_of(records: Sequence[Stage2Record], rollouts: Sequence[Rollout]) -> RewardRequest:
    """The same batch as the reward actor gets it."""
    return RewardRequest(
        query_ids=[r.record_id for r in records],
        queries=[r.query for r in records],
        positive_ids=[r.positive_id for r in records],
        negative_ids=[list(r.negative_ids) for r in records],
        documents=rollouts[0].pool,
        rationales=[r.rationale for r in rollouts],
        lengths=[r.length for r in rollouts],
        group=[i // GROUP for i in range(len(rollouts))],
    )


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a causal LM: the frozen retriever")
    parser.add_argument("--records", required=True, help="Stage-II records (JSONL), at least twice --queries")
    parser.add_argument("--queries", type=int, default=112, help="requests of a batch")
    parser.add_argument("--max-query-length", type=int, default=192)
    parser.add_argument("--document-max-length", type=int, default=96)
    parser.add_argument("--samples", type=int, default=2, help="rollouts over which the first two functions are timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON to write")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    records = read_stage2(arguments.records)[: BATCHES * arguments.queries]
    if len(records) < BATCHES * arguments.queries:
        raise SystemExit(f"{arguments.records} has {len(records)} records; expected {BATCHES * arguments.queries}")
    halves = [records[i * arguments.queries : (i + 1) * arguments.queries] for i in range(BATCHES)]
    tokenizer = ModelTokenizer.load(arguments.model)
    batches = [make_batch(half, tokenizer, seed) for seed, half in enumerate(halves)]
    lengths = (arguments.max_query_length, arguments.document_max_length)

    retriever = RewardRetriever(
        ModelConfig(path=arguments.model, dtype="float32"), token_budget=16384, threads=arguments.threads, device="cpu"
    )
    embedder = RequestEmbedder(retriever.encode, max_query_length=lengths[0], document_max_length=lengths[1])
    scorer = EmbeddedScorer(RewardConfig(terms={name: TermConfig() for name in ("margin", "gain", "length")}))
    ours: list[np.ndarray] = []

    def score(batch: int) -> None:
        request = request_of(halves[batch], batches[batch])
        ours.append(scorer.score_embedded(request, embedder.embed(request)).total.numpy())

    retriever.encode([raw_view("warm up")], lengths[0])
    our_times = [seconds(lambda b=b: score(b)) for b in range(BATCHES)]
    caching = PerSample(arguments.model, *lengths, cache=True, own=False)
    theirs: list[list[float]] = [[] for _ in batches]
    caching_times = [seconds(lambda b=b: theirs[b].extend(caching(r) for r in batches[b])) for b in range(BATCHES)]
    differences = [float(np.abs(o - np.array(t)).max()) for o, t in zip(ours, theirs, strict=True)]
    extrapolated = {}
    for name, own in (("stateless", False), ("own candidates", True)):
        function = PerSample(arguments.model, *lengths, cache=False, own=own)
        picked = range(0, len(batches[0]), max(1, len(batches[0]) // arguments.samples))[: arguments.samples]
        found: list[float] = []
        taken = seconds(lambda f=function, p=picked, out=found: out.extend(f(batches[0][i]) for i in p))
        extrapolated[name] = BATCHES * len(batches[0]) * taken / len(picked)
        if not own:
            differences.append(max(abs(ours[0][i] - value) for i, value in zip(picked, found, strict=True)))

    total = sum(our_times)
    sides = {**extrapolated, "caching": sum(caching_times)}
    result = {
        "model": arguments.model,
        "threads": arguments.threads,
        "rollouts": [len(batch) for batch in batches],
        "pool": [len(batch[0].pool) for batch in batches],
        "candidates": 11 * arguments.queries,
        "ours_s": [round(t, 2) for t in our_times],
        "peer_s": {name: round(t, 1) for name, t in sides.items()},
        "ratio": {name: round(t / total, 2) for name, t in sides.items()},
        "ratio_second_batch": {"caching": round(caching_times[1] / our_times[1], 2)},
        "extrapolated_from": arguments.samples,
        "largest_difference": max(differences),
    }
    print(json.dumps(result, indent=2))
    if arguments.out is not None:
        write_json(arguments.out, result)
    if max(differences) > 1e-4:
        raise SystemExit(f"the rewards differ by {max(differences):.1e}; expected at most 1e-4")


if __name__ == "__main__":
    main()
