"""The actor behind the verl plug-in: scores single rollouts against their own candidates and a fixed pool."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from tqdm import tqdm

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import ExclusionGraph
from models.backbone import Backbone
from models.views import View, document_view, privileged_view, raw_view
from rewards.batch import RewardBatch
from rewards.terms import RewardError, load_terms, total_reward
from rewards.verl_config import VerlRewardConfig

Encode = Callable[[list[View], int], np.ndarray]
"""``(views, max_length) -> [N, d]``: unit-length float32 embeddings of the frozen retriever."""


@dataclass(frozen=True)
class RolloutRow:
    """One rollout as verl hands it over: the record's request and candidates, the rationale and its length |c| in tokens."""

    record_id: str
    query: str
    positive_id: str
    negative_ids: tuple[str, ...]
    documents: dict[str, str]  # serialized text of each candidate
    rationale: str
    length: int


@dataclass(frozen=True)
class RowScore:
    """The reward, and what else verl logs: each term without its weight, the two margins, the length."""

    total: float
    info: dict[str, float]


@dataclass(frozen=True)
class _Candidates:
    """The pool of one record: ids ``[P]``, embeddings ``[P, d]``, the positive's column, and N_q as a mask ``[1, P]``."""

    ids: list[str]
    documents: torch.Tensor
    positive: int
    negatives: torch.Tensor


class RowScorer:
    """Scores rollouts one by one; documents and requests are embedded once, since the retriever is frozen.

    A rollout's pool are its own candidates and the fixed pool; N_q of eq. 15 is that without the positive (by id) and, where an
    exclusion graph is given, its neighbours. Each rollout gets a :class:`RewardBatch` of its own, so that no term can depend on
    which rollouts happened to be scored together.

    Attributes:
        counts: rollouts scored, calls of :meth:`score`, documents and requests embedded.
    """

    def __init__(self, config: VerlRewardConfig, encode: Encode):
        self.config = config
        self.encode = encode
        self.terms = load_terms(config.terms)
        self.exclusions = ExclusionGraph.read(config.exclusions_file).adjacency if config.exclusions_file else {}
        self.counts = {"rollouts": 0, "calls": 0, "documents": 0, "requests": 0}
        self._documents: dict[str, torch.Tensor] = {}
        self._digests: dict[str, bytes] = {}
        self._requests: dict[str, torch.Tensor] = {}
        self._pool_ids: list[str] = []
        self._pool = torch.empty(0, 0)
        if config.pool_file:
            corpus = SkillCorpus.from_jsonl(config.pool_file)
            self._embed_documents(dict(zip(corpus.ids, corpus.documents(), strict=True)))
            self._pool_ids, self._pool = list(corpus.ids), torch.stack([self._documents[s] for s in corpus.ids])
            # the rows of the matrix take the place of separate vectors
            self._documents = dict(zip(corpus.ids, self._pool, strict=True))
        self._pool_column = {skill_id: i for i, skill_id in enumerate(self._pool_ids)}

    def score(self, rows: Sequence[RolloutRow]) -> list[RowScore | RewardError]:
        """The score of each rollout, or why it has none; what is new among all of them is embedded together."""
        self.counts["calls"] += 1
        results: list[RowScore | RewardError | None] = [self._conflict(row) for row in rows]
        sound = [i for i, result in enumerate(results) if result is None]
        new = {s: text for i in sound for s, text in rows[i].documents.items() if s not in self._documents}
        self._embed_documents(new)
        augmented = dict(zip(sound, self._embed_requests([rows[i] for i in sound]), strict=True))

        def record(i: int) -> tuple[str, tuple[str, ...]]:
            return rows[i].positive_id, rows[i].negative_ids

        # a record's pool is put together once for all of its rollouts: beside a large fixed pool that is a large copy
        for key, group in groupby(sorted(sound, key=record), key=record):
            candidates = self._candidates(*key)
            for i in group:
                results[i] = self._score_row(rows[i], augmented[i], candidates)
        self.counts["rollouts"] += len(rows)
        return results  # type: ignore[return-value]

    def _conflict(self, row: RolloutRow) -> RewardError | None:
        for skill_id, text in row.documents.items():
            if self._digests.setdefault(skill_id, _digest(text)) != _digest(text):
                return RewardError(
                    f"verl row {row.record_id!r}: skill {skill_id!r} has another text than in an earlier row or in "
                    f"{self.config.pool_file or 'the pool file'}; a skill's document must be the same everywhere"
                )
        return None

    def _embed_documents(self, documents: dict[str, str]) -> None:
        if not documents:
            return
        embedded: list[np.ndarray] = []
        texts = list(documents.values())
        step = 1024  # so that a pool of many thousands shows how far it is
        for start in tqdm(range(0, len(texts), step), desc="reward pool", disable=len(texts) <= step):
            views = [document_view(text) for text in texts[start : start + step]]
            embedded.append(self.encode(views, self.config.document_max_length))
        vectors = torch.tensor(np.concatenate(embedded))
        self._documents.update(zip(documents, vectors, strict=True))
        self._digests.update({s: _digest(text) for s, text in documents.items()})
        self.counts["documents"] += len(documents)

    def _embed_requests(self, rows: Sequence[RolloutRow]) -> torch.Tensor:
        """Privileged views [q; c] of all rows, ``[N, d]``; raw views of requests not seen before are kept."""
        if not rows:
            return torch.empty(0, 0)
        new = list(dict.fromkeys(row.query for row in rows if row.query not in self._requests))
        views = [raw_view(q) for q in new] + [privileged_view(row.query, row.rationale) for row in rows]
        embedded = torch.tensor(self.encode(views, self.config.max_query_length))
        self._requests.update(zip(new, embedded, strict=False))
        self.counts["requests"] += len(new)
        return embedded[len(new) :]

    def _candidates(self, positive: str, negatives: tuple[str, ...]) -> _Candidates:
        own = [s for s in (positive, *negatives) if s not in self._pool_column]
        ids, documents, column = self._pool_ids, self._pool, self._pool_column
        if own:
            vectors = torch.stack([self._documents[s] for s in own])
            documents = torch.cat([documents, vectors]) if ids else vectors
            column = column | {s: len(ids) + i for i, s in enumerate(own)}
            ids = ids + own
        mask = torch.ones(1, len(ids), dtype=torch.bool)
        for skill_id in (positive, *self.exclusions.get(positive, ())):
            if skill_id in column:
                mask[0, column[skill_id]] = False
        return _Candidates(ids, documents, column[positive], mask)

    def _score_row(self, row: RolloutRow, augmented: torch.Tensor, candidates: _Candidates) -> RowScore | RewardError:
        if not candidates.negatives.any():
            return RewardError(
                f"verl row {row.record_id!r}: no negative is left for {row.positive_id!r} among {len(candidates.ids)} "
                "candidates; give its record other negatives or a pool file"
            )
        batch = RewardBatch(
            query_ids=[row.record_id],
            queries=[row.query],
            rationales=[row.rationale],
            lengths=torch.tensor([row.length]),
            group=torch.tensor([0]),
            document_ids=candidates.ids,
            query_embeddings=self._requests[row.query][None],
            rollout_embeddings=augmented[None],
            document_embeddings=candidates.documents,
            positive=torch.tensor([candidates.positive]),
            negatives=candidates.negatives,
        )
        try:
            total, values = total_reward(batch, self.terms)
        except RewardError as error:
            return error
        info = {f"reward/{name}": value.item() for name, value in values.items()}
        info["retrieval/margin"] = batch.margin.item()
        info["retrieval/baseline_margin"] = batch.baseline_margin.item()
        info["response/length"] = float(row.length)
        return RowScore(total.item(), info)


class RewardActor:
    """A :class:`RowScorer` with its model in one Ray actor, shared by all of verl's reward workers.

    verl asks row by row from many processes. Rows that arrive while others are being scored wait and are then scored together, so
    a batch of rollouts costs a few forward passes, without a timer and without a row waiting for company.
    """

    def __init__(self, config: VerlRewardConfig):
        if config.threads > 0:
            torch.set_num_threads(config.threads)
        device = config.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        backbone = Backbone.load(config.retriever_path, dtype=config.dtype, device=device).eval()
        backbone.requires_grad_(False)

        def encode(views: list[View], max_length: int) -> np.ndarray:
            return backbone.encode(
                backbone.tokenizer.encode_views(views, max_length), config.micro_batch_tokens
            ).numpy()

        self._scorer = RowScorer(config, encode)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._waiting: list[tuple[RolloutRow, asyncio.Future[RowScore]]] = []
        self._drain_task: asyncio.Task[None] | None = None

    async def counts(self) -> dict[str, int]:
        """What was done so far, see :attr:`RowScorer.counts`; the first answer says that the model is loaded."""
        return dict(self._scorer.counts)

    async def score(self, row: RolloutRow) -> RowScore:
        """Score one rollout, together with all others that are waiting.

        Raises:
            RewardError: a term failed or gave a value that is not finite, no negative was left, or a document's text changed.
        """
        future: asyncio.Future[RowScore] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, future))
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken, self._waiting = self._waiting, []
            try:
                scores = await loop.run_in_executor(self._thread, self._scorer.score, [row for row, _ in taken])
            except Exception as error:
                scores = [error] * len(taken)
            for (_, future), score in zip(taken, scores, strict=True):
                if future.done():  # its caller is gone
                    continue
                if isinstance(score, Exception):
                    future.set_exception(score)
                else:
                    future.set_result(score)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
