"""What the suggested words would change: the same requests against an index in which the descriptions have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from evaluation.library_report.findings import Advice
from evaluation.library_report.reach import Reach, Request, self_retrieval
from evaluation.library_report.wording import TERMS
from models.views import DESCRIPTION_CHARS
from retrieval.retriever import DenseRetriever, HybridRetriever, Retriever, document_format, open_retriever


def open_library(model: str, corpus: SkillCorpus, settings: dict[str, Any], progress: bool) -> Retriever:
    """The retriever over a corpus; bars while documents are encoded, none for every block of requests."""
    opened = open_retriever(model, corpus.ids, corpus.documents(document_format(model)), progress=progress, **settings)
    if isinstance(opened, HybridRetriever) and isinstance(opened.dense, DenseRetriever):
        return replace(opened, dense=replace(opened.dense, progress=False))
    return replace(opened, progress=False) if isinstance(opened, DenseRetriever) else opened


def try_advice(
    model: str,
    corpus: SkillCorpus,
    settings: dict[str, Any],
    requests: Sequence[Request],
    before: Reach,
    advice: Sequence[Advice],
    progress: bool = False,
) -> dict[str, Any]:
    """Search a library with the suggested words in its descriptions, with the same requests.

    The words go into the part of a description that is read: its end gives way where it is full.
    """
    changed = {a.skill: a.terms for a in advice if a.terms}
    skills = list(corpus)
    for row, terms in changed.items():
        addition = f" Covers {', '.join(terms[:TERMS])}."
        kept = skills[row].description[: DESCRIPTION_CHARS - len(addition)].rstrip()
        skills[row] = replace(skills[row], description=(kept + addition).strip())
    edited = SkillCorpus(skills)
    after = self_retrieval(edited, open_library(model, edited, settings, progress), requests, progress)
    of_changed = np.isin(before.owners, list(changed))
    rows = []
    for a in advice:
        if a.skill in changed:
            first, found = int(after.found(1)[a.skill]), int(after.found(after.depth)[a.skill])
            rows.append({"skill_id": corpus.ids[a.skill], "first": [a.first, first], "found": [a.found, found]})
    return {
        "skills": len(changed),
        "before": {"recall@1": before.recall(1), "recall@depth": before.recall(before.depth)},
        "after": {"recall@1": after.recall(1), "recall@depth": after.recall(after.depth)},
        "changed_before": _recalls(before, of_changed),
        "changed_after": _recalls(after, of_changed),
        "others_before": _recalls(before, ~of_changed),
        "others_after": _recalls(after, ~of_changed),
        "rows": rows,
    }


def _recalls(reach: Reach, chosen: np.ndarray) -> dict[str, float]:
    part = replace(reach, owners=reach.owners[chosen], ranks=reach.ranks[chosen], top=reach.top[chosen])
    return {"recall@1": part.recall(1), "recall@depth": part.recall(reach.depth)}
