"""One request against a library: the ranked skills a person or an agent would read."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import BenchQuery
from evaluation.rationales import Augment, collect_rationales
from evaluation.reranking import rerank as with_reranker
from retrieval.augmented import AugmentedRetriever
from retrieval.reranked import RERANK_DEPTH
from retrieval.retriever import document_format, open_retriever, split_model_spec

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hit:
    """A skill found for a request; scores (cosine, BM25, fused or a reranker's) compare within one search only."""

    skill_id: str
    name: str
    score: float
    description: str


def search(
    model_dir: str | Path,
    corpus_path: str | Path,
    request: str,
    k: int = 10,
    hybrid: bool = False,
    cache_dir: str | Path | None = None,
    *,
    max_length: int | None = None,
    fusion_weight: float | None = None,
    rerank: str | Path | None = None,
    rerank_depth: int = RERANK_DEPTH,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: str | None = None,
    augment: Augment | None = None,
    progress: bool = False,
) -> list[Hit]:
    """The ``k`` best skills of a corpus file for one request, best first; fewer if the corpus is smaller.

    Args:
        model_dir: model folder or hub id, ``bm25``, or ``hybrid:FOLDER``.
        corpus_path: skills as JSONL, plain or gzipped; their embeddings are cached by content and model.
        request: what the user wants, in words.
        k: how many.
        hybrid: fuse the model's ranking with BM25's; the same as ``hybrid:`` before the folder.
        cache_dir: embedding cache, see :func:`retrieval.embedding_cache.default_cache_dir`.
        max_length: see :func:`models.encoder.load_encoder`.
        fusion_weight: the hybrid's weight; the one stored with the model if not given.
        rerank: a reranker that reorders the first ``rerank_depth`` results, see :func:`evaluation.reranking.rerank`.
        query_prompt, document_prompt, similarity: see :func:`models.prompts.resolve_prompts`.
        augment: a rationale that the request is searched with; logged.
        progress: show a bar while documents are encoded.

    Raises:
        ValueError: an empty request, ``k`` below 1, ``hybrid`` of ``bm25``, or what the corpus or model
            refuses.
        FileNotFoundError: the corpus or the model is missing.
    """
    if not request.strip():
        raise ValueError("the request is empty; expected a sentence that says what is needed")
    if k < 1:
        raise ValueError(f"k is {k}; expected a positive number of results")
    kind, _ = split_model_spec(model_dir)
    if hybrid and kind == "bm25":
        raise ValueError("hybrid fuses BM25 with a model; expected a model folder, not bm25")
    spec = f"hybrid:{model_dir}" if hybrid and kind == "dense" else str(model_dir)
    corpus = SkillCorpus.from_jsonl(corpus_path)
    rationales = {}
    if augment is not None:
        rationales = collect_rationales(augment, [BenchQuery("request", request, {})], spec).by_request
        logger.info("rationale: %s", " | ".join(rationales.get(request, [])))
    retriever = open_retriever(
        spec,
        corpus.ids,
        corpus.documents(document_format(spec)),
        cache_dir=cache_dir,
        max_length=max_length,
        fusion_weight=fusion_weight,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        similarity=similarity,
        progress=progress,
    )
    if rationales:
        retriever = AugmentedRetriever(retriever, rationales)
    if rerank is not None:
        retriever = with_reranker(retriever, rerank, corpus, rerank_depth)
    ranking = retriever.search([request], k)
    skills = [corpus.get(skill_id) for skill_id in ranking.ids[0]]
    return [
        Hit(skill.skill_id, skill.name, float(score), skill.description)
        for skill, score in zip(skills, ranking.scores[0], strict=False)
    ]
