"""The stages that write benchmark requests and filter them (C.3, C.4): screening, generation, duplicates, validation."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from data_pipeline.isolation import normalize
from data_pipeline.near_duplicates import near_duplicates
from data_pipeline.pipeline.artifacts import corpus_of, encoder_of, rows_of
from data_pipeline.pipeline.asking import ask
from data_pipeline.pipeline.dag import Stage, StageContext, StageReport
from data_pipeline.pipeline.leakage import names_skill
from data_pipeline.rows import RecordError, read_rows, write_rows
from data_pipeline.teacher import bench_prompts

MIN_DOCUMENT_CHARS = 200
"""Shorter bodies are not screened: there is nothing to build a request on."""


def screen(context: StageContext) -> StageReport:
    """Which skills are concrete, specialized and executable enough to be a target (C.3)."""
    corpus = corpus_of(context)
    long_enough = [skill for skill in corpus if len(skill.body) >= MIN_DOCUMENT_CHARS]
    skills = long_enough
    limit = context.config.bench.max_targets
    if 0 < limit < len(skills):
        chosen = set(random.Random(context.config.seed).sample([s.skill_id for s in skills], limit))
        skills = [skill for skill in skills if skill.skill_id in chosen]
    asked = ask(context, "screening", (bench_prompts.anchor_screening(skill) for skill in skills))
    kept = [s.skill_id for s, r in zip(skills, asked.results, strict=True) if r.value and r.value["label"] == 1]
    rejected = Counter(asked.failed)
    rejected["little_content"] = len(corpus) - len(long_enough)
    rejected["not_a_target"] = sum(1 for r in asked.results if r.value and r.value["label"] == 0)
    write_rows(context.out / "targets.jsonl", ({"skill_id": skill_id} for skill_id in kept))
    return StageReport({"screened": len(skills), "targets": len(kept)}, rejected, asked.notes)


def generate(context: StageContext) -> StageReport:
    """One implicit request a target, with its capability reasoning, which is never released."""
    corpus = corpus_of(context)
    skills = [corpus.get(row["skill_id"]) for row in rows_of(context, "screen", "targets.jsonl")]
    asked = ask(context, "bench_query", (bench_prompts.bench_query(skill) for skill in skills))
    rows = [
        {
            "query_id": _query_id(skill.skill_id, result.value["query"]),
            "skill_id": skill.skill_id,
            **result.value,
            "teacher": result.teacher,
        }
        for skill, result in zip(skills, asked.results, strict=True)
        if result.value
    ]
    write_rows(context.out / "requests.jsonl", rows)
    return StageReport({"requests": len(rows)}, asked.failed, asked.notes)


def filter_requests(context: StageContext) -> StageReport:
    """Lengths, the target's name, exact duplicates after normalization, and requests that training has (C.4)."""
    corpus, limits = corpus_of(context), context.config.bench
    known = {normalize(query) for file in limits.exclude_files for query in _queries_of(file)}
    seen: set[str] = set()
    rejected: Counter[str] = Counter()
    kept = []
    for row in rows_of(context, "generate", "requests.jsonl"):
        words, text = len(row["query"].split()), normalize(row["query"])
        if not limits.min_words <= words <= limits.max_words:
            rejected["abnormal_length"] += 1
        elif text in known:
            rejected["training_request"] += 1
        elif text in seen:
            rejected["exact_duplicate"] += 1
        elif names_skill(row["query"], corpus.get(row["skill_id"])):
            rejected["names_its_skill"] += 1
        else:
            kept.append(row)
        seen.add(text)
    write_rows(context.out / "requests.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected)


def drop_near_duplicates(context: StageContext) -> StageReport:
    """Requests of one scenario: only where words, BM25 and vectors say so together; the corpus keeps every skill (C.4)."""
    from retrieval import BM25Index

    corpus, limits = corpus_of(context), context.config.bench
    rows = rows_of(context, "filter", "requests.jsonl")
    queries = [row["query"] for row in rows]
    dropped: dict[int, int] = {}
    if rows:
        lexical = BM25Index([str(i) for i in range(len(rows))], queries).search(queries, limits.neighbours + 1).ids
        close = {(min(i, int(j)), max(i, int(j))) for i, found in enumerate(lexical) for j in found}
        dropped = near_duplicates(
            queries,
            [""] * len(rows),  # whatever their targets: a benchmark asks each thing once
            [0.0] * len(rows),
            encoder_of(context, corpus).encode_queries(queries),
            cosine=limits.duplicate_cosine,
            word_jaccard=limits.duplicate_jaccard,
            among=close,
            progress=context.progress,
        ).dropped
    write_rows(context.out / "requests.jsonl", (row for i, row in enumerate(rows) if i not in dropped))
    pairs_out = ({"query_id": rows[i]["query_id"], "same_as": rows[j]["query_id"]} for i, j in sorted(dropped.items()))
    write_rows(context.out / "dropped.jsonl", pairs_out)
    return StageReport({"kept": len(rows) - len(dropped)}, {"near_duplicate": len(dropped)})


def validate_targets(context: StageContext) -> StageReport:
    """Whether the target provides what the request requires, and the request is fit to test it (C.4)."""
    corpus = corpus_of(context)
    rows = rows_of(context, "distinct", "requests.jsonl")
    asked = ask(
        context,
        "target_validation",
        (bench_prompts.target_validation(r["query_id"], r["query"], corpus.get(r["skill_id"])) for r in rows),
    )
    rejected = Counter(asked.failed)
    kept = []
    for row, result in zip(rows, asked.results, strict=True):
        if result.value and result.value["keep"]:
            kept.append(row)
        elif result.value:
            rejected[result.value["issue_type"]] += 1
    write_rows(context.out / "requests.jsonl", kept)
    return StageReport({"kept": len(kept)}, rejected, asked.notes)


def _queries_of(file: str) -> list[str]:
    found = []
    for number, row in read_rows(file):
        for key in ("query", "original_query", "implicit_query"):
            if not isinstance(row.get(key, ""), str):
                raise RecordError(file, number, "expected text", key, row[key])
            found.append(row.get(key, ""))
    return [query for query in found if query]


def _query_id(skill_id: str, query: str) -> str:
    """Of target and wording: a human's decision on an id is never taken for one on another wording."""
    digest = hashlib.sha256(f"{skill_id}\n{query}".encode("utf-8", "surrogatepass"))
    return f"b-{digest.hexdigest()[:12]}"


BENCH_REQUEST_STAGES = (
    Stage("screen", screen, ("corpus",), keys=("bench.max_targets", "asked.screening", "seed")),
    Stage("generate", generate, ("corpus", "screen"), keys=("asked.bench_query",)),
    Stage(
        "filter",
        filter_requests,
        ("corpus", "generate"),
        keys=("bench.min_words", "bench.max_words", "bench.exclude_files"),
        files=("bench.exclude_files",),
    ),
    Stage(
        "distinct",
        drop_near_duplicates,
        ("corpus", "filter"),
        keys=("bench.duplicate_cosine", "bench.duplicate_jaccard", "bench.neighbours", "embedding", "seed"),
    ),
    Stage("target_validation", validate_targets, ("corpus", "distinct"), keys=("asked.target_validation",)),
)
