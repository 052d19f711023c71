"""Four-source negative mining (D.1, Table 13): skill neighbours, query neighbours, same category, cross category."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from data_pipeline.corpus import Skill

SKILL_NEIGHBOURS = "skill_neighbours"
QUERY_NEIGHBOURS = "query_neighbours"
SAME_CATEGORY = "same_category"
CROSS_CATEGORY = "cross_category"
SOURCES = (SKILL_NEIGHBOURS, QUERY_NEIGHBOURS, SAME_CATEGORY, CROSS_CATEGORY)

QueryRanker = Callable[[Sequence[str], int], Sequence[Sequence[str]]]
"""(requests, k) -> per request at least the k best skill ids that there are, best first."""

Category = Callable[[Skill], str]


@dataclass(frozen=True)
class NegativeQuotas:
    """How many negatives each source supplies, in the order of selection (Table 13)."""

    skill_neighbours: int = 4
    query_neighbours: int = 3
    same_category: int = 2
    cross_category: int = 1

    def __post_init__(self) -> None:
        for source in SOURCES:
            if getattr(self, source) < 0:
                raise ValueError(f"quotas.{source} = {getattr(self, source)}: expected 0 or more")
        if self.total == 0:
            raise ValueError("quotas: all four are 0; a record needs at least one negative")

    @property
    def total(self) -> int:
        return sum(getattr(self, source) for source in SOURCES)


@dataclass(frozen=True)
class NegativeSet:
    """The ordered negatives of one record and the source of each."""

    ids: tuple[str, ...]
    sources: tuple[str, ...]


class Shortfall(NamedTuple):
    """A source that could not fill its quota."""

    source: str
    wanted: int
    found: int


def category_from_prefix(skill: Skill) -> str:
    """The id up to its first ``/``: the category in the paper's corpus and the sample library (D.1)."""
    return skill.skill_id.split("/", 1)[0]


def quotas_for(quotas: NegativeQuotas, categories: Mapping[str, str]) -> NegativeQuotas:
    """The quotas a library can fill: without categories, the sampled negatives all come from the one source there is.

    In a flat folder every id is a category of its own, and under a single subfolder all share one; Table 13's split between
    same-category and cross-category samples means nothing there, and would drop every record.
    """
    sampled = quotas.same_category + quotas.cross_category
    count = len(set(categories.values()))
    if count == len(categories):
        return replace(quotas, same_category=0, cross_category=sampled)
    if count == 1:
        return replace(quotas, same_category=sampled, cross_category=0)
    return quotas


class NegativeMiner:
    """Selects the negatives of a record; the outcome depends on that record alone, not on the order of records.

    Args:
        categories: skill id -> category, for every skill of the corpus.
        exclusions: symmetric adjacency map of the exclusion graph.
        skill_neighbours: positive id -> its nearest skills, best first (D.1: the embedding top-50).
        seed: of the two sampled sources, combined with the record's id.
    """

    def __init__(
        self,
        categories: Mapping[str, str],
        exclusions: Mapping[str, frozenset[str]],
        skill_neighbours: Mapping[str, Sequence[str]],
        quotas: NegativeQuotas | None = None,
        seed: int = 42,
    ) -> None:
        self._categories, self._exclusions, self._skill_neighbours = categories, exclusions, skill_neighbours
        self.quotas, self._seed = quotas or NegativeQuotas(), seed
        # Sorted: the order of the corpus file must not change what is sampled.
        self._all = sorted(categories)
        self._members: dict[str, list[str]] = {}
        for skill_id in self._all:
            self._members.setdefault(categories[skill_id], []).append(skill_id)

    def mine(self, record_id: str, positive_id: str, query_neighbours: Sequence[str]) -> NegativeSet | Shortfall:
        """The negatives of one record, or the first source that could not fill its quota (D.1: no repair).

        ``query_neighbours`` are the skills its request retrieves, best first. Raises KeyError for a positive that the
        corpus does not have.
        """
        category = self._categories[positive_id]
        generator = random.Random(f"{self._seed}:{record_id}")
        # F(q) = {positive} and its neighbours in the exclusion graph; each source adds what it chose.
        forbidden = {positive_id} | self._exclusions.get(positive_id, frozenset())
        candidates = {
            SKILL_NEIGHBOURS: lambda: iter(self._skill_neighbours.get(positive_id, ())),
            QUERY_NEIGHBOURS: lambda: iter(query_neighbours),
            SAME_CATEGORY: lambda: _shuffled(self._members[category], generator),
            CROSS_CATEGORY: lambda: (s for s in _shuffled(self._all, generator) if self._categories[s] != category),
        }
        ids: list[str] = []
        sources: list[str] = []
        for source in SOURCES:
            wanted = getattr(self.quotas, source)
            chosen = self._admissible(candidates[source](), forbidden, wanted) if wanted else []
            if len(chosen) < wanted:
                return Shortfall(source, wanted, len(chosen))
            ids += chosen
            sources += [source] * wanted
        return NegativeSet(tuple(ids), tuple(sources))

    def _admissible(self, candidates: Iterator[str], forbidden: set[str], wanted: int) -> list[str]:
        """The first ``wanted`` candidates that the corpus has and that are not forbidden; they become forbidden."""
        chosen: list[str] = []
        for skill_id in candidates:
            if skill_id not in forbidden and skill_id in self._categories:
                chosen.append(skill_id)
                forbidden.add(skill_id)
                if len(chosen) == wanted:
                    break
        return chosen


def _shuffled(items: Sequence[str], generator: random.Random) -> Iterator[str]:
    """``items`` in uniformly random order, drawn one by one: a record takes three of perhaps 65,714."""
    moved: dict[int, int] = {}  # Fisher-Yates on a list that is never copied
    for last in range(len(items) - 1, -1, -1):
        drawn = generator.randrange(last + 1)
        yield items[moved.get(drawn, drawn)]
        moved[drawn] = moved.get(last, last)
