"""What every benchmark becomes when it is loaded: a corpus, requests with graded labels, suites, and how it is scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import BenchQuery


@dataclass(frozen=True)
class Protocol:
    """How a benchmark is scored.

    Attributes:
        description: one sentence for reports.
        headline: the metrics that its paper reports, in that order; they get confidence intervals.
        macro: whether the plain average over suites is reported beside the mean over all requests.
    """

    description: str
    headline: tuple[str, ...] = ("recall@1", "recall@5", "recall@10", "ndcg@10")
    macro: bool = False


OPEN_PROTOCOL = Protocol("fractional recall; NDCG with the grades of the file, binary where it has none")


@dataclass(frozen=True)
class Benchmark:
    """A benchmark ready to run.

    Attributes:
        name: how results call it.
        corpus: the skills that are ranked.
        queries: requests with their grades; each has at least one target in the corpus.
        protocol: how it is scored.
        source: folder or files it was read from.
        targets: what recall, MAP, MRR and coverage count, by query id, where that is not "every grade above 0".
        suites: the suite of each query id; empty where a benchmark has none.
        notes: sentences about what was left out and which counts differ from the published ones.
    """

    name: str
    corpus: SkillCorpus
    queries: list[BenchQuery]
    protocol: Protocol
    source: str
    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    suites: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def qrels(self) -> dict[str, dict[str, int]]:
        """Grades by query id, in the order of the requests."""
        return {query.query_id: query.qrels for query in self.queries}

    def target_ids(self, query: BenchQuery) -> tuple[str, ...]:
        """The skills that answer a request."""
        found = self.targets.get(query.query_id)
        return tuple(skill_id for skill_id, grade in query.qrels.items() if grade > 0) if found is None else found

    def suite_queries(self) -> dict[str, list[str]]:
        """Query ids by suite, suites in the order of their first request."""
        out: dict[str, list[str]] = {}
        for query in self.queries:
            if query.query_id in self.suites:
                out.setdefault(self.suites[query.query_id], []).append(query.query_id)
        return out


@dataclass(frozen=True)
class Expected:
    """Published counts (Table 1 of the paper, and the benchmarks' own). None and empty: not published.

    ``words`` is the mean length of the requests to one decimal, over the suites that are not in ``words_without``.
    ``suites`` are requests by suite.
    """

    queries: int
    skills: int
    words: float | None = None
    words_without: tuple[str, ...] = ()
    suites: Mapping[str, int] = field(default_factory=dict)
    gold_skills: int | None = None
    source: str = "Table 1"


def differences(benchmark: Benchmark, expected: Expected, hint: str = "") -> list[str]:
    """A sentence for each count of the benchmark that is not the published one, ``hint`` behind the last."""
    pairs: list[tuple[str, float, float]] = [
        ("queries", expected.queries, len(benchmark.queries)),
        ("skills", expected.skills, len(benchmark.corpus)),
    ]
    if expected.gold_skills is not None:
        golds = {skill_id for query in benchmark.queries for skill_id in benchmark.target_ids(query)}
        pairs.append(("different target skills", expected.gold_skills, len(golds)))
    found = Counter(benchmark.suites.values())
    pairs += [(f"queries of {suite}", count, found[suite]) for suite, count in expected.suites.items()]
    measured = [q for q in benchmark.queries if benchmark.suites.get(q.query_id) not in expected.words_without]
    if expected.words is not None and measured:
        words = sum(len(query.query.split()) for query in measured) / len(measured)
        pairs.append(("words a query", expected.words, round(words, 1)))
    out = [
        f"{benchmark.name}: expected {wanted:,} {what} ({expected.source}), found {got:,}"
        for what, wanted, got in pairs
        if wanted != got
    ]
    return [*out[:-1], f"{out[-1]}; {hint}"] if out and hint else out


def count_note(count: int, what: str) -> Sequence[str]:
    """A note on something that was left out, or none where nothing was."""
    return [f"{count:,} {what}"] if count else []
