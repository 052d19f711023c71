"""The stages of multi-skill supervision (E.5): compound tasks, checks, selection, negatives and audited labels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.isolation import normalize
from data_pipeline.negatives import NegativeMiner, NegativeQuotas, Shortfall, quotas_for
from data_pipeline.pipeline.artifacts import categories_of, corpus_of, encoder_of, rows_of
from data_pipeline.pipeline.asking import ask
from data_pipeline.pipeline.dag import Stage, StageContext, StageReport
from data_pipeline.pipeline.leakage import names_skill
from data_pipeline.quality import content_words, lexical_overlap
from data_pipeline.rows import write_rows
from data_pipeline.selection import Candidate, select
from data_pipeline.teacher import prompts
from data_pipeline.teacher.prompts import MAX_TARGETS, MIN_TARGETS
from data_pipeline.validation import query_problem

TRIES = 10
"""Draws a task, before a library counts as too small for so many different sets."""
SEED_DEPTH = 20
"""How deep the seed retriever is looked into for targets."""
POSITIVE_LABELS = {"strong_positive": 1.0}
"""Audited labels that make a target, with its weight y in eq. 16: the paper's primary reranker takes strong positives alone."""


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
        (prompts.multi_skill_task(_task_id(i), [corpus.get(s) for s in ids]) for i, ids in enumerate(chosen)),
    )
    rows = [
        {"record_id": _task_id(i), "skill_ids": ids, **result.value, "teacher": result.teacher}
        for i, (ids, result) in enumerate(zip(chosen, asked.results, strict=True))
        if result.value
    ]
    write_rows(context.out / "tasks.jsonl", rows)
    return StageReport({"target_sets": len(chosen), "tasks": len(rows)}, asked.failed, asked.notes)


def _target_sets(
    corpus: SkillCorpus, graph: ExclusionGraph, neighbours: np.ndarray, count: int, seed: int
) -> Iterator[list[str]]:
    """Up to ``count`` different sets of two to five skills: one at random and some of its nearest, none tied to another.

    A small library has fewer sets than may be asked for.
    """
    generator = random.Random(f"{seed}:tasks")
    starts = list(corpus.ids)
    generator.shuffle(starts)
    seen: set[frozenset[str]] = set()
    for number in range(TRIES * count):
        ids = [starts[number % len(starts)]]
        wanted = generator.randint(MIN_TARGETS, MAX_TARGETS)
        near = [corpus.ids[i] for i in neighbours[corpus.position(ids[0])]]
        generator.shuffle(near)
        for skill_id in near:
            if len(ids) == wanted:
                break
            if skill_id not in ids and graph.neighbours(skill_id).isdisjoint(ids):
                ids.append(skill_id)
        # The same skills would get the same task: the teacher is asked in the same words.
        if len(ids) >= MIN_TARGETS and frozenset(ids) not in seen:
            seen.add(frozenset(ids))
            yield ids
        if len(seen) == count:
            return


def _task_id(number: int) -> str:
    return f"multi/{number:06d}"


def check_tasks(context: StageContext) -> StageReport:
    """A valid request, distinct targets of the corpus, none named, at least one within the seed retriever's reach."""
    corpus = corpus_of(context)
    rows = rows_of(context, "tasks", "tasks.jsonl")
    ranked = _seed_ranking(context, corpus, [row["query"] for row in rows], SEED_DEPTH)
    rejected: Counter[str] = Counter()
    seen: set[str] = set()
    kept = []
    for row, found in zip(rows, ranked, strict=True):
        targets = row["skill_ids"]
        reached = sorted(set(targets) & set(found), key=targets.index)
        problem = query_problem(row["query"])
        text = normalize(row["query"])
        if problem:
            rejected[problem] += 1
        elif text in seen:
            rejected["exact_duplicate"] += 1
        elif len(set(targets)) != len(targets) or any(skill_id not in corpus for skill_id in targets):
            rejected["unusable_targets"] += 1
        elif any(names_skill(row["query"], corpus.get(skill_id)) for skill_id in targets):
            rejected["names_its_skill"] += 1
        elif not reached:
            rejected["no_target_retrieved"] += 1
        else:
            kept.append({**row, "reached": reached})
            seen.add(text)
    write_rows(context.out / "tasks.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected)


def select_tasks(context: StageContext) -> StageReport:
    """The best tasks by specificity, target coverage and lexical alignment, under category and skill caps.

    The cap on skills counts all targets of a task and comes first; the one on categories goes by the first target.
    """
    corpus, categories, settings = corpus_of(context), categories_of(context), context.config.reranker
    rows = rows_of(context, "task_checks", "tasks.jsonl")
    scores = {row["record_id"]: task_score(row, corpus) for row in rows}
    uses: Counter[str] = Counter()
    free: set[str] = set()
    for row in sorted(rows, key=lambda row: (-scores[row["record_id"]], row["record_id"])):
        if all(uses[skill_id] < settings.per_skill for skill_id in row["skill_ids"]):
            uses.update(row["skill_ids"])
            free.add(row["record_id"])
    candidates = [
        Candidate(r["record_id"], r["record_id"], categories[r["skill_ids"][0]], scores[r["record_id"]])
        for r in rows
        if r["record_id"] in free
    ]
    share = settings.category_share
    if candidates and len({c.category for c in candidates}) * share < 1:
        share = 1.0  # so few categories cannot keep within their cap
    chosen = set(select(candidates, settings.select, reserve=0, category_share=share, per_skill=1).chosen)
    kept = [{**row, "score": scores[row["record_id"]]} for row in rows if row["record_id"] in chosen]
    write_rows(context.out / "tasks.jsonl", kept)
    return StageReport(
        {"selected": len(kept)}, {"skill_full": len(rows) - len(free), "not_selected": len(free) - len(kept)}
    )


def task_score(row: Mapping[str, Any], corpus: SkillCorpus) -> float:
    """Specificity (content words, whole at 30) + share of targets retrieved + mean lexical overlap with the targets."""
    specificity = min(len(content_words(row["query"])) / 30, 1.0)
    coverage = len(row["reached"]) / len(row["skill_ids"])
    alignment = float(np.mean([lexical_overlap(row["query"], corpus.get(s)) for s in row["skill_ids"]]))
    return round(specificity + coverage + alignment, 6)


def mine_task_negatives(context: StageContext) -> StageReport:
    """Eight retrieved negatives, one of the first target's category, one of another; nothing tied or close to any target.

    They belong to the multi-skill set as it is; the reranker's groups have the retriever's own candidates instead.
    """
    corpus, settings, categories = corpus_of(context), context.config.reranker, categories_of(context)
    graph = ExclusionGraph.read(context.inputs["exclude"] / "exclusions.json")
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    rows = rows_of(context, "task_select", "tasks.jsonl")
    ranked = _seed_ranking(context, corpus, [row["query"] for row in rows], context.config.exclusions.neighbours)
    quotas = NegativeQuotas(0, settings.query_negatives, settings.same_category, settings.cross_category)
    quotas = quotas_for(quotas, categories)
    ties: dict[str, frozenset[str]] = {}
    miner = NegativeMiner(categories, ties, {}, quotas, context.config.seed)
    rejected: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    kept = []
    for row, found in zip(rows, ranked, strict=True):
        forbidden = set(row["skill_ids"])
        for skill_id in row["skill_ids"]:
            forbidden |= graph.neighbours(skill_id)
            cosines = embeddings @ embeddings[corpus.position(skill_id)]
            forbidden |= {corpus.ids[i] for i in np.flatnonzero(cosines > settings.cosine)}
        first = row["skill_ids"][0]
        ties[first] = frozenset(forbidden - {first})  # the miner looks its positive up: here what this task forbids
        mined = miner.mine(row["record_id"], first, found)
        if isinstance(mined, Shortfall):
            rejected[f"unfilled_{mined.source}"] += 1
        else:
            sources.update(mined.sources)
            kept.append({**row, "negative_ids": list(mined.ids), "sources": list(mined.sources)})
    write_rows(context.out / "tasks.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected, {"negatives_by_source": dict(sources)})


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
    relations = sum(len(row["positives"]) for row in kept)
    return StageReport(
        {"groups": len(kept), "positive_relations": relations, **dict(sorted(found.items()))},
        {"no_strong_positive": len(rows) - len(kept)},
        {**asked.notes, "unanswered_relations": dict(asked.failed)},
    )


def _seed_ranking(context: StageContext, corpus: SkillCorpus, queries: Sequence[str], k: int) -> list[list[str]]:
    from retrieval import DenseIndex

    if not queries:
        return []
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    return DenseIndex(corpus.ids, embeddings).search(encoder_of(context, corpus).encode_queries(queries), k).ids


_SEED_KEYS = ("embedding", "seed")
TASK_STAGES = (
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
)
