"""Quality of pseudo-queries (A.4): Exec-Pass, Func-Coverage and Distinct-3, for each method alike."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from data_pipeline.skill2query.filling import METHODS
from data_pipeline.skill2query.graph import SkillGraph
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from data_pipeline.teacher.offline import content_words

COVERED = 0.5
"""Share of a capability's content words from which a query counts as covering it."""

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ENDINGS = ("ings", "ing", "ies", "ed", "es", "s", "e", "y")


def exec_pass(queries: Sequence[PseudoQuery]) -> float:
    """A.4.1: (1/N) Σ v_i, where v_i is 1 for a result that passes every check and 0 for any other; 0 where there are none."""
    return sum(query.valid for query in queries) / len(queries) if queries else 0.0


def func_coverage(queries: Iterable[PseudoQuery], graphs: Iterable[SkillGraph]) -> float:
    """A.4.2: the mean of |C_cov| / |C| over the skills with capabilities (S_C); 0 where there are none.

    The paper does not say when a query covers a capability. Here it does where it holds at least half of the capability's content
    words (:func:`covers`). The rule looks at the sentence alone, so that it is the same for Skill2Query and for the
    baselines, which name no capability. A skill without any query counts as 0; one without capabilities does not count.
    """
    texts: dict[str, list[str]] = {}
    for query in queries:
        texts.setdefault(query.skill_id, []).append(query.query)
    return _mean(_covered_by_words(graph, texts.get(graph.skill_id, [])) for graph in graphs if graph.capabilities)


def func_coverage_by_trace(queries: Iterable[PseudoQuery], graphs: Iterable[SkillGraph]) -> float:
    """A.4.2 with the capability that each query was written for; only methods that know capabilities have it."""
    named: dict[str, set[str]] = {}
    for query in queries:
        named.setdefault(query.skill_id, set()).add(query.capability_id)
    return _mean(
        sum(c.node_id in named.get(graph.skill_id, ()) for c in graph.capabilities) / len(graph.capabilities)
        for graph in graphs
        if graph.capabilities
    )


def distinct_3(texts: Iterable[str]) -> float:
    """A.4.3: |Unique(G_3)| / |G_3| over the word trigrams of all queries; 0 where no query has three words.

    Words are lower-cased runs of letters and digits, with the apostrophes inside them. A trigram does not go over a query's end.
    """
    total, unique = 0, set()
    for text in texts:
        words = _WORD.findall(text.lower())
        trigrams = list(zip(words, words[1:], words[2:], strict=False))
        total += len(trigrams)
        unique.update(trigrams)
    return len(unique) / total if total else 0.0


def covers(query: str, capability: str) -> bool:
    """Whether at least half of the capability's content words are in the query, endings aside (``tables`` for ``table``)."""
    wanted = stems(capability)
    return bool(wanted) and len(wanted & stems(query)) >= COVERED * len(wanted)


@lru_cache(maxsize=100_000)
def stems(text: str) -> frozenset[str]:
    """The content words of a text without their endings; at least three letters of each stay."""
    return frozenset(_stem(word) for word in content_words(text))


def _stem(word: str) -> str:
    ending = next((end for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= 3), "")
    return word.removesuffix(ending)


def _covered_by_words(graph: SkillGraph, texts: Sequence[str]) -> float:
    covered = sum(any(covers(text, capability.text) for text in texts) for capability in graph.capabilities)
    return covered / len(graph.capabilities)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


@dataclass(frozen=True)
class MethodQuality:
    """The measures of one method's pseudo-queries."""

    method: str
    queries: int
    templates: int
    skills: int  # with at least one query
    exec_pass: float
    exec_pass_slots: (
        float | None
    )  # of the queries that have a slot; the others have nothing that could fail but a missing one
    func_coverage: float
    func_coverage_by_trace: float | None  # None for methods that know no capabilities
    distinct_3: float
    median_words: float
    forms: dict[str, int] = field(hash=False)
    problems: dict[str, int] = field(hash=False)  # queries that fail a check, by its name


@dataclass(frozen=True)
class QualityReport:
    """A.4's table: one row a method, over the same graphs."""

    skills: int
    with_capabilities: int  # |S_C|
    capabilities: int
    methods: tuple[MethodQuality, ...]

    def table(self) -> str:
        """Markdown: shares in percent."""
        lines = [
            "| method | queries | skills | Exec-Pass | with slots | Func-Coverage | by trace | Distinct-3 | median words |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in self.methods:
            shares = (row.exec_pass, row.exec_pass_slots, row.func_coverage, row.func_coverage_by_trace, row.distinct_3)
            cells = " | ".join("–" if share is None else f"{100 * share:.2f}" for share in shares)
            lines.append(f"| {row.method} | {row.queries} | {row.skills} | {cells} | {row.median_words:g} |")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "methods": [asdict(row) for row in self.methods]}


def quality_report(
    queries: Iterable[PseudoQuery], graphs: Mapping[str, SkillGraph] | Iterable[SkillGraph]
) -> QualityReport:
    """The measures of every method that occurs among the queries, over all the graphs.

    Raises:
        ValueError: a query of a skill without a graph.
    """
    listed = list(graphs.values() if isinstance(graphs, Mapping) else graphs)
    known = {graph.skill_id for graph in listed}
    by_method: dict[str, list[PseudoQuery]] = {}
    for query in queries:
        if query.skill_id not in known:
            raise ValueError(
                f"pseudo-query {query.query_id!r} is of skill {query.skill_id!r}, which "
                "the corpus lacks; expected queries of its skills"
            )
        by_method.setdefault(query.method, []).append(query)
    order = sorted(by_method, key=lambda method: (METHODS.index(method) if method in METHODS else len(METHODS), method))
    return QualityReport(
        skills=len(listed),
        with_capabilities=sum(bool(graph.capabilities) for graph in listed),
        capabilities=sum(len(graph.capabilities) for graph in listed),
        methods=tuple(_measure(method, by_method[method], listed) for method in order),
    )


def _measure(method: str, queries: Sequence[PseudoQuery], graphs: Sequence[SkillGraph]) -> MethodQuality:
    with_slots = [query for query in queries if query.slots]
    failed: Counter[str] = Counter()
    for query in queries:
        failed.update({problem.partition(":")[0] for problem in query.problems})
    return MethodQuality(
        method=method,
        queries=len(queries),
        templates=len({query.template_id for query in queries}),
        skills=len({query.skill_id for query in queries}),
        exec_pass=exec_pass(queries),
        exec_pass_slots=exec_pass(with_slots) if with_slots else None,
        func_coverage=func_coverage(queries, graphs),
        func_coverage_by_trace=(
            func_coverage_by_trace(queries, graphs) if any(query.capability_id for query in queries) else None
        ),
        distinct_3=distinct_3(query.query for query in queries),
        median_words=statistics.median(len(query.query.split()) for query in queries),
        forms=dict(sorted(Counter(str(query.form) for query in queries).items())),
        problems=dict(sorted(failed.items())),
    )
