"""The independent audit of training records (D.1): it reads the files again and trusts nothing that made them.

``skillreason data audit`` prints the counts and exits with status 1 where one is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import SELF_PREFIX, Stage1Record, Stage2Record
from models.views import format_of_document

KEPT = 20
FINDINGS = (
    "positive_overlaps",
    "duplicate_ids",
    "missing_ids",
    "graph_violations",
    "id_text_mismatches",
    "repeated_records",
    "misaligned_stages",
    "wrong_counts",
)


@dataclass
class AuditReport:
    """What was checked and what was found.

    Attributes:
        records, negative_positions: how much was checked.
        found: number of findings of each kind; the first five are those of D.1.
        examples: the first 20 of each kind: record id, skill id and stage.
    """

    records: int = 0
    negative_positions: int = 0
    found: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINDINGS, 0))
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Nothing was found."""
        return not any(self.found.values())

    def add(self, kind: str, **where: Any) -> None:
        """Count a finding and keep the first few."""
        self.found[kind] += 1
        kept = self.examples.setdefault(kind, [])
        if len(kept) < KEPT:
            kept.append(where)


def audit_records(
    stage1: Sequence[Stage1Record],
    stage2: Sequence[Stage2Record],
    corpus: SkillCorpus,
    exclusions: ExclusionGraph,
    n_negatives: int | None = None,
) -> AuditReport:
    """Check every record of both stages and that Stage II keeps its Stage-I record's target and candidates.

    Args:
        n_negatives: negatives of every record (None: as many as the first has; passages of the skills' own text are exempt).
    """
    report = AuditReport()
    documents: dict[str, str] = {}
    first = {record.record_id: record for record in reversed(stage1)}
    for stage, records in ((1, stage1), (2, stage2)):
        seen: set[str] = set()
        mined = [r for r in records if not r.record_id.startswith(SELF_PREFIX)]
        wanted = n_negatives if n_negatives is not None else len(mined[0].negative_ids) if mined else 0
        for record in records:
            report.records += 1
            report.negative_positions += len(record.negative_ids)
            at = {"record_id": record.record_id, "stage": stage}
            if record.record_id in seen:
                report.add("repeated_records", **at)
            seen.add(record.record_id)
            if len(record.negative_ids) != len(record.negatives) or (
                not record.record_id.startswith(SELF_PREFIX) and len(record.negative_ids) != wanted
            ):
                report.add("wrong_counts", **at, negatives=len(record.negative_ids))
            _audit_candidates(report, record, corpus, exclusions, documents, at)
            if stage == 2:
                _audit_alignment(report, record, first, at)
    return report


def _audit_candidates(
    report: AuditReport,
    record: Stage1Record,
    corpus: SkillCorpus,
    exclusions: ExclusionGraph,
    documents: dict[str, str],
    at: Mapping[str, Any],
) -> None:
    excluded = exclusions.neighbours(record.positive_id)
    seen: set[str] = set()
    for skill_id in record.negative_ids:
        if skill_id == record.positive_id:
            report.add("positive_overlaps", **at, skill_id=skill_id)
        if skill_id in seen:
            report.add("duplicate_ids", **at, skill_id=skill_id)
        seen.add(skill_id)
        if skill_id in excluded:
            report.add("graph_violations", **at, skill_id=skill_id)
    texts = [(record.positive_id, record.positive), *zip(record.negative_ids, record.negatives, strict=False)]
    for skill_id, text in texts:
        if skill_id not in corpus:
            report.add("missing_ids", **at, skill_id=skill_id)
            continue
        if skill_id not in documents:
            documents[skill_id] = corpus.document(skill_id, format_of_document(record.positive))
        if documents[skill_id] != text:
            report.add("id_text_mismatches", **at, skill_id=skill_id)


def _audit_alignment(
    report: AuditReport, record: Stage1Record, first: Mapping[str, Stage1Record], at: Mapping[str, Any]
) -> None:
    """Stage II keeps target, candidates, rationale and original request (D.1)."""
    source = first.get(record.record_id)
    if source is None:
        report.add("misaligned_stages", **at, key="record_id")
        return
    original = record.original_query if isinstance(record, Stage2Record) else record.query
    pairs = {
        "positive_id": (source.positive_id, record.positive_id),
        "negative_ids": (source.negative_ids, record.negative_ids),
        "query_capability": (source.query_capability, record.query_capability),
        "original_query": (source.query, original),
    }
    for key, (expected, found) in pairs.items():
        if expected != found:
            report.add("misaligned_stages", **at, key=key)
