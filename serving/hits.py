"""What a search returns, and how a request's scores by retriever become it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.fusion import fuse
from retrieval.ranking import Ranking
from retrieval.retriever import FUSION_DEPTH
from serving.index import SkillIndex

_COMPARED_IDS = 5000
"""Ids that a misspelt one is compared with; difflib takes some 20 microseconds each."""


class SkillNotFoundError(KeyError):
    """No skill has the id; ``close`` lists those that are spelt nearly so."""

    def __init__(self, skill_id: str, close: Sequence[str], n_skills: int) -> None:
        self.skill_id, self.close = skill_id, list(close)
        meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        super().__init__(f"no skill {skill_id!r} among the {n_skills} skills of this index{meant}")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote the sentence


@dataclass(frozen=True)
class SearchHit:
    """A skill found for a request.

    Attributes:
        score: the one it is ranked by.
        scores: by retriever: ``dense`` (cosine), ``bm25``, ``fused``, ``rerank``. A key is absent where that retriever was not
            asked or did not return the skill.
    """

    skill_id: str
    name: str
    description: str
    domain: str | None
    score: float
    scores: dict[str, float]


def first_rankings(
    index: SkillIndex,
    queries: Sequence[str],
    embeddings: np.ndarray | None,
    k: int,
    fusion_weight: float | None,
    within: np.ndarray | None,
) -> dict[str, Ranking]:
    """The ``k`` best of each request by retriever, before any reranker; the ranking that counts is the last.

    Args:
        embeddings: ``[n, d]`` of the requests; None: BM25 ranks.
        fusion_weight: for a hybrid; None: the model alone ranks.
        within: positions of the skills to rank; None: all.
    """
    if index.dense is None or embeddings is None:
        return {"bm25": index.bm25.search(queries, k, within=within)}
    if fusion_weight is None:
        return {"dense": index.dense.search(embeddings, k, within=within)}
    depth = max(k, FUSION_DEPTH)
    dense = index.dense.search(embeddings, depth, within=within)
    bm25 = index.bm25.search(queries, depth, matched_only=True, within=within)
    return {"dense": dense, "bm25": bm25, "fused": fuse(dense, bm25, fusion_weight, k)}


def to_hits(index: SkillIndex, ranking: Ranking, k: int, by_retriever: Mapping[str, Ranking]) -> list[list[SearchHit]]:
    """The first ``k`` of each row of a ranking, each with the scores that the retrievers gave it."""
    tables = {name: _score_tables(found) for name, found in by_retriever.items()}
    out = []
    for row, (ids, scores) in enumerate(zip(ranking.ids, ranking.scores.tolist(), strict=True)):
        hits = []
        for skill_id, score in zip(ids[:k], scores, strict=False):
            position = index.skills.position(skill_id)
            skill = index.skills[position]
            own = {name: table[row][skill_id] for name, table in tables.items() if skill_id in table[row]}
            hits.append(SearchHit(skill_id, skill.name, skill.description, index.domain_of[position], score, own))
        out.append(hits)
    return out


def _score_tables(ranking: Ranking) -> list[dict[str, float]]:
    rows = zip(ranking.ids, ranking.scores.tolist(), strict=True)
    return [dict(zip(ids, scores, strict=False)) for ids, scores in rows]


def close_ids(skill_id: str, ids: Sequence[str]) -> list[str]:
    """Up to three ids that are spelt like one; of a large library only those that contain its last part are looked at."""
    if len(ids) > _COMPARED_IDS:
        last = skill_id.rsplit("/", 1)[-1].lower()
        ids = [other for other in ids if last in other.lower()][:_COMPARED_IDS]
    return difflib.get_close_matches(skill_id, ids, n=3, cutoff=0.6)
