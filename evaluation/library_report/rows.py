"""What was measured as the rows of ``report.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from evaluation.library_report.duplicates import Cluster
from evaluation.library_report.findings import Advice
from evaluation.library_report.reach import Confusion, Reach
from evaluation.library_report.wording import Wording

_SHARED_WORDS = 6


def recall_with_copies(reach: Reach, corpus: SkillCorpus, clusters: Sequence[Cluster]) -> float:
    """Recall@1 where a near-duplicate counts as the skill itself."""
    group = np.arange(len(corpus))
    for number, cluster in enumerate(clusters):
        group[[corpus.position(skill_id) for skill_id in cluster.skills]] = len(corpus) + number
    first = reach.top[:, 0]
    right = (first >= 0) & (group[first] == group[reach.owners])
    return float(right.mean())


def advice_row(corpus: SkillCorpus, advice: Advice) -> dict[str, Any]:
    skill = corpus[advice.skill]
    return {
        "skill_id": skill.skill_id,
        "name": skill.name,
        "impact": advice.impact,
        "requests": advice.requests,
        "first": advice.first,
        "found": advice.found,
        "taken": advice.taken,
        "findings": [asdict(finding) for finding in advice.findings],
        "terms": advice.terms,
    }


def confusion_row(corpus: SkillCorpus, wording: Wording, reach: Reach, pair: Confusion) -> dict[str, Any]:
    a, b = corpus[pair.a], corpus[pair.b]
    return {
        "a": a.skill_id,
        "b": b.skill_id,
        "a_to_b": pair.a_to_b,
        "b_to_a": pair.b_to_a,
        "a_requests": int(reach.requests[pair.a]),
        "b_requests": int(reach.requests[pair.b]),
        "only_a": wording.only_here(a, [b], _SHARED_WORDS),
        "only_b": wording.only_here(b, [a], _SHARED_WORDS),
    }


def cluster_row(corpus: SkillCorpus, cluster: Cluster) -> dict[str, Any]:
    return {
        "skills": list(cluster.skills),
        "pairs": [asdict(edge) for edge in cluster.edges],
        "closest": cluster.closest,
        "smallest": cluster.edges[-1].jaccard,
    }


def skill_rows(corpus: SkillCorpus, reach: Reach) -> list[dict[str, Any]]:
    columns = zip(
        corpus.ids,
        reach.requests.tolist(),
        reach.found(1).tolist(),
        reach.found(reach.depth).tolist(),
        reach.occurrences.tolist(),
        strict=True,
    )
    keys = ("skill_id", "requests", "first", "found", "occurrences")
    return [dict(zip(keys, row, strict=True)) for row in columns]
