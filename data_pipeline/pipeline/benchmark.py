"""The stages that choose benchmark requests, have them judged, and release them (C.4, C.5)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_pipeline.overlaps import AlternativeFinder, OverlapLimits, balanced_sample
from data_pipeline.pipeline.artifacts import Row, categories_of, corpus_of, rows_of
from data_pipeline.pipeline.asking import ask, same_model_warning
from data_pipeline.pipeline.bench_requests import BENCH_REQUEST_STAGES
from data_pipeline.pipeline.dag import PipelineError, Stage, StageContext, StageReport
from data_pipeline.pipeline.decisions import read_decisions
from data_pipeline.pipeline.quality_audit import QUALITY_AUDIT_STAGES, shown_skill
from data_pipeline.records import BenchQuery, write_records
from data_pipeline.rows import write_rows
from data_pipeline.teacher import bench_prompts


def choose_candidates(context: StageContext) -> StageReport:
    """More requests than are wanted, balanced over the domains: those that later audits drop have others in their place."""
    size = context.config.bench.candidates
    return _sample(context, "target_validation", size)


def find_alternatives(context: StageContext) -> StageReport:
    """Which other skills could satisfy each request; requests with too many are dropped (C.4). Labels are never released."""
    from data_pipeline.exclusions import nearest_neighbours

    corpus, limits = corpus_of(context), context.config.bench
    rows = rows_of(context, "candidates", "requests.jsonl")
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    neighbours = nearest_neighbours(corpus.ids, embeddings, limits.neighbours, context.progress)
    finder = AlternativeFinder(corpus, OverlapLimits())
    pairs: list[tuple[Row, str, list[str]]] = []
    for row in rows:
        position = corpus.position(row["skill_id"])
        dense = dict(zip(neighbours.ids[position], neighbours.cosines[position].tolist(), strict=True))
        proposed = finder.propose(row["skill_id"], dense, limits.alternatives_cosine)
        pairs += [(row, skill_id, signals) for skill_id, signals in proposed.items()]
    asked = ask(
        context,
        "alternatives",
        (
            bench_prompts.alternative_audit(
                row["query_id"], row["query"], corpus.get(row["skill_id"]), corpus.get(other)
            )
            for row, other, _ in pairs
        ),
    )
    labels: Counter[str] = Counter()
    positives: Counter[str] = Counter()
    out = []
    for (row, other, signals), result in zip(pairs, asked.results, strict=True):
        if not result.value:
            continue
        decision = result.value["decision"]
        labels[decision] += 1
        positives[row["query_id"]] += decision == "positive"
        out.append({"query_id": row["query_id"], "skill_id": other, "decision": decision, "signals": signals})
    write_rows(context.out / "alternatives.jsonl", out)
    most = limits.drop_ambiguous
    kept = [row for row in rows if not most or positives[row["query_id"]] < most]
    write_rows(context.out / "requests.jsonl", kept)
    return StageReport(
        {"kept": len(kept), "pairs": len(pairs), **dict(sorted(labels.items()))},
        {"ambiguous": len(rows) - len(kept)},
        {**asked.notes, "unanswered_pairs": dict(asked.failed)},
    )


def choose_reviewed(context: StageContext) -> StageReport:
    """The requests for the final review, as even over the domains as they allow."""
    return _sample(context, "alternatives", context.config.bench.size)


def _sample(context: StageContext, source: str, size: int) -> StageReport:
    categories = categories_of(context)
    rows = rows_of(context, source, "requests.jsonl")
    domains = [categories[row["skill_id"]] for row in rows]
    order = [random.Random(f"{context.config.seed}:{row['query_id']}").random() for row in rows]
    chosen = set(balanced_sample([r["query_id"] for r in rows], domains, size or len(rows), order))
    kept = [{**row, "domain": d} for row, d in zip(rows, domains, strict=True) if row["query_id"] in chosen]
    write_rows(context.out / "requests.jsonl", kept)
    by_domain = dict(sorted(Counter(row["domain"] for row in kept).items()))
    return StageReport({"sampled": len(kept)}, {"not_sampled": len(rows) - len(kept)}, {"by_domain": by_domain})


def judge(context: StageContext) -> StageReport:
    """Two judges review every candidate; where they differ, or one is silent, it goes to the queue for a human (C.4)."""
    corpus = corpus_of(context)
    rows = rows_of(context, "sample", "requests.jsonl")
    verdicts: list[Sequence[Row | None]] = []
    notes: dict[str, Any] = {"warnings": same_model_warning(context.config, ("judge_a",), ("judge_b",))}
    for role in ("judge_a", "judge_b"):
        asked = ask(
            context,
            role,
            (bench_prompts.joint_review(r["query_id"], r["query"], corpus.get(r["skill_id"])) for r in rows),
        )
        verdicts.append([result.value for result in asked.results])
        notes[role] = {**asked.notes, "unanswered": dict(asked.failed)}
    agreed, queue = [], []
    rejected: Counter[str] = Counter()
    both = 0
    for row, first, second in zip(rows, *verdicts, strict=True):
        both += bool(first and second)
        if first and second and first["keep"] == second["keep"]:
            if first["keep"]:
                agreed.append(row)
            else:
                rejected[first["issue_type"]] += 1
        else:
            queue.append(
                {**row, "skill": shown_skill(corpus.get(row["skill_id"])), "judge_a": first, "judge_b": second}
            )
    write_rows(context.out / "agreed.jsonl", agreed)
    write_rows(context.out / "queue.jsonl", queue)
    same = len(agreed) + rejected.total()
    notes["agreement"] = round(same / both, 4) if both else None
    return StageReport({"agreed": len(agreed), "queue": len(queue)}, rejected, notes)


def adjudicate(context: StageContext) -> StageReport:
    """The human's decisions on the queue (``bench.decisions_file``); what nobody has decided stays out, counted."""
    file = context.config.bench.decisions_file
    decisions = read_decisions(file) if file else {}
    rows = rows_of(context, "judge", "agreed.jsonl")
    queue = rows_of(context, "judge", "queue.jsonl")
    rejected: Counter[str] = Counter()
    for row in queue:
        decision = decisions.get(row["query_id"])
        if decision is None:
            rejected["undecided"] += 1
        elif decision["keep"]:
            rows.append({key: row[key] for key in row if key not in ("skill", "judge_a", "judge_b")})
        else:
            rejected["rejected_by_human"] += 1
    rows.sort(key=lambda row: row["query_id"])
    write_rows(context.out / "requests.jsonl", rows)
    decided = len(queue) - rejected["undecided"]
    return StageReport(
        {"kept": len(rows), "decided": decided}, rejected, {"unused_decisions": len(decisions) - decided}
    )


def export(context: StageContext) -> StageReport:
    """The released format (C.5): request, one target, domain, and who wrote it; the retrieval corpus beside it."""
    rows = rows_of(context, "adjudicate", "requests.jsonl")
    if not rows:
        raise PipelineError("no request is left for the benchmark; see the rejections of the stages before")
    queries = [
        BenchQuery(r["query_id"], r["query"], {r["skill_id"]: 1}, r["domain"], {"teacher": r["teacher"]}) for r in rows
    ]
    write_records(context.out / "bench.jsonl", queries)
    corpus_of(context).to_jsonl(context.out / "corpus.jsonl.gz")
    words = [len(query.query.split()) for query in queries]
    by_domain = dict(sorted(Counter(query.domain for query in queries).items()))
    return StageReport(
        {"queries": len(queries)}, notes={"mean_words": round(float(np.mean(words)), 2), "by_domain": by_domain}
    )


BENCHMARK_STAGES = (
    *BENCH_REQUEST_STAGES,
    Stage("candidates", choose_candidates, ("categorize", "target_validation"), keys=("bench.candidates", "seed")),
    Stage(
        "alternatives",
        find_alternatives,
        ("corpus", "embed", "candidates"),
        keys=("bench.neighbours", "bench.alternatives_cosine", "bench.drop_ambiguous", "asked.alternatives"),
    ),
    Stage("sample", choose_reviewed, ("categorize", "alternatives"), keys=("bench.size", "seed")),
    Stage("judge", judge, ("corpus", "sample"), keys=("asked.judge_a", "asked.judge_b")),
    Stage("adjudicate", adjudicate, ("judge",), keys=("bench.decisions_file",), files=("bench.decisions_file",)),
    Stage("bench", export, ("corpus", "adjudicate")),
    *QUALITY_AUDIT_STAGES,
)
"""C.3 to C.5 and A.1 in their order."""
