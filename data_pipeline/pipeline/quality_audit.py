"""The independent quality audit of a finished benchmark (A.1) and its tables."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.overlaps import stratified_sample
from data_pipeline.pipeline.artifacts import Row, corpus_of
from data_pipeline.pipeline.asking import ask, same_model_warning
from data_pipeline.pipeline.dag import Stage, StageContext, StageReport
from data_pipeline.rows import read_rows, write_rows
from data_pipeline.teacher import bench_prompts
from data_pipeline.teacher.bench_prompts import AUDIT_MINIMUMS, audit_passes
from models.folders import atomic_write_text, write_json

JUDGES = ("audit_a", "audit_b")
BUILDERS = ("screening", "bench_query", "target_validation", "alternatives", "judge_a", "judge_b")
"""Whose models may not be judges: A.1's took no part in the construction."""


def audit_quality(context: StageContext) -> StageReport:
    """A fixed-seed, domain-stratified sample judged by two models that took no part (A.1); the agreement table is Table 6's."""
    corpus, config = corpus_of(context), context.config
    rows = [row for _, row in read_rows(context.inputs["bench"] / "bench.jsonl")]
    order = [random.Random(f"{config.seed}:audit:{row['query_id']}").random() for row in rows]
    chosen = set(
        stratified_sample([r["query_id"] for r in rows], [r["domain"] for r in rows], config.bench.audit_size, order)
    )
    rows = [row for row in rows if row["query_id"] in chosen]
    answers: dict[str, list[Row | None]] = {}
    notes: dict[str, Any] = {}
    for role in JUDGES:
        asked = ask(
            context,
            role,
            (bench_prompts.quality_audit(r["query_id"], r["query"], corpus.get(r["skill_id"])) for r in rows),
        )
        answers[role] = [result.value for result in asked.results]
        notes[role] = {**asked.notes, "unanswered": dict(asked.failed)}
    names = {role: notes[role]["teacher"] for role in JUDGES}
    table = {names[role] if len(set(names.values())) == 2 else role: scores_of(answers[role]) for role in JUDGES}
    agreement = agreement_of(answers["audit_a"], answers["audit_b"])
    write_json(context.out / "quality_audit.json", {"judges": table, "agreement": agreement})
    atomic_write_text(context.out / "quality_audit.md", audit_table(table, agreement))
    judged = list(zip(rows, answers["audit_a"], answers["audit_b"], strict=True))
    write_rows(
        context.out / "answers.jsonl", ({"query_id": r["query_id"], "audit_a": a, "audit_b": b} for r, a, b in judged)
    )
    disputed = [
        {**row, "skill": shown_skill(corpus.get(row["skill_id"])), "judge_a": a, "judge_b": b}
        for row, a, b in judged
        if not (a and b and audit_passes(a) == audit_passes(b))
    ]
    write_rows(context.out / "disputed.jsonl", disputed)
    warnings = same_model_warning(config, ("audit_a",), ("audit_b",)) + same_model_warning(config, JUDGES, BUILDERS)
    return StageReport(
        {"audited": len(rows), "disputed": len(disputed)}, notes={**agreement, **notes, "warnings": warnings}
    )


def shown_skill(skill: Any) -> dict[str, str]:
    """What a human sees of a skill when deciding."""
    return {"name": skill.name, "description": skill.description, "document": skill.body[:4000]}


def scores_of(answers: Sequence[Mapping[str, Any] | None]) -> dict[str, float]:
    """One row of Table 6: means of the four scores (1-5), pass and leakage rates in percent, over the answers there are."""
    given = [answer for answer in answers if answer]
    if not given:
        return {}
    means = {key: round(float(np.mean([a[key] for a in given])), 3) for key in AUDIT_MINIMUMS}
    passed = 100 * float(np.mean([audit_passes(a) for a in given]))
    return {"pass": round(passed, 2), **means, "leakage": round(100 * float(np.mean([a["leakage"] for a in given])), 2)}


def agreement_of(
    first: Sequence[Mapping[str, Any] | None], second: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any]:
    """How often two judges pass the same items, over those that both have judged."""
    both = [(audit_passes(a), audit_passes(b)) for a, b in zip(first, second, strict=True) if a and b]
    accepted, refused = sum(a and b for a, b in both), sum(not a and not b for a, b in both)
    return {
        "judged": len(both),
        "jointly_accepted": accepted,
        "jointly_rejected": refused,
        "disagreed": len(both) - accepted - refused,
        "agreement": round((accepted + refused) / len(both), 4) if both else None,
    }


def audit_table(judges: Mapping[str, Mapping[str, float]], agreement: Mapping[str, Any]) -> str:
    """Table 6 in Markdown, and the agreement below it."""
    lines = [
        "| Judge | Pass (%) | Natural | Align. | Necess. | Implicit | Leakage (%) |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = ("pass", "naturalness", "gold_alignment", "skill_necessity", "implicitness", "leakage")
    for name, scores in judges.items():
        lines.append(f"| {name} | " + " | ".join(str(scores.get(key, "–")) for key in keys) + " |")
    lines += ["", ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in agreement.items())]
    return "\n".join(lines) + "\n"


QUALITY_AUDIT_STAGES = (
    Stage(
        "quality_audit",
        audit_quality,
        ("corpus", "bench"),
        keys=("bench.audit_size", "asked.audit_a", "asked.audit_b", "seed"),
    ),
)
