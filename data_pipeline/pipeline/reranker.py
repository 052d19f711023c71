"""The stages of the reranker's groups (E.5): multi-skill tasks, audited labels, and what the retriever really returns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.negatives import NegativeMiner, NegativeQuotas, Shortfall, quotas_for
from data_pipeline.overlaps import OverlapLimits, SkillTerms, overlap_reason
from data_pipeline.pipeline.asking import ask
from data_pipeline.pipeline.dag import PipelineError, Stage, StageContext, StageReport
from data_pipeline.pipeline.leakage import names_skill
from data_pipeline.pipeline.training import categories_of, corpus_of, encoder_of, rows_of
from data_pipeline.quality import content_words, lexical_overlap
from data_pipeline.records import read_stage1
from data_pipeline.rows import write_rows
from data_pipeline.selection import Candidate, select
from data_pipeline.teacher import prompts
from data_pipeline.teacher.prompts import MAX_TARGETS, MIN_TARGETS
from data_pipeline.validation import query_problem

SEED_DEPTH = 20
"""How deep the seed retriever is looked into for targets."""
POSITIVE_LABELS = {"strong_positive": 1.0}
"""Audited labels that make a target, with its weight y in eq. 16: the paper's primary reranker takes strong positives alone."""

Row = dict[str, Any]


def write_tasks(context: StageContext) -> StageReport:
    """Compound tasks that need two to five skills, grown from skills whose neighbours are related but no copies."""
    corpus, settings = corpus_of(context), context.config.reranker
    if settings.tasks == 0:
        write_rows(context.out / "tasks.jsonl", [])
        return StageReport({"tasks": 0})
    graph = ExclusionGraph.read(context.inputs["exclude"] / "exclusions.json")
    neighbours = np.load(context.inputs["exclude"] / "neighbours.npy")
    chosen = list(_target_sets(corpus, graph, neighbours, settings.tasks, context.config.seed))
    asked = ask(
        context,
        "multi_skill",
        (prompts.multi_skill_task(f"m{i:06d}", [corpus.get(s) for s in ids]) for i, ids in enumerate(chosen)),
    )
    rows = [
        {"record_id": f"m{i:06d}", "skill_ids": ids, **result.value, "teacher": result.teacher}
        for i, (ids, result) in enumerate(zip(chosen, asked.results, strict=True))
        if result.value
    ]
    write_rows(context.out / "tasks.jsonl", rows)
    return StageReport({"tasks": len(rows)}, asked.failed, asked.notes)


def _target_sets(
    corpus: SkillCorpus, graph: ExclusionGraph, neighbours: np.ndarray, count: int, seed: int
) -> Iterator[list[str]]:
    """Two to five skills each: one at random and some of its nearest that are tied to none of the others."""
    generator = random.Random(f"{seed}:tasks")
    starts = list(corpus.ids)
    generator.shuffle(starts)
    for number in range(count):
        ids = [starts[number % len(starts)]]
        wanted = generator.randint(MIN_TARGETS, MAX_TARGETS)
        near = [corpus.ids[i] for i in neighbours[corpus.position(ids[0])]]
        generator.shuffle(near)
        for skill_id in near:
            if len(ids) == wanted:
                break
            if skill_id not in ids and graph.neighbours(skill_id).isdisjoint(ids):
                ids.append(skill_id)
        if len(ids) >= MIN_TARGETS:
            yield ids


def check_tasks(context: StageContext) -> StageReport:
    """A valid request, distinct targets of the corpus, none named, at least one within the seed retriever's reach."""
    corpus = corpus_of(context)
    rows = rows_of(context, "tasks", "tasks.jsonl")
    ranked = _seed_ranking(context, corpus, [row["query"] for row in rows], SEED_DEPTH)
    rejected: Counter[str] = Counter()
    kept = []
    for row, found in zip(rows, ranked, strict=True):
        targets = row["skill_ids"]
        reached = sorted(set(targets) & set(found), key=targets.index)
        problem = query_problem(row["query"])
        if problem:
            rejected[problem] += 1
        elif len(set(targets)) != len(targets) or any(skill_id not in corpus for skill_id in targets):
            rejected["unusable_targets"] += 1
        elif any(names_skill(row["query"], corpus.get(skill_id)) for skill_id in targets):
            rejected["names_its_skill"] += 1
        elif not reached:
            rejected["no_target_retrieved"] += 1
        else:
            kept.append({**row, "reached": reached})
    write_rows(context.out / "tasks.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected)


def select_tasks(context: StageContext) -> StageReport:
    """The best tasks by specificity, target coverage and lexical alignment, under category and skill caps."""
    corpus, categories, settings = corpus_of(context), categories_of(context), context.config.reranker
    rows = rows_of(context, "task_checks", "tasks.jsonl")
    scored = [(row, _task_score(row, corpus)) for row in rows]
    # a task counts for the category and the skill of its first target; the cap on skills below counts all of them
    candidates = [Candidate(r["record_id"], r["record_id"], categories[r["skill_ids"][0]], s) for r, s in scored]
    share = settings.category_share if len({c.category for c in candidates}) > 1 else 1.0
    chosen = set(select(candidates, settings.select, reserve=0, category_share=share, per_skill=1).chosen)
    uses: Counter[str] = Counter()
    kept: dict[str, Row] = {}
    full = 0
    for row, score in sorted(scored, key=lambda item: (-item[1], item[0]["record_id"])):
        if row["record_id"] not in chosen:
            continue
        if any(uses[skill_id] >= settings.per_skill for skill_id in row["skill_ids"]):
            full += 1
            continue
        uses.update(row["skill_ids"])
        kept[row["record_id"]] = {**row, "score": score}
    write_rows(context.out / "tasks.jsonl", (kept[r["record_id"]] for r in rows if r["record_id"] in kept))
    return StageReport({"selected": len(kept)}, {"not_selected": len(rows) - len(chosen), "skill_full": full})


def _task_score(row: Mapping[str, Any], corpus: SkillCorpus) -> float:
    """Specificity (content words, whole at 30) + share of targets retrieved + mean lexical overlap with the targets."""
    specificity = min(len(content_words(row["query"])) / 30, 1.0)
    coverage = len(row["reached"]) / len(row["skill_ids"])
    alignment = float(np.mean([lexical_overlap(row["query"], corpus.get(s)) for s in row["skill_ids"]]))
    return round(specificity + coverage + alignment, 6)


def mine_task_negatives(context: StageContext) -> StageReport:
    """Eight retrieved negatives, one of the category, one of another; nothing tied or close to any target."""
    corpus, settings, categories = corpus_of(context), context.config.reranker, categories_of(context)
    graph = ExclusionGraph.read(context.inputs["exclude"] / "exclusions.json")
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    rows = rows_of(context, "task_select", "tasks.jsonl")
    ranked = _seed_ranking(context, corpus, [row["query"] for row in rows], context.config.exclusions.neighbours)
    quotas = NegativeQuotas(0, settings.query_negatives, settings.same_category, settings.cross_category)
    quotas = quotas_for(quotas, categories)
    rejected: Counter[str] = Counter()
    kept = []
    for row, found in zip(rows, ranked, strict=True):
        forbidden = set(row["skill_ids"])
        for skill_id in row["skill_ids"]:
            forbidden |= graph.neighbours(skill_id)
            cosines = embeddings @ embeddings[corpus.position(skill_id)]
            forbidden |= {corpus.ids[i] for i in np.flatnonzero(cosines > settings.cosine)}
        first = row["skill_ids"][0]
        ties = {first: frozenset(forbidden - {first})}
        mined = NegativeMiner(categories, ties, {}, quotas, context.config.seed).mine(row["record_id"], first, found)
        if isinstance(mined, Shortfall):
            rejected[f"unfilled_{mined.source}"] += 1
        else:
            kept.append({**row, "negative_ids": list(mined.ids), "sources": list(mined.sources)})
    write_rows(context.out / "tasks.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected)


def audit_targets(context: StageContext) -> StageReport:
    """An item-level label for every query-target relation (G.4); tasks without a strong positive are dropped."""
    corpus = corpus_of(context)
    rows = rows_of(context, "task_negatives", "tasks.jsonl")
    pairs = [(row, skill_id) for row in rows for skill_id in row["skill_ids"]]
    asked = ask(
        context,
        "relevance",
        (prompts.relevance_audit(f"{row['record_id']}/{s}", row["query"], corpus.get(s)) for row, s in pairs),
    )
    labels: dict[str, dict[str, str]] = {}
    for (row, skill_id), result in zip(pairs, asked.results, strict=True):
        if result.value:
            labels.setdefault(row["record_id"], {})[skill_id] = result.value["label"]
    kept = []
    for row in rows:
        given = labels.get(row["record_id"], {})
        positives = {skill_id: POSITIVE_LABELS[label] for skill_id, label in given.items() if label in POSITIVE_LABELS}
        if positives:
            kept.append({**row, "labels": given, "positives": positives})
    write_rows(context.out / "tasks.jsonl", kept)
    found = Counter(label for given in labels.values() for label in given.values())
    rejected = Counter(asked.failed)
    rejected["no_strong_positive"] = len(rows) - len(kept)
    relations = sum(len(row["positives"]) for row in kept)
    return StageReport(
        {"groups": len(kept), "positive_relations": relations, **dict(sorted(found.items()))}, rejected, asked.notes
    )


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
    queries: list[Row] = [
        {
            "record_id": r.record_id,
            "source": "single",
            "query": r.query,
            "query_capability": r.query_capability,
            "positives": {r.positive_id: 1.0},
        }
        for r in read_stage1(context.inputs["records"] / "stage1.jsonl")
    ]
    for row in rows_of(context, "task_audit", "tasks.jsonl"):
        kept = {key: row[key] for key in ("record_id", "query", "query_capability", "positives")}
        queries.append({**kept, "source": "multi"})
    encoder = _load(settings.retriever, context)
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
            # a target that the audit kept is compared with no other, retrieved or not: all of them are right
            reason = "" if weight else _overlap(skill_id, row["positives"], corpus, embeddings, terms, limits)
            if reason:
                removed[reason] += 1
            else:
                candidates.append({"skill_id": skill_id, "weight": weight})
        if sum(c["weight"] == 0 for c in candidates) < settings.min_negatives:
            rejected["few_negatives"] += 1
            continue
        groups.append(
            {key: row[key] for key in ("record_id", "source", "query", "query_capability")} | {"candidates": candidates}
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


def _seed_ranking(context: StageContext, corpus: SkillCorpus, queries: Sequence[str], k: int) -> list[list[str]]:
    from retrieval import DenseIndex

    if not queries:
        return []
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    return DenseIndex(corpus.ids, embeddings).search(encoder_of(context, corpus).encode_queries(queries), k).ids


def _load(path: str, context: StageContext) -> Any:
    from dataclasses import replace

    from data_pipeline.pipeline.spread import PipelineEncoder

    corpus = corpus_of(context)
    return PipelineEncoder(
        replace(context.config.encoding, encoder=path), corpus, context.config.seed, context.progress
    )


_SEED_KEYS = ("embedding", "seed")
RERANKER_STAGES = (
    Stage(
        "tasks",
        write_tasks,
        ("corpus", "exclude"),
        keys=("reranker.tasks", "asked.multi_skill", "seed"),
    ),
    Stage("task_checks", check_tasks, ("corpus", "embed", "tasks"), keys=_SEED_KEYS),
    Stage(
        "task_select",
        select_tasks,
        ("corpus", "categorize", "task_checks"),
        keys=("reranker.select", "reranker.category_share", "reranker.per_skill"),
    ),
    Stage(
        "task_negatives",
        mine_task_negatives,
        ("corpus", "embed", "exclude", "categorize", "task_select"),
        keys=(
            "reranker.query_negatives",
            "reranker.same_category",
            "reranker.cross_category",
            "reranker.cosine",
            "exclusions.neighbours",
            *_SEED_KEYS,
        ),
    ),
    Stage("task_audit", audit_targets, ("corpus", "task_negatives"), keys=("asked.relevance",)),
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
