"""Online query expansion (3.4 of the Skill2Query paper): variants of a request, made with what a seed skill can do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from data_pipeline.phrases import words_of
from data_pipeline.skill2query.graph import Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from retrieval.bm25 import BM25Index
from retrieval.fusion import fuse_lists
from retrieval.ranking import Ranking, check_k
from retrieval.retriever import FUSION_DEPTH, Retriever

VARIANTS = 3
SEEDS = 1

Seed = tuple[SkillGraph, Sequence[PseudoQuery]]
"""A skill that a first search found: its graph and its pseudo-queries."""

_VALUE_PATTERNS = {
    ParameterType.INTEGER: re.compile(r"(?<![\w.])-?\d+(?![\w.]*\w)"),
    ParameterType.NUMBER: re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)"),
    ParameterType.URL: re.compile(r"https?://[^\s,;\"')]+"),
    ParameterType.PATH: re.compile(r"(?<!\w)(?:[\w.~-]*/)*[\w-]+\.[A-Za-z][A-Za-z0-9]{1,4}\b"),
    ParameterType.DATE: re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
}
_STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "do",
        "for",
        "from",
        "get",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
        "that",
        "the",
        "this",
        "to",
        "we",
        "with",
    ]
)


def expand(request: str, seed: Seed, variants: int = VARIANTS) -> list[str]:
    """Up to ``variants`` wordings of a request, conditioned on it and on one seed skill; deterministic.

    The seed's templates whose capability and text share most words with the request come first, each template once. A slot is
    filled with what the request itself gives for it, where a value of the parameter's type, enumeration or examples stands
    there, else as in the pseudo-query. Each variant begins with the request: a wrong seed adds words, but takes none away.
    """
    graph, queries = seed
    wanted = _content(request)
    parameters = {parameter.node_id: parameter for parameter in graph.parameters}
    by_template: dict[str, PseudoQuery] = {}
    for query in queries:
        by_template.setdefault(query.template_id, query)
    scored = [
        (-_overlap(wanted, f"{query.capability} {query.query}"), not query.valid, number, query)
        for number, query in enumerate(by_template.values())
    ]
    texts = (_fill(query, request, graph, parameters) for *_, query in sorted(scored, key=lambda row: row[:3]))
    different = dict.fromkeys(text for text in texts if text.lower() != request.lower())
    return [f"{request} {text}" for text in list(different)[:variants]]


@dataclass(frozen=True)
class ExpandedRetriever:
    """A retriever whose ranking of a request is fused with its rankings of the request's variants (readings: Σ 1/(60 + rank)).

    A first search finds the seed skills; the variants of each are searched as well. The request itself always counts once, each
    variant once.

    Args:
        retriever: BM25, dense or hybrid.
        seed: graph and pseudo-queries of a skill by its id; None where there are none, and the request stands alone.
        variants: for each seed.
        seeds: the first search's best so many skills.
    """

    retriever: Retriever
    seed: Callable[[str], Seed | None]
    variants: int = VARIANTS
    seeds: int = SEEDS

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """The ``k`` best of the fused lists, each at least :data:`retrieval.retriever.FUSION_DEPTH` deep, with fused scores."""
        check_k(k)
        depth = max(k, FUSION_DEPTH)
        first = self._lists(queries, depth)
        variants = [self._variants(query, found) for query, found in zip(queries, first, strict=True)]
        more = iter(self._lists([text for texts in variants for text in texts], depth))
        rows = [
            fuse_lists([found, *(next(more) for _ in texts)], k) for found, texts in zip(first, variants, strict=True)
        ]
        return Ranking.from_rows(rows)

    def _variants(self, request: str, found: Sequence[str]) -> list[str]:
        seeds = (self.seed(skill_id) for skill_id in found[: self.seeds])
        return list(dict.fromkeys(text for seed in seeds if seed for text in expand(request, seed, self.variants)))

    def _lists(self, queries: Sequence[str], depth: int) -> list[list[str]]:
        if not queries:
            return []
        if isinstance(self.retriever, BM25Index):  # the order of documents without a word of the request says nothing
            return self.retriever.search(queries, depth, matched_only=True).ids
        return self.retriever.search(queries, depth).ids


def seeds_of(graphs: Iterable[SkillGraph], queries: Iterable[PseudoQuery]) -> dict[str, Seed]:
    """What :class:`ExpandedRetriever` asks for, by skill id; skills without a pseudo-query are left out."""
    by_skill: dict[str, list[PseudoQuery]] = {}
    for query in queries:
        by_skill.setdefault(query.skill_id, []).append(query)
    return {graph.skill_id: (graph, by_skill[graph.skill_id]) for graph in graphs if graph.skill_id in by_skill}


def value_in(request: str, parameter: Parameter) -> str | None:
    """What a request says about a parameter: an enumerated or example value that stands in it, else the first of its type."""
    named = [*parameter.values, *parameter.examples]
    for value in sorted(filter(None, named), key=len, reverse=True):
        found = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", request, re.IGNORECASE)
        if found:
            return value if value in parameter.values else found.group()
    pattern = None if parameter.values else _VALUE_PATTERNS.get(parameter.type)
    for found in pattern.finditer(request) if pattern else ():
        if _in_range(found.group(), parameter):
            return found.group()
    return None


def _in_range(value: str, parameter: Parameter) -> bool:
    if parameter.type not in (ParameterType.INTEGER, ParameterType.NUMBER):
        return True
    low, high, number = parameter.minimum, parameter.maximum, float(value)
    return (low is None or number >= low) and (high is None or number <= high)


def _fill(query: PseudoQuery, request: str, graph: SkillGraph, parameters: dict[str, Parameter]) -> str:
    """The pseudo-query, or its template where the request gives one of its slots another value.

    The pseudo-query itself is better English: its filler has made articles and plurals agree.
    """
    by_name = {_plain(parameter.name): parameter for parameter in parameters.values()}
    given = {}
    for slot in query.slots:
        parameter = by_name.get(_plain(slot))
        value = value_in(request, parameter) if parameter else None
        if value is not None:
            given[slot] = value
    if not given:
        return query.query
    text = query.template
    for slot, value in {**query.slots, **given}.items():
        text = text.replace(f"{{{slot}}}", value)
    return text


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _content(text: str) -> set[str]:
    return {word for word in words_of(text) if word not in _STOP_WORDS}


def _overlap(wanted: set[str], text: str) -> float:
    """Cosine of two sets of words: |A ∩ B| / sqrt(|A|·|B|)."""
    words = _content(text)
    return len(wanted & words) / (len(wanted) * len(words)) ** 0.5 if wanted and words else 0.0
