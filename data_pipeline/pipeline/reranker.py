"""The reranker's candidate groups (E.5): what the Stage-II retriever really returns, with audited labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from data_pipeline.corpus import SkillCorpus
from data_pipeline.overlaps import OverlapLimits, SkillTerms, overlap_reason
from data_pipeline.pipeline.artifacts import Row, corpus_of, rows_of
from data_pipeline.pipeline.dag import PipelineError, Stage, StageContext, StageReport
from data_pipeline.pipeline.reranker_tasks import TASK_STAGES
from data_pipeline.pipeline.spread import PipelineEncoder
from data_pipeline.records import read_stage1
from data_pipeline.rows import write_rows

UNCLEAR_LABELS = ("auxiliary_positive", "borderline_positive")
"""Audited labels that are no positive of the primary reranker (E.5), and no negative either: such a candidate is left out."""


def build_groups(context: StageContext) -> StageReport:
    """The retriever's real top-20 of every single- and multi-skill query, cleaned of negatives that overlap a positive.

    Targets that were not retrieved are not put in; a group without a target, or with too few negatives left, is dropped.
    """
    from retrieval import DenseIndex

    corpus, settings = corpus_of(context), context.config.reranker
    if not settings.retriever:
        raise PipelineError(
            "reranker.retriever is empty; expected the exported Stage-II retriever that fixes the candidate groups"
        )
    made_by = {row["record_id"]: row["teacher"] for row in rows_of(context, "records", "provenance.jsonl")}
    queries: list[Row] = [
        {
            "record_id": r.record_id,
            "source": "single",
            "query": r.query,
            "query_capability": r.query_capability,
            "positives": {r.positive_id: 1.0},
            "unclear": [],
            "teacher": made_by[r.record_id],
        }
        for r in read_stage1(context.inputs["records"] / "stage1.jsonl")
    ]
    for row in rows_of(context, "task_audit", "tasks.jsonl"):
        kept = {key: row[key] for key in ("record_id", "query", "query_capability", "positives", "teacher")}
        unclear = [skill_id for skill_id, label in row["labels"].items() if label in UNCLEAR_LABELS]
        queries.append({**kept, "source": "multi", "unclear": unclear})
    encoder = PipelineEncoder(
        replace(context.config.encoding, encoder=settings.retriever), corpus, context.config.seed, context.progress
    )
    embeddings = encoder.encode_documents(corpus.documents())
    encoded = encoder.encode_queries([row["query"] for row in queries])
    ranked = DenseIndex(corpus.ids, embeddings).search(encoded, settings.depth, context.progress).ids
    limits = OverlapLimits(settings.name_jaccard, settings.id_jaccard, settings.text_jaccard, settings.cosine)
    terms: dict[str, SkillTerms] = {}
    rejected: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    covered = 0
    groups = []
    for row, found in zip(queries, ranked, strict=True):
        positives = [s for s in found if s in row["positives"]]
        if not positives:
            rejected["no_target_retrieved"] += 1
            continue
        covered += 1
        candidates = []
        for skill_id in found:
            weight = row["positives"].get(skill_id, 0.0)
            if weight:
                reason = ""  # a target is compared with no other: all of them are right
            elif skill_id in row["unclear"]:
                reason = "audited_as_unclear"
            else:
                reason = _overlap(skill_id, row["positives"], corpus, embeddings, terms, limits)
            if reason:
                removed[reason] += 1
            else:
                candidates.append({"skill_id": skill_id, "weight": weight})
        if sum(c["weight"] == 0 for c in candidates) < settings.min_negatives:
            rejected["few_negatives"] += 1
            continue
        groups.append(
            {key: row[key] for key in ("record_id", "source", "query", "query_capability", "teacher")}
            | {"candidates": candidates}
        )
    if not groups:
        raise PipelineError(f"no candidate group is left of {len(queries)} queries; reasons: {dict(rejected)}")
    write_rows(context.out / "groups.jsonl", groups)
    sources = Counter(group["source"] for group in groups)
    notes = {
        "negatives_removed": dict(removed),
        "target_in_depth": round(covered / len(queries), 4),
        "retriever": encoder.name,
    }
    return StageReport({"groups": len(groups), **dict(sources)}, rejected, notes)


def _overlap(
    skill_id: str,
    positives: Mapping[str, float],
    corpus: SkillCorpus,
    embeddings: np.ndarray,
    terms: dict[str, SkillTerms],
    limits: OverlapLimits,
) -> str:
    own = terms.setdefault(skill_id, SkillTerms(corpus.get(skill_id)))
    vector = embeddings[corpus.position(skill_id)]
    for positive in positives:
        other = terms.setdefault(positive, SkillTerms(corpus.get(positive)))
        reason = overlap_reason(own, other, float(vector @ embeddings[corpus.position(positive)]), limits)
        if reason:
            return reason
    return ""


RERANKER_STAGES = (
    *TASK_STAGES,
    Stage(
        "groups",
        build_groups,
        ("corpus", "records", "task_audit"),
        keys=(
            "reranker.depth",
            "reranker.min_negatives",
            "reranker.name_jaccard",
            "reranker.id_jaccard",
            "reranker.text_jaccard",
            "reranker.cosine",
            "retriever_weights",
        ),
    ),
)
"""E.5 in its order."""
