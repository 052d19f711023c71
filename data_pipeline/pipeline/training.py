"""The stages that finish Stage-I and Stage-II training data (D.1, D.2): rationales, rewrites, records and their audits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from data_pipeline.audit import audit_records
from data_pipeline.build import to_stage2
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.isolation import isolate_records
from data_pipeline.negatives import quotas_for
from data_pipeline.pipeline.artifacts import categories_of, corpus_of, draft, quotas_of, rows_of
from data_pipeline.pipeline.asking import Asked, ask
from data_pipeline.pipeline.dag import PipelineError, Stage, StageContext, StageReport
from data_pipeline.pipeline.leakage import names_skill
from data_pipeline.pipeline.library import LIBRARY_STAGES
from data_pipeline.pipeline.requests import REQUEST_STAGES
from data_pipeline.records import read_both_stages, write_records
from data_pipeline.rows import write_rows
from data_pipeline.teacher import prompts
from data_pipeline.teacher.forms import check_rationale
from data_pipeline.validation import query_problem
from models.folders import write_json


def annotate(context: StageContext) -> StageReport:
    """The capability rationale c* of every selected request, from the request and its target alone."""
    corpus = corpus_of(context)
    rows = rows_of(context, "select", "selected.jsonl")
    open_rows = [row for row in rows if not row.get("query_capability")]
    asked = ask(
        context,
        "rationale",
        (prompts.rationale(r["record_id"], r["query"], corpus.get(r["skill_id"])) for r in open_rows),
    )
    written, made_by = _written("query_capability", rows, open_rows, asked)
    rejected = Counter(asked.failed)
    found: dict[str, str] = {}
    for row in rows:
        rationale = written.get(row["record_id"], "")
        if names_skill(rationale, corpus.get(row["skill_id"])):
            rejected["names_its_skill"] += 1
        elif rationale and check_rationale({"query_capability": rationale}):
            rejected["malformed_rationale"] += 1
        elif rationale:
            found[row["record_id"]] = rationale
    out = [
        {**row, "query_capability": found[i], "rationale_teacher": made_by.get(i, "given")}
        for row in rows
        if (i := row["record_id"]) in found
    ]
    if not out:
        raise PipelineError(f"no selected request has a rationale; reasons: {dict(rejected)}")
    write_rows(context.out / "annotated.jsonl", out)
    return StageReport({"annotated": len(out)}, rejected, asked.notes)


def rewrite(context: StageContext) -> StageReport:
    """The implicit wording of every annotated request (Stage II)."""
    corpus = corpus_of(context)
    rows = rows_of(context, "annotate", "annotated.jsonl")
    open_rows = [row for row in rows if not row.get("implicit_query")]
    asked = ask(
        context,
        "rewrite",
        (
            prompts.implicit_rewrite(r["record_id"], r["query"], r["query_capability"], corpus.get(r["skill_id"]))
            for r in open_rows
        ),
    )
    written, made_by = _written("implicit_query", rows, open_rows, asked)
    rejected = Counter(asked.failed)
    found: dict[str, str] = {}
    for row in rows:
        if row["record_id"] not in written:
            continue  # counted as the teacher's failure
        implicit = written[row["record_id"]]
        problem = query_problem(implicit)
        if names_skill(implicit, corpus.get(row["skill_id"])):
            rejected["names_its_skill"] += 1
        elif problem:
            rejected[problem] += 1
        else:
            found[row["record_id"]] = implicit
    rows_out = (
        {"record_id": i, "implicit_query": found[i], "teacher": made_by.get(i, "given")}
        for row in rows
        if (i := row["record_id"]) in found
    )
    write_rows(context.out / "implicit.jsonl", rows_out)
    return StageReport({"rewritten": len(found)}, rejected, asked.notes)


def _written(
    key: str, rows: Sequence[Mapping[str, Any]], open_rows: Sequence[Mapping[str, Any]], asked: Asked
) -> tuple[dict[str, str], dict[str, str]]:
    """The texts under ``key`` by record id, those that stood in the rows and those now written; and who wrote the latter."""
    written = {row["record_id"]: row[key] for row in rows if row.get(key)}
    made_by: dict[str, str] = {}
    for row, result in zip(open_rows, asked.results, strict=True):
        if result.value:
            written[row["record_id"]] = result.value[key]
            made_by[row["record_id"]] = result.teacher
    return written, made_by


def records(context: StageContext) -> StageReport:
    """``stage1.jsonl``, ``stage2.jsonl`` and the exclusion graph: what training reads."""
    corpus, categories = corpus_of(context), categories_of(context)
    rewritten = rows_of(context, "rewrite", "implicit.jsonl")
    implicit = {row["record_id"]: row["implicit_query"] for row in rewritten}
    rewritten_by = {row["record_id"]: row["teacher"] for row in rewritten}
    rows = rows_of(context, "annotate", "annotated.jsonl")
    stage1 = [draft(r, r["negative_ids"], corpus, categories[r["skill_id"]]) for r in rows]
    stage2 = [to_stage2(r, implicit[r.record_id]) for r in stage1 if r.record_id in implicit]
    write_records(context.out / "stage1.jsonl", stage1)
    write_records(context.out / "stage2.jsonl", stage2)
    # Beside the records, whose readers refuse unknown keys.
    made_by = (
        {
            "record_id": row["record_id"],
            "teacher": row["teacher"],
            "rationale_teacher": row["rationale_teacher"],
            "rewrite_teacher": rewritten_by.get(row["record_id"], ""),
        }
        for row in rows
    )
    write_rows(context.out / "provenance.jsonl", made_by)
    ExclusionGraph.read(context.inputs["exclude"] / "exclusions.json").write(context.out / "exclusions.json")
    words = [len(record.query.split()) for record in stage1]
    return StageReport(
        {"stage1": len(stage1), "stage2": len(stage2)},
        {"no_implicit_query": len(stage1) - len(stage2)},
        {"mean_words": round(float(np.mean(words)), 2)},
    )


def audit(context: StageContext) -> StageReport:
    """The independent audit; a finding ends the run."""
    folder = context.inputs["records"]
    report = audit_records(
        *read_both_stages(folder),
        corpus_of(context),
        ExclusionGraph.read(folder / "exclusions.json"),
        quotas_for(quotas_of(context.config), categories_of(context)).total,
    )
    if not report.clean:
        raise PipelineError(f"the audit of the records found {report.found}; examples: {report.examples}")
    write_json(context.out / "audit.json", asdict(report))
    return StageReport({"records": report.records, "negative_positions": report.negative_positions}, notes=report.found)


def isolate(context: StageContext) -> StageReport:
    """Table 14 against every configured benchmark, and the pairs for review."""
    limits = context.config.isolation
    reports = isolate_records(
        context.inputs["records"],
        limits.benchmarks,
        context.out,
        near=limits.near,
        review=limits.review,
        progress=context.progress,
    )
    return StageReport(
        {f"{report.benchmark}_{key}": getattr(report, key) for report in reports for key in ("exact", "near", "review")}
    )


TRAINING_STAGES = (
    *LIBRARY_STAGES,
    *REQUEST_STAGES,
    Stage("annotate", annotate, ("corpus", "select"), keys=("asked.rationale",), version=2),
    Stage("rewrite", rewrite, ("corpus", "annotate"), keys=("asked.rewrite",), version=2),
    Stage("records", records, ("corpus", "exclude", "categorize", "annotate", "rewrite")),
    Stage("audit", audit, ("corpus", "categorize", "records"), keys=("negatives",)),
    Stage("isolation", isolate, ("records",), keys=("isolation", "benchmark_files"), files=("benchmark_files",)),
)
"""D.1 and D.2 in their order."""
