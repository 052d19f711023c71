"""Self-retrieval: every skill's own pseudo-queries against the whole library, and what follows from who is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from tqdm import tqdm

from data_pipeline.corpus import SkillCorpus
from data_pipeline.quality import content_words
from data_pipeline.skill2query.augment import select_queries
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from retrieval.bm25 import BM25Index
from retrieval.retriever import Retriever

DEPTH = 100
"""Ranks below are one: not found."""
TOP = 10
INFORMATIVE_WORDS = 3
"""Content words of a capability from which its request can be told from others: "write a report" has two."""
HUB_DEVIATIONS = 3.0
"""Standard deviations above the mean from which a skill that turns up for others' requests is a hub."""
STOLEN_REQUESTS, STOLEN_SHARE = 2, 0.3
"""Requests of a skill, in number and in share, for which the same other skill comes first: from here on a pair is confusable."""
_BLOCK = 512


@dataclass(frozen=True)
class Request:
    """A pseudo-query: the row of the skill that it was made from, its text, and the capability that it asks for."""

    owner: int
    text: str
    capability: str


@dataclass(frozen=True)
class Reach:
    """What a retriever found for the requests.

    Attributes:
        n_skills: size of the library.
        owners: ``[Q]`` row of each request's own skill.
        ranks: ``[Q]`` rank of that skill, from 1; 0 where it is not among the first :data:`DEPTH`.
        top: ``[Q, TOP]`` rows of the first skills, -1 where fewer were found.
    """

    n_skills: int
    owners: np.ndarray
    ranks: np.ndarray
    top: np.ndarray

    @property
    def depth(self) -> int:
        """How many results count as found: ten, and in a library of fewer than a hundred skills a tenth of it."""
        return reach_depth(self.n_skills)

    @property
    def requests(self) -> np.ndarray:
        """``[n]`` requests of each skill."""
        return np.bincount(self.owners, minlength=self.n_skills)

    def found(self, depth: int) -> np.ndarray:
        """``[n]`` how many of a skill's requests have it among the first ``depth``."""
        hit = (self.ranks > 0) & (self.ranks <= depth)
        return np.bincount(self.owners[hit], minlength=self.n_skills)

    def recall(self, depth: int) -> float:
        """Share of all requests that have their own skill among the first ``depth``."""
        return float(np.mean((self.ranks > 0) & (self.ranks <= depth))) if len(self.ranks) else 0.0

    @property
    def occurrences(self) -> np.ndarray:
        """``[n]`` requests of *other* skills that have a skill among the first :attr:`depth`: the k-occurrence N_k."""
        top = self.top[:, : self.depth]
        foreign = top[(top >= 0) & (top != self.owners[:, None])]
        return np.bincount(foreign, minlength=self.n_skills)

    def stolen(self) -> Counter[tuple[int, int]]:
        """(own skill, first skill) -> how many of the one's requests have the other first."""
        first = self.top[:, 0]
        lost = (first >= 0) & (first != self.owners)
        return Counter(zip(self.owners[lost].tolist(), first[lost].tolist(), strict=True))


def reach_depth(n_skills: int) -> int:
    """See :attr:`Reach.depth`."""
    return max(1, min(TOP, n_skills // 10))


def own_requests(
    corpus: SkillCorpus, queries: Iterable[PseudoQuery], per_skill: int, max_queries: int
) -> list[Request]:
    """At most ``per_skill`` pseudo-queries a skill, fewer where all skills together would exceed ``max_queries``.

    Queries for capabilities of few words are left out where a skill has others: no index could tell whose they are.
    ``queries`` may be a stream, those of a skill one after another; those of unknown skills are left out.
    """
    limit = max(1, min(per_skill, max_queries // len(corpus)))
    return [request for own in _by_skill(corpus, queries) for request in _chosen(corpus, own, limit)]


def _by_skill(corpus: SkillCorpus, queries: Iterable[PseudoQuery]) -> Iterator[list[PseudoQuery]]:
    for skill_id, group in groupby(queries, key=lambda query: query.skill_id):
        if skill_id in corpus:
            yield list(group)


def _chosen(corpus: SkillCorpus, own: list[PseudoQuery], limit: int) -> list[Request]:
    informative = [q for q in own if len(content_words(q.capability or q.query)) >= INFORMATIVE_WORDS]
    pool = informative or own
    capability = {" ".join(query.query.split()): query.capability or query.query for query in pool}
    owner = corpus.position(own[0].skill_id)
    return [Request(owner, text, capability[text]) for text in select_queries(pool, limit)]


def self_retrieval(
    corpus: SkillCorpus, retriever: Retriever, requests: Sequence[Request], progress: bool = False
) -> Reach:
    """Search every request, a block at a time, and keep its own skill's rank and the first :data:`TOP` skills."""
    ranks = np.zeros(len(requests), dtype=np.int32)
    top = np.full((len(requests), TOP), -1, dtype=np.int32)
    bar = tqdm(total=len(requests), desc="self-retrieval", unit="request", disable=not progress)
    with bar:
        for start in range(0, len(requests), _BLOCK):
            block = requests[start : start + _BLOCK]
            for row, ids in enumerate(_found(retriever, [request.text for request in block]), start=start):
                own = corpus.ids[requests[row].owner]
                if own in ids:
                    ranks[row] = ids.index(own) + 1
                first = [corpus.position(skill_id) for skill_id in ids[:TOP]]
                top[row, : len(first)] = first
            bar.update(len(block))
    owners = np.array([request.owner for request in requests], dtype=np.int64)
    return Reach(len(corpus), owners, ranks, top)


def _found(retriever: Retriever, texts: list[str]) -> list[list[str]]:
    if isinstance(
        retriever, BM25Index
    ):  # skills without a common word are not found, whatever place they are listed at
        return retriever.search(texts, DEPTH, matched_only=True).ids
    return retriever.search(texts, DEPTH).ids


@dataclass(frozen=True)
class Hub:
    """A skill that is among the first results of far more requests of other skills than is usual.

    Attributes:
        skill: its row.
        occurrences: N_k, such requests.
        victims: how many other skills they were made from.
        firsts: for how many of them it came first.
    """

    skill: int
    occurrences: int
    victims: int
    firsts: int


def hubs(reach: Reach) -> tuple[list[Hub], float]:
    """Skills with N_k over its mean plus :data:`HUB_DEVIATIONS` standard deviations, most first; and that threshold."""
    counts = reach.occurrences
    threshold = float(counts.mean() + HUB_DEVIATIONS * counts.std())
    top = reach.top[:, : reach.depth]
    out = []
    for skill in np.flatnonzero(counts > threshold).tolist():
        rows = (top == skill).any(axis=1) & (reach.owners != skill)
        firsts = int((reach.top[rows, 0] == skill).sum())
        out.append(Hub(skill, int(counts[skill]), len(np.unique(reach.owners[rows])), firsts))
    return sorted(out, key=lambda hub: (-hub.occurrences, hub.skill)), threshold


@dataclass(frozen=True)
class Confusion:
    """Two skills of which one at least takes the other's requests.

    Attributes:
        a, b: rows, a before b.
        a_to_b: requests of a for which b comes first.
        b_to_a: requests of b for which a comes first.
    """

    a: int
    b: int
    a_to_b: int
    b_to_a: int

    @property
    def total(self) -> int:
        return self.a_to_b + self.b_to_a


def confusions(reach: Reach) -> list[Confusion]:
    """Pairs in which one skill loses at least two requests, and three tenths of all that it has, to the other; most first."""
    stolen, requests = reach.stolen(), reach.requests
    pairs = {
        (min(own, first), max(own, first))
        for (own, first), count in stolen.items()
        if count >= STOLEN_REQUESTS and count >= STOLEN_SHARE * requests[own]
    }
    found = [Confusion(a, b, stolen[a, b], stolen[b, a]) for a, b in pairs]
    return sorted(found, key=lambda pair: (-pair.total, pair.a, pair.b))
