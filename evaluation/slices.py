"""Slices of a benchmark: where a retriever is good, by length of the request, domain, and words shared with the target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_pipeline.quality import content_words
from evaluation.benchmarks.base import Benchmark
from evaluation.metrics import Scores
from evaluation.significance import bootstrap_means, intervals

OVERLAP_EDGES = (0.0, 0.1, 0.25)
"""Upper ends of the shares of shared words: none, up to 10%, up to 25%, and more."""
_OVERLAP_NAMES = ("no shared word", "up to 10%", "10% to 25%", "over 25%")
MAX_DOMAINS = 12
"""Domains shown on their own, the largest ones; the rest is one slice."""


def target_overlap(benchmark: Benchmark) -> dict[str, float]:
    """Lexical overlap by query id: the share (0..1) of a request's content words that stand in the name or description of one
    of its targets.

    Content words are lower-cased runs of letters and digits of two and more characters that are no English function words
    (:func:`data_pipeline.quality.content_words`). A request without any has overlap 0.
    """
    out = {}
    for query in benchmark.queries:
        words = content_words(query.query)
        skills = [benchmark.corpus.get(skill_id) for skill_id in benchmark.target_ids(query)]
        theirs = content_words(" ".join(f"{skill.name} {skill.description}" for skill in skills))
        out[query.query_id] = len(words & theirs) / len(words) if words else 0.0
    return out


def slice_labels(benchmark: Benchmark) -> dict[str, dict[str, str]]:
    """The slices: kind (``length``, ``domain``, ``overlap``) -> query id -> name, names in the order they are shown.

    Lengths are cut into thirds of the requests, as near as equal lengths allow. A kind with one slice says nothing and is left
    out.
    """
    kinds = {"length": _lengths(benchmark), "domain": _domains(benchmark), "overlap": _overlaps(benchmark)}
    if kinds["domain"] == dict(benchmark.suites):  # told already
        del kinds["domain"]
    return {kind: labels for kind, labels in kinds.items() if len(set(labels.values())) > 1}


def slice_rows(
    scores: Scores, labels: Mapping[str, Mapping[str, str]], names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """For each kind a row a slice: ``slice``, ``n_queries``, ``metrics`` and ``intervals`` (95%, bootstrap) of ``names``."""
    out: dict[str, list[dict[str, Any]]] = {}
    for kind, of_query in labels.items():
        out[kind] = []
        for label in dict.fromkeys(of_query.values()):
            chosen = scores.select(names, {query_id for query_id, name in of_query.items() if name == label})
            bounds = intervals(bootstrap_means(chosen.values))
            out[kind].append(
                {
                    "slice": label,
                    "n_queries": len(chosen.query_ids),
                    "metrics": chosen.means(),
                    "intervals": {name: list(pair) for name, pair in zip(chosen.names, bounds, strict=True)},
                }
            )
    return out


def _lengths(benchmark: Benchmark) -> dict[str, str]:
    words = np.array([len(query.query.split()) for query in benchmark.queries])
    edges = np.unique(np.quantile(words, [1 / 3, 2 / 3], method="lower"))
    place = np.searchsorted(edges, words)
    spans = {p: _span(words[place == p].min(), words[place == p].max()) for p in sorted(set(place))}
    return _in_order(benchmark, [spans[p] for p in place], list(spans.values()))


def _span(low: int, high: int) -> str:
    return f"{low} words" if low == high else f"{low} to {high} words"


def _domains(benchmark: Benchmark) -> dict[str, str]:
    found = Counter(query.domain for query in benchmark.queries if query.domain)
    shown = [name for name, _ in found.most_common(MAX_DOMAINS)]
    rest = f"{len(found) - len(shown)} other domains"
    labels = [query.domain if query.domain in shown else rest if query.domain else "" for query in benchmark.queries]
    return _in_order(benchmark, labels, [*sorted(shown), rest])


def _overlaps(benchmark: Benchmark) -> dict[str, str]:
    shares = np.array(list(target_overlap(benchmark).values()))
    labels = [_OVERLAP_NAMES[place] for place in np.searchsorted(OVERLAP_EDGES, shares)]
    return _in_order(benchmark, labels, _OVERLAP_NAMES)


def _in_order(benchmark: Benchmark, labels: Sequence[str], order: Sequence[str]) -> dict[str, str]:
    pairs = zip(benchmark.queries, labels, strict=True)
    return {q.query_id: label for q, label in sorted(pairs, key=lambda pair: _place(pair[1], order)) if label}


def _place(label: str, order: Sequence[str]) -> int:
    return order.index(label) if label in order else len(order)
