"""What one evaluation may share with the next: the benchmark, the retriever's index, and its answers to the same requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.benchmarks import load_benchmark
from evaluation.benchmarks.base import Benchmark
from retrieval.ranking import Ranking
from retrieval.retriever import Retriever


@dataclass
class SearchedOnce:
    """A retriever that remembers its last search: what rerankers reorder is retrieved once for all of them."""

    retriever: Retriever
    _asked: tuple[tuple[str, ...], int] | None = None
    _found: Ranking | None = None

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        """As the retriever's; the same requests at the same depth are not searched again."""
        asked = (tuple(queries), k)
        if self._found is None or self._asked != asked:
            self._found, self._asked = self.retriever.search(queries, k), asked
        return self._found


@dataclass(frozen=True)
class FirstStage:
    """An opened retriever, and what a result file says about it."""

    retriever: Retriever
    notes: dict[str, Any]


@dataclass
class Workbench:
    """Keeps the benchmark and the first stage that were opened last; evaluations in a row share them where they are the same."""

    _benchmark: dict[Any, Benchmark] = field(default_factory=dict)
    _first: dict[Any, FirstStage] = field(default_factory=dict)

    def benchmark(self, bench: str | Path, corpus: str | Path | None, split: str | None) -> Benchmark:
        """See :func:`evaluation.benchmarks.load_benchmark`."""
        key = (str(bench), str(corpus), split)
        if key not in self._benchmark:
            self._first.clear()  # an index over another corpus
            self._benchmark = {key: load_benchmark(bench, corpus, split)}
        return self._benchmark[key]

    def first_stage(self, key: Any, make: Callable[[], FirstStage]) -> FirstStage:
        """The first stage of this key over the benchmark at hand."""
        if key not in self._first:
            self._first.clear()  # before the next one is loaded: two 4B models at once are one too many
            made = make()
            self._first[key] = FirstStage(SearchedOnce(made.retriever), made.notes)
        return self._first[key]
