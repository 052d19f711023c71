"""Recall@k, NDCG@k and MRR of rankings, by pytrec_eval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from retrieval.ranking import Ranking

Qrels = Mapping[str, Mapping[str, int]]
"""Relevant skills of each query: query id -> skill id -> grade (0 is judged and not relevant)."""

NDCG_DEPTH = 10
"""NDCG is always reported at this depth, beside the depths that were asked for."""


def evaluate_ranking(
    ranking: Ranking, query_ids: Sequence[str], qrels: Qrels, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """Means over all queries of ``qrels``: ``recall@k`` and ``ndcg@k`` for each k, ``ndcg@10``, and ``mrr``.

    Fractions between 0 and 1. Recall is fractional for several relevant skills; NDCG has the linear gain of
    trec_eval, so it is binary where all grades are 1; MRR looks at the whole list that was given. A query of
    ``qrels`` that ``query_ids`` lacks, or whose list is empty, counts as zero.

    Args:
        ranking: lists, best first; their order counts, not their scores.
        query_ids: the query of each list.
        qrels: relevant skills by query id.
        ks: depths.

    Raises:
        ValueError: a query id without qrels or twice, a skill twice in a list, a query without a relevant
            skill, a depth below 1, or lists and query ids of different number. The message names the id.
    """
    per_query = query_metrics(ranking, query_ids, qrels, ks)
    return {name: sum(row[name] for row in per_query.values()) / len(per_query) for name in metric_names(ks)}


def metric_names(ks: Sequence[int] = (1, 5, 10)) -> list[str]:
    """Names of the metrics that :func:`evaluate_ranking` gives for these depths, in its order."""
    return [
        *(f"recall@{k}" for k in sorted(set(ks))),
        *(f"ndcg@{k}" for k in sorted({*ks, NDCG_DEPTH})),
        "mrr",
    ]


def query_metrics(
    ranking: Ranking, query_ids: Sequence[str], qrels: Qrels, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, dict[str, float]]:
    """The metrics of :func:`evaluate_ranking` for each query of ``qrels``; raises the same errors."""
    import pytrec_eval

    _check(ranking, query_ids, qrels, ks)
    # trec_eval ranks by score and breaks ties by document id, so it gets scores made from our order.
    run = {
        query_id: {skill_id: float(len(ids) - rank) for rank, skill_id in enumerate(ids)}
        for query_id, ids in zip(query_ids, ranking.ids, strict=True)
    }
    names = {f"recall@{k}": f"recall_{k}" for k in ks}
    names |= {f"ndcg@{k}": f"ndcg_cut_{k}" for k in {*ks, NDCG_DEPTH}}
    names["mrr"] = "recip_rank"
    measures = {f"recall.{_commas(ks)}", f"ndcg_cut.{_commas({*ks, NDCG_DEPTH})}", "recip_rank"}
    evaluator = pytrec_eval.RelevanceEvaluator({q: dict(relevant) for q, relevant in qrels.items()}, measures)
    found = evaluator.evaluate(run)
    return {
        query_id: {name: float(found.get(query_id, {}).get(names[name], 0.0)) for name in metric_names(ks)}
        for query_id in qrels
    }


def _commas(ks: Iterable[int]) -> str:
    return ",".join(str(k) for k in sorted(set(ks)))


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
    for query_id, relevant in qrels.items():
        if not any(grade > 0 for grade in relevant.values()):
            raise ValueError(f"query {query_id!r} has no relevant skill; expected a grade of at least 1 for one")
