"""The stages from written requests to the selected training set (D.1): synthesis, negatives, checks, scores, review."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.near_duplicates import near_duplicates
from data_pipeline.negatives import NegativeMiner, Shortfall, quotas_for
from data_pipeline.pipeline.artifacts import Row, categories_of, corpus_of, draft, encoder_of, quotas_of, rows_of
from data_pipeline.pipeline.asking import Asked, ask
from data_pipeline.pipeline.dag import PipelineError, Stage, StageContext, StageReport
from data_pipeline.pipeline.leakage import names_skill
from data_pipeline.pipeline.spread import map_chunks
from data_pipeline.quality import quality_score
from data_pipeline.rows import RecordError, read_rows, write_rows
from data_pipeline.selection import Candidate, select
from data_pipeline.teacher import prompts
from data_pipeline.teacher.task import TeacherTask
from data_pipeline.validation import query_problem, record_problem

_GIVEN_KEYS = ("record_id", "skill_id", "query", "query_capability", "implicit_query")
"""Of a request that the user has; the last two may be missing."""


def synthesize(context: StageContext) -> StageReport:
    """Three explicit requests a skill from the teacher, after those that the user has."""
    corpus, settings = corpus_of(context), context.config.synthesis
    rows: list[Row] = []
    rejected: Counter[str] = Counter()
    if settings.requests_file:
        for number, row in read_rows(settings.requests_file):
            for key in _GIVEN_KEYS:
                value = row.get(key, "")
                if not isinstance(value, str) or not (value.strip() or key in _GIVEN_KEYS[3:]):
                    raise RecordError(
                        settings.requests_file, number, "missing, empty or no text; expected text", key, value
                    )
            if row["skill_id"] not in corpus:
                rejected["unknown_skill"] += 1
                continue
            rows.append({**{key: row.get(key, "") for key in _GIVEN_KEYS}, "teacher": "given"})
    asked = Asked([])
    if settings.teacher:
        skills = list(corpus)
        if 0 < settings.max_skills < len(skills):
            chosen = set(random.Random(context.config.seed).sample(corpus.ids, settings.max_skills))
            skills = [skill for skill in corpus if skill.skill_id in chosen]
        asked = ask(context, "synthesis", (prompts.query_synthesis(skill) for skill in skills))
        for skill, result in zip(skills, asked.results, strict=True):
            for number, query in enumerate((result.value or {}).get("queries", ()), start=1):
                if names_skill(query, skill):
                    rejected["names_its_skill"] += 1
                    continue
                record_id = f"{skill.skill_id}#{number}"
                rows.append(
                    {"record_id": record_id, "skill_id": skill.skill_id, "query": query, "teacher": result.teacher}
                )
    repeated = [record_id for record_id, n in Counter(row["record_id"] for row in rows).items() if n > 1]
    if repeated:
        raise PipelineError(f"synthesis.requests_file: record_id {repeated[0]!r} occurs more than once; ids are unique")
    if not rows:
        raise PipelineError(f"no requests were written; reasons: {dict(asked.failed + rejected)}")
    write_rows(context.out / "requests.jsonl", rows)
    return StageReport(
        {"requests": len(rows), "skills": len({r["skill_id"] for r in rows})}, rejected + asked.failed, asked.notes
    )


def mine(context: StageContext) -> StageReport:
    """The ordered negatives of every request from the four sources (Table 13)."""
    corpus, config = corpus_of(context), context.config
    requests = rows_of(context, "synthesize", "requests.jsonl")
    neighbours = np.load(context.inputs["exclude"] / "neighbours.npy")
    graph = ExclusionGraph.read(context.inputs["exclude"] / "exclusions.json")
    categories = categories_of(context)
    quotas = quotas_for(quotas_of(config), categories)
    miner = NegativeMiner(
        categories,
        graph.adjacency,
        {skill_id: [corpus.ids[i] for i in row] for skill_id, row in zip(corpus.ids, neighbours, strict=True)},
        quotas,
        config.seed,
    )
    ranked = _query_neighbours(context, corpus, [row["query"] for row in requests])
    items = [(row["record_id"], row["skill_id"], ids) for row, ids in zip(requests, ranked, strict=True)]
    mined = map_chunks(
        mine_chunk, miner, items, config.encoding, description="mining negatives", progress=context.progress
    )
    rejected: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    rows = []
    for (record_id, _, _), found in zip(items, mined, strict=True):
        if isinstance(found, Shortfall):
            rejected[f"unfilled_{found.source}"] += 1
            continue
        sources.update(found.sources)
        rows.append({"record_id": record_id, "negative_ids": list(found.ids), "sources": list(found.sources)})
    if not rows:
        raise PipelineError(
            f"no request has its negatives; reasons: {dict(rejected)}: the library's {len(corpus)} skills are too few, or their "
            "exclusion graph is too dense; lower negatives.skill_neighbours and its like, or add skills"
        )
    write_rows(context.out / "negatives.jsonl", rows)
    return StageReport(
        {"records": len(rows)}, rejected, {"quotas": asdict(quotas), "negatives_by_source": dict(sources)}
    )


def mine_chunk(miner: NegativeMiner, items: Sequence[tuple[str, str, list[str]]]) -> list[Any]:
    """The negatives, or the shortfall, of each (record id, target, query neighbours)."""
    return [miner.mine(*item) for item in items]


def _query_neighbours(context: StageContext, corpus: SkillCorpus, queries: list[str]) -> list[list[str]]:
    from retrieval import BM25Index, DenseIndex

    k = context.config.exclusions.neighbours
    if context.config.negatives.query_source == "bm25":
        return BM25Index(corpus.ids, corpus.documents()).search(queries, k).ids
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    encoded = encoder_of(context, corpus).encode_queries(queries)
    return DenseIndex(corpus.ids, embeddings).search(encoded, k, context.progress).ids


def validate(context: StageContext) -> StageReport:
    """Every structural rule of D.1, row by row: what breaks one is rejected, never repaired."""
    corpus = corpus_of(context)
    graph = ExclusionGraph.read(context.inputs["exclude"] / "exclusions.json")
    negatives = {row["record_id"]: row["negative_ids"] for row in rows_of(context, "mine", "negatives.jsonl")}
    wanted = quotas_for(quotas_of(context.config), categories_of(context)).total
    rejected: Counter[str] = Counter()
    rows = []
    for row in rows_of(context, "synthesize", "requests.jsonl"):
        if row["record_id"] not in negatives:
            continue  # counted where its negatives were mined
        record = draft(row, negatives[row["record_id"]], corpus)
        problem = query_problem(row["query"]) or record_problem(record, corpus, graph.adjacency, wanted)
        if problem:
            rejected[problem] += 1
        else:
            rows.append({**row, "negative_ids": list(record.negative_ids)})
    if not rows:
        raise PipelineError(f"no request is structurally valid; reasons: {dict(rejected)}")
    write_rows(context.out / "valid.jsonl", rows)
    return StageReport({"valid": len(rows)}, rejected)


def score(context: StageContext) -> StageReport:
    """The deterministic quality score of every valid request; it orders, it never deletes and is no weight."""
    corpus = corpus_of(context)
    rows = []
    risky = 0
    for row in rows_of(context, "validate", "valid.jsonl"):
        parts = quality_score(row["query"], corpus.get(row["skill_id"]), [corpus.get(s) for s in row["negative_ids"]])
        risky += parts.label_risk > 0
        rows.append({"record_id": row["record_id"], **asdict(parts)})
    write_rows(context.out / "scores.jsonl", rows)
    totals = [row["total"] for row in rows]
    return StageReport({"scored": len(rows), "label_risk": risky}, notes={"mean": round(float(np.mean(totals)), 4)})


def deduplicate(context: StageContext) -> StageReport:
    """Of requests that say the same about the same skill, the best one stays; the same about two skills is reviewed."""
    corpus, limits = corpus_of(context), context.config.duplicates
    rows = rows_of(context, "validate", "valid.jsonl")
    scores = {row["record_id"]: row["total"] for row in rows_of(context, "score", "scores.jsonl")}
    queries = [row["query"] for row in rows]
    found = near_duplicates(
        queries,
        [row["skill_id"] for row in rows],
        [scores[row["record_id"]] for row in rows],
        encoder_of(context, corpus).encode_queries(queries),
        cosine=limits.cosine,
        word_jaccard=limits.word_jaccard,
        progress=context.progress,
    )
    ids = [row["record_id"] for row in rows]
    write_rows(context.out / "kept.jsonl", (row for i, row in enumerate(rows) if i not in found.dropped))
    dropped = ({"record_id": ids[i], "same_as": ids[j]} for i, j in sorted(found.dropped.items()))
    write_rows(context.out / "dropped.jsonl", dropped)
    write_rows(context.out / "disputed.jsonl", ({"record_id": ids[i], "other": ids[j]} for i, j in found.disputed))
    counts = {"kept": len(rows) - len(found.dropped), "disputed_pairs": len(found.disputed)}
    return StageReport(counts, {"near_duplicate": len(found.dropped)})


def review(context: StageContext) -> StageReport:
    """The teacher's review of every request that is left (D.1): invalid, redundant, unnatural, thin or off target."""
    corpus = corpus_of(context)
    rows = rows_of(context, "deduplicate", "kept.jsonl")
    by_skill: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_skill[row["skill_id"]].append(row)

    def task(row: Row) -> TeacherTask:
        others = [r["query"] for r in by_skill[row["skill_id"]] if r is not row]
        return prompts.quality_review(row["record_id"], row["query"], corpus.get(row["skill_id"]), others)

    asked = ask(context, "review", (task(row) for row in rows))
    rejected = Counter(asked.failed)
    kept = []
    for row, result in zip(rows, asked.results, strict=True):
        if result.value and result.value["keep"]:
            kept.append(row)
        elif result.value:
            rejected[result.value["issue_type"]] += 1
    if not kept:
        raise PipelineError(f"the review kept none of {len(rows)} requests; reasons: {dict(rejected)}")
    write_rows(context.out / "reviewed.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected, asked.notes)


def choose(context: StageContext) -> StageReport:
    """Coverage-constrained selection of the training set."""
    categories, limits = categories_of(context), context.config.select
    scores = {row["record_id"]: row["total"] for row in rows_of(context, "score", "scores.jsonl")}
    rows = rows_of(context, "review", "reviewed.jsonl")
    candidates = [
        Candidate(r["record_id"], r["skill_id"], categories[r["skill_id"]], scores[r["record_id"]]) for r in rows
    ]
    share = limits.category_share
    if len({c.category for c in candidates}) * share < 1:
        share = 1.0  # so few categories cannot keep within their cap
    result = select(candidates, limits.target, reserve=limits.reserve, category_share=share, per_skill=limits.per_skill)
    chosen = set(result.chosen)
    write_rows(context.out / "selected.jsonl", (row for row in rows if row["record_id"] in chosen))
    per_skill = Counter(Counter(row["skill_id"] for row in rows if row["record_id"] in chosen).values())
    return StageReport(
        {"selected": len(chosen), "skills": sum(per_skill.values())},
        result.left_out,
        {
            "by_category": result.by_category,
            "category_share": share,
            "skills_by_requests": {str(n): c for n, c in sorted(per_skill.items())},
        },
    )


REQUEST_STAGES = (
    Stage(
        "synthesize",
        synthesize,
        ("corpus",),
        keys=("synthesis.requests_file", "synthesis.teacher", "synthesis.max_skills", "asked.synthesis", "seed"),
        files=("synthesis.requests_file",),
    ),
    Stage(
        "mine",
        mine,
        ("corpus", "embed", "exclude", "categorize", "synthesize"),
        keys=("negatives", "exclusions.neighbours", "embedding", "seed"),
    ),
    Stage("validate", validate, ("corpus", "exclude", "categorize", "synthesize", "mine"), keys=("negatives",)),
    Stage("score", score, ("corpus", "validate")),
    Stage("deduplicate", deduplicate, ("corpus", "validate", "score"), keys=("duplicates", "embedding", "seed")),
    Stage("review", review, ("corpus", "deduplicate"), keys=("asked.review",)),
    Stage("select", choose, ("categorize", "score", "review"), keys=("select",), version=2),
)
