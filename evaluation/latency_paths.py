"""The inference paths of Table 11, each taken apart into its phases: what is timed when one request is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.corpus import SkillCorpus
from models.encoder import load_encoder, resolve_encoder_folder
from models.views import privileged_view
from retrieval.bm25 import BM25Index
from retrieval.dense import DenseIndex
from retrieval.embedding_cache import EmbeddingCache, default_cache_dir
from retrieval.fusion import fuse
from retrieval.reranked import rerank_row
from retrieval.retriever import FUSION_DEPTH, document_format, read_fusion_weight

if TYPE_CHECKING:
    from models.backbone import Backbone

PHASES = ("encode", "search", "generate", "rank")
METHODS = ("bm25", "encoder", "hybrid", "rationale", "rerank")
WARMUPS = {"bm25": 10, "encoder": 10, "hybrid": 10, "rationale": 10, "rerank": 2}
"""B.5: ten requests for retrievers, two for rerankers. It names none for generated rationales; they are retrieval here."""
_TEMPERATURE, _TOP_P = 0.8, 0.95
"""Of generated rationales: Table 16, the only decoding that the paper describes."""
_PROMPT_TOKENS = 1024


class Stopwatch:
    """Wall-clock seconds of the phases of one request; on a GPU each begins and ends when the queued work is done."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device.startswith("cuda")
        self._device = device
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """The clock, after everything that was asked of the device has been computed."""
        if self._on_gpu:
            import torch

            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what happens inside to a phase."""
        start = self.now()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - start


@dataclass(frozen=True)
class Setup:
    """What every path is opened with.

    Attributes:
        corpus: the skills.
        device, dtype: where and in what precision models compute.
        depth: results of a search, and candidates of a reranker.
        max_length: tokens of an encoder's input; a model's own limit wins where it is lower.
        max_tokens: tokens of a generated rationale at most.
        fusion_weight: the hybrid's; None: the one stored with the model, 0.5 where it has none (its value costs no time).
        cache_dir: embedding cache.
        progress: bars while documents are encoded.
    """

    corpus: SkillCorpus
    device: str
    dtype: str = "float32"
    depth: int = 20
    max_length: int = 4096
    max_tokens: int = 192
    fusion_weight: float | None = None
    cache_dir: str | Path | None = None
    progress: bool = False

    @cached_property
    def bm25(self) -> BM25Index:
        """Over documents in E.1's format."""
        return BM25Index(self.corpus.ids, self.corpus.documents())


@dataclass(frozen=True)
class InferencePath:
    """One way to answer a request.

    Attributes:
        method: one of :data:`METHODS`.
        answer: ids of the best skills; the stopwatch gets the phases.
        facts: what a reader of the figures should know, such as the tokens that the model keeps.
        generated: tokens of the rationale of every request answered so far.
    """

    method: str
    answer: Callable[[str, Stopwatch], list[str]]
    facts: dict[str, Any] = field(default_factory=dict)
    generated: list[int] = field(default_factory=list)


class LoadedModel:
    """A model with the corpus encoded and indexed; parts are loaded when a path first wants them.

    Raises, like the paths below, FileNotFoundError where the folder is missing and ValueError where it cannot be loaded.
    """

    def __init__(self, path: str | Path, setup: Setup) -> None:
        self.path, self.setup = path, setup

    @cached_property
    def encoder(self) -> Any:
        """Requests and documents to unit vectors."""
        setup = self.setup
        return load_encoder(self.path, max_length=setup.max_length, dtype=setup.dtype, device=setup.device)

    @cached_property
    def index(self) -> DenseIndex:
        """Exact inner-product search over all documents, encoded once and kept on disk."""
        setup = self.setup
        texts = setup.corpus.documents(document_format(self.path))
        cache = EmbeddingCache(setup.cache_dir or default_cache_dir())
        return DenseIndex(
            setup.corpus.ids, cache.encode_documents(self.encoder, texts, batch_size=8, progress=setup.progress)
        )

    @cached_property
    def backbone(self) -> Backbone:
        """The causal LM that belongs to the encoder, for rationales."""
        from models.backbone import DTYPES, Backbone

        folder = causal_lm_folder(self.path)
        if folder is None:
            raise ValueError(f"{self.path}: no causal_lm/ beside the encoder, so it cannot write rationales")
        backbone = Backbone.load(folder, dtype=self.setup.dtype, device=self.setup.device).eval()
        backbone.model.to(DTYPES[self.setup.dtype])  # no float32 masters: nothing is trained here
        return backbone

    @property
    def facts(self) -> dict[str, Any]:
        """Tokens that the encoder keeps, and its components."""
        return {"max_length": self.encoder.max_length, "dimension": self.index.dimension}


def causal_lm_folder(path: str | Path) -> Path | None:
    """The causal LM that training exported with an encoder; None where a folder has none."""
    folder = resolve_encoder_folder(path) / "causal_lm"
    return folder if (folder / "config.json").is_file() else None


def bm25_path(setup: Setup) -> InferencePath:
    """BM25 alone."""
    bm25 = setup.bm25

    def answer(request: str, watch: Stopwatch) -> list[str]:
        with watch.phase("search"):
            return bm25.search([request], setup.depth).ids[0]

    return InferencePath("bm25", answer)


def encoder_path(model: LoadedModel) -> InferencePath:
    """Query encoding and exact search: all that a SkillReason encoder does online."""
    encoder, index, depth = model.encoder, model.index, model.setup.depth

    def answer(request: str, watch: Stopwatch) -> list[str]:
        with watch.phase("encode"):
            embedding = encoder.encode_queries([request], batch_size=1)
        with watch.phase("search"):
            return index.search(embedding, depth).ids[0]

    return InferencePath("encoder", answer, model.facts)


def hybrid_path(model: LoadedModel) -> InferencePath:
    """The encoder's list and BM25's, fused as :class:`retrieval.retriever.HybridRetriever` does."""
    encoder, index, setup = model.encoder, model.index, model.setup
    bm25, depth = setup.bm25, max(setup.depth, FUSION_DEPTH)
    weight = setup.fusion_weight
    if weight is None:
        try:
            weight = read_fusion_weight(resolve_encoder_folder(model.path))
        except ValueError:
            weight = 0.5

    def answer(request: str, watch: Stopwatch) -> list[str]:
        with watch.phase("encode"):
            embedding = encoder.encode_queries([request], batch_size=1)
        with watch.phase("search"):
            lists = index.search(embedding, depth), bm25.search([request], depth, matched_only=True)
            return fuse(*lists, weight, setup.depth).ids[0]

    return InferencePath("hybrid", answer, {**model.facts, "fusion_weight": weight})


def rationale_path(model: LoadedModel) -> InferencePath:
    """Self-CoT augmentation: the model writes a rationale, and the request is encoded together with it.

    One backbone does both, as it would online. Sampling is Table 16's with one rationale, its seed the request's number.
    """
    from models.generation import SamplingParams, sample_rollouts

    backbone, index, setup = model.backbone, model.index, model.setup
    tokenizer = backbone.tokenizer
    params = SamplingParams(1, _TEMPERATURE, _TOP_P, setup.max_tokens, tokenizer.stop_token_ids)
    generated: list[int] = []

    def answer(request: str, watch: Stopwatch) -> list[str]:
        with watch.phase("generate"):
            prompt = tokenizer.encode_prompts([request], _PROMPT_TOKENS)
            tokens = sample_rollouts(backbone, prompt, params, [len(generated)])[0][0].tokens
            rationale = tokenizer.decode([tokens])[0]
        with watch.phase("encode"):
            views = tokenizer.encode_views([privileged_view(request, rationale)], setup.max_length)
            embedding = backbone.encode(views, token_budget=0).numpy()
        generated.append(len(tokens))
        with watch.phase("search"):
            return index.search(embedding, setup.depth).ids[0]

    facts = {"max_length": setup.max_length, "dimension": index.dimension, "max_tokens": setup.max_tokens}
    return InferencePath("rationale", answer, facts, generated)


def rerank_path(model: LoadedModel, reranker: str | Path) -> InferencePath:
    """The encoder's first results, all scored by the reranker in one batch."""
    from evaluation.reranking import load_reranker
    from models.backbone import DTYPES

    setup = model.setup
    first = encoder_path(model)
    scorer = load_reranker(reranker, dtype=setup.dtype, device=setup.device)
    scorer.model.to(DTYPES[setup.dtype])

    def document(skill_id: str) -> str:
        skill = setup.corpus.get(skill_id)
        return scorer.form.document(skill.name, skill.description, skill.body)

    def answer(request: str, watch: Stopwatch) -> list[str]:
        ids = first.answer(request, watch)
        with watch.phase("rank"):
            scores = scorer.score(request, [document(skill_id) for skill_id in ids], token_budget=0)
            return rerank_row(ids, scores)[0]

    return InferencePath("rerank", answer, {**first.facts, "reranker_max_length": scorer.form.max_length})


def applicable(models: Sequence[str], reranker: str | None, wanted: Sequence[str]) -> list[tuple[str, str]]:
    """``(method, model)`` of every path to measure, in the table's order; BM25 has no model.

    Args:
        wanted: some of :data:`METHODS`; empty: all that the models and the reranker allow.

    Raises:
        ValueError: an unknown method, or one that was asked for by name and that nothing given here can do.
        FileNotFoundError: no such model.
    """
    for method in wanted:
        if method not in METHODS:
            raise ValueError(f"method {method!r}; expected some of {', '.join(METHODS)}")
    writers = [model for model in models if causal_lm_folder(model) is not None]
    able: dict[str, Sequence[str]] = {
        "bm25": [""],
        "encoder": models,
        "hybrid": models,
        "rationale": writers,
        "rerank": models if reranker else [],
    }
    lacking = {
        "encoder": "a model (--model)",
        "hybrid": "a model (--model)",
        "rationale": "a model whose folder has causal_lm/, as training exports it",
        "rerank": "a model (--model) and a reranker (--rerank)",
    }
    for method in wanted:
        if not able[method]:
            raise ValueError(f"method {method} needs {lacking[method]}")
    return [(method, model) for method in METHODS if not wanted or method in wanted for model in able[method]]
