"""Pseudo-queries as training data: one query of one template a skill, and candidate groups for a reranker (C.1, C.2)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.records import TrainingRequest
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from data_pipeline.teacher.offline_writer import OfflineWriter, rationale_of
from data_pipeline.validation import query_problem
from models.views import QUERY_CHARS
from retrieval.retriever import Retriever

RECORD_PREFIX = "s2q/"
"""Record ids of pseudo-queries begin with it."""
TOP, SIZE = 200, 10


def sample_queries(queries: Iterable[PseudoQuery], seed: int = 42) -> list[PseudoQuery]:
    """C.1.1: of each skill one template, of the template one query, so that no skill is overrepresented; in the skills' order.

    The draw of a skill depends on the seed and its id alone. Where a skill has queries that pass every check of A.3 and have the
    eight words that D.1 of the SkillReason paper asks of a request, the draw is among them, else among the valid ones, else
    among all (the preference is ours: shorter requests give no training record).
    """
    by_skill: dict[str, list[PseudoQuery]] = {}
    for query in queries:
        by_skill.setdefault(query.skill_id, []).append(query)
    return [_draw(own, random.Random(f"{seed}:{skill_id}")) for skill_id, own in by_skill.items()]


def training_requests(
    queries: Iterable[PseudoQuery], corpus: SkillCorpus, writer: OfflineWriter | None = None, seed: int = 42
) -> list[TrainingRequest]:
    """Requests for ``skillreason records``, one a skill (C.1.1), for Stage I and, with a writer, for Stage II.

    ``query`` is the pseudo-query, at most 1,500 characters (C.2.1), ``query_capability`` the rationale of its capability in
    the sentence of G.3, ``implicit_query`` the writer's rewrite without the skill's name and tools, empty without a writer.
    Record ids are ``s2q/<query_id>``. Skills that the corpus lacks are left out.
    """
    return [
        _request(query, corpus.get(query.skill_id), writer)
        for query in sample_queries(queries, seed)
        if query.skill_id in corpus
    ]


def reranker_groups(
    queries: Sequence[TrainingRequest], retriever: Retriever, corpus: SkillCorpus, top: int = TOP, size: int = SIZE
) -> list[dict[str, Any]]:
    """C.1.2: for each query ``size`` candidates, one of them positive; rows in the shape of the pipeline's ``groups.jsonl``.

    The best ``top`` of the retriever, each skill once, cut to the best ``size``. A positive that is not among them takes the
    place of the last. (The groups of the SkillReason paper's E.5 never do that; both are read by the same trainer.)

    Raises:
        ValueError: fewer than two candidates a group, or more than ``top`` or than the corpus has.
        KeyError: a query for a skill that the corpus lacks.
    """
    if not 2 <= size <= min(top, len(corpus)):
        raise ValueError(
            f"size is {size}; expected 2 to {min(top, len(corpus))}, of the top {top} of {len(corpus)} skills"
        )
    for query in queries:
        corpus.position(query.skill_id)
    ranking = retriever.search([query.query for query in queries], top)
    return [_group(query, found, size) for query, found in zip(queries, ranking.ids, strict=True)]


def _draw(queries: Sequence[PseudoQuery], rng: random.Random) -> PseudoQuery:
    valid = [query for query in queries if query.valid]
    usable = [query for query in valid if query_problem(query.query) is None]
    by_template: dict[str, list[PseudoQuery]] = {}
    for query in usable or valid or queries:
        by_template.setdefault(query.template_id, []).append(query)
    return rng.choice(by_template[rng.choice(list(by_template))])


def _request(query: PseudoQuery, skill: Skill, writer: OfflineWriter | None) -> TrainingRequest:
    text = query.query[:QUERY_CHARS]
    return TrainingRequest(
        f"{RECORD_PREFIX}{query.query_id}",
        query.skill_id,
        text,
        rationale_of([query.capability or skill.name]),
        writer.implicit(skill, text) if writer else "",
    )


def _group(query: TrainingRequest, found: Sequence[str], size: int) -> dict[str, Any]:
    candidates = list(dict.fromkeys(found))[:size]
    if query.skill_id not in candidates:
        candidates[size - 1 :] = [query.skill_id]
    return {
        "record_id": query.record_id,
        "source": "single",
        "query": query.query,
        "query_capability": query.query_capability,
        "teacher": "skill2query",
        "candidates": [{"skill_id": s, "weight": float(s == query.skill_id)} for s in candidates],
    }
