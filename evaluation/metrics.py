"""Recall, NDCG, MRR, MAP and coverage of rankings: for every query and on average, by pytrec_eval."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval.ranking import Ranking

Qrels = Mapping[str, Mapping[str, int]]
"""Relevant skills of each query: query id -> skill id -> grade (0 is judged and not relevant)."""

Targets = Mapping[str, Collection[str]]
"""Skills that answer each query, where they are not simply those with a grade above 0."""

NDCG_DEPTH = 10
"""NDCG is always reported at this depth, beside the depths that were asked for."""

FULL_COVERAGE = f"multi_fc@{NDCG_DEPTH}"
BINARY_NDCG = f"binary_ndcg@{NDCG_DEPTH}"


@dataclass(frozen=True)
class Scores:
    """Metrics of each query.

    Attributes:
        query_ids: ``[Q]``.
        names: ``[M]``.
        values: ``[Q, M]``, fractions between 0 and 1; NaN where a metric does not apply to a query.
    """

    query_ids: list[str]
    names: list[str]
    values: np.ndarray

    def means(self) -> dict[str, float]:
        """The mean of each metric over the queries that it applies to."""
        return dict(zip(self.names, (float(value) for value in np.nanmean(self.values, axis=0)), strict=True))

    def select(self, names: Sequence[str] | None = None, query_ids: Collection[str] | None = None) -> Scores:
        """Some metrics, some queries, in the order they have here. Metrics that apply to none of them are left out."""
        rows = [row for row, query_id in enumerate(self.query_ids) if query_ids is None or query_id in query_ids]
        columns = [column for column, name in enumerate(self.names) if names is None or name in names]
        columns = [column for column in columns if not np.isnan(self.values[rows, column]).all()]
        return Scores(
            [self.query_ids[row] for row in rows],
            [self.names[column] for column in columns],
            self.values[np.ix_(rows, columns)],
        )


def evaluate_ranking(
    ranking: Ranking, query_ids: Sequence[str], qrels: Qrels, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """Means over all queries of ``qrels`` of the metrics of :func:`score_queries`, which raises the same errors."""
    return score_queries(ranking, query_ids, qrels, ks).means()


def query_metrics(
    ranking: Ranking, query_ids: Sequence[str], qrels: Qrels, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, dict[str, float]]:
    """The metrics of :func:`score_queries` by query, without those that do not apply to it; raises the same errors."""
    scores = score_queries(ranking, query_ids, qrels, ks)
    return {
        query_id: {name: float(value) for name, value in zip(scores.names, row, strict=True) if not np.isnan(value)}
        for query_id, row in zip(scores.query_ids, scores.values, strict=True)
    }


def metric_names(ks: Sequence[int] = (1, 5, 10)) -> list[str]:
    """Names of the metrics that every evaluation at these depths gives, in its order."""
    return [
        *(f"recall@{k}" for k in sorted(set(ks))),
        *(f"ndcg@{k}" for k in sorted({*ks, NDCG_DEPTH})),
        "mrr",
        "map",
        *(f"complete@{k}" for k in sorted(set(ks))),
    ]


def score_queries(
    ranking: Ranking,
    query_ids: Sequence[str],
    qrels: Qrels,
    ks: Sequence[int] = (1, 5, 10),
    targets: Targets | None = None,
) -> Scores:
    """Every metric of every query of ``qrels``. With T the targets of a query and L_k its k best skills:

    - ``recall@k`` = |T ∩ L_k| / |T|, fractional where a query has several targets;
    - ``complete@k``: 1 where L_k holds all of T, otherwise 0;
    - ``multi_fc@10``: ``complete@10`` of the queries with at least two targets, of which there must be one;
    - ``mrr``: 1 / rank of the first target, over the whole list;
    - ``map``: the sum of the precisions at the ranks of the targets / |T|, over the whole list;
    - ``ndcg@k`` = DCG_k / ideal DCG_k, where DCG_k sums grade / log2(1 + rank) as trec_eval does; so it is
      binary where all grades are 1;
    - ``binary_ndcg@10``: the same with grade 1 for every target, only where that is not ``ndcg@10`` itself.

    A query of ``qrels`` that ``query_ids`` lacks, or whose list is empty, counts as zero.

    Args:
        ranking: lists, best first; their order counts, not their scores.
        query_ids: the query of each list.
        qrels: grades by query id.
        ks: depths.
        targets: T by query id; the skills with a grade above 0 for the queries that it lacks.

    Raises:
        ValueError: a query id without qrels or twice, a skill twice in a list, a query without a relevant
            skill, a depth below 1, or lists and query ids of different number. The message names the id.
    """
    import pytrec_eval

    _check(ranking, query_ids, qrels, ks)
    binary = {query_id: dict.fromkeys(_targets_of(query_id, qrels, targets), 1) for query_id in qrels}
    graded = {query_id: {s: g for s, g in grades.items() if g > 0} for query_id, grades in qrels.items()}
    depths, cuts = sorted(set(ks)), sorted({*ks, NDCG_DEPTH})
    # trec_eval ranks by score and breaks ties by document id, so it gets scores made from our order.
    run = {
        query_id: dict(zip(ids, range(len(ids), 0, -1), strict=True))
        for query_id, ids in zip(query_ids, ranking.ids, strict=True)
    }
    measures = {f"recall.{_commas(depths)}", f"ndcg_cut.{_commas(cuts)}", "recip_rank", "map"}
    by_target = pytrec_eval.RelevanceEvaluator(binary, measures).evaluate(run)
    is_graded = binary != graded
    by_grade = by_target
    if is_graded:
        by_grade = pytrec_eval.RelevanceEvaluator(graded, {f"ndcg_cut.{_commas(cuts)}"}).evaluate(run)

    ids = list(qrels)
    columns = {f"recall@{k}": _column(by_target, ids, f"recall_{k}") for k in depths}
    columns |= {f"ndcg@{k}": _column(by_grade, ids, f"ndcg_cut_{k}") for k in cuts}
    columns["mrr"] = _column(by_target, ids, "recip_rank")
    columns["map"] = _column(by_target, ids, "map")
    columns |= {f"complete@{k}": (columns[f"recall@{k}"] == 1.0).astype(float) for k in depths}
    several = np.array([len(binary[query_id]) > 1 for query_id in ids])
    if several.any():
        kept = {query_id: set(list_[:NDCG_DEPTH]) for query_id, list_ in zip(query_ids, ranking.ids, strict=True)}
        covered = np.array([binary[query_id].keys() <= kept.get(query_id, set()) for query_id in ids])
        columns[FULL_COVERAGE] = np.where(several, covered.astype(float), np.nan)
    if is_graded:
        columns[BINARY_NDCG] = _column(by_target, ids, f"ndcg_cut_{NDCG_DEPTH}")
    return Scores(ids, list(columns), np.stack(list(columns.values()), axis=1))


def _targets_of(query_id: str, qrels: Qrels, targets: Targets | None) -> Collection[str]:
    found = (targets or {}).get(query_id)
    if found is None:
        found = [skill_id for skill_id, grade in qrels[query_id].items() if grade > 0]
    if not found:
        raise ValueError(f"query {query_id!r} has no relevant skill; expected a grade of at least 1 for one")
    return found


def _column(found: Mapping[str, Mapping[str, float]], ids: Sequence[str], measure: str) -> np.ndarray:
    return np.array([found.get(query_id, {}).get(measure, 0.0) for query_id in ids])


def _commas(ks: Iterable[int]) -> str:
    return ",".join(str(k) for k in ks)


def _check(ranking: Ranking, query_ids: Sequence[str], qrels: Qrels, ks: Sequence[int]) -> None:
    if len(query_ids) != len(ranking.ids):
        raise ValueError(f"{len(ranking.ids)} rankings for {len(query_ids)} query ids; expected one each")
    if not qrels:
        raise ValueError("qrels are empty; expected the relevant skills of at least one query")
    bad = [k for k in ks if k < 1]
    if bad or not ks:
        raise ValueError(f"depths are {list(ks)}; expected positive numbers, at least one")
    seen: set[str] = set()
    for row, (query_id, ids) in enumerate(zip(query_ids, ranking.ids, strict=True)):
        if query_id not in qrels:
            raise ValueError(f"query id {query_id!r} (row {row}) has no qrels; expected one of their {len(qrels)} ids")
        if query_id in seen:
            raise ValueError(f"query id {query_id!r} occurs twice, the second time in row {row}")
        seen.add(query_id)
        if len(set(ids)) != len(ids):
            twice = next(skill_id for i, skill_id in enumerate(ids) if skill_id in ids[:i])
            raise ValueError(f"ranking of query {query_id!r} lists skill {twice!r} twice")
