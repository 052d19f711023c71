"""When two skills are too alike for one to be a negative of the other, or one may stand in for the other (C.4, E.5)."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.isolation import normalize

_PART = re.compile(r"[a-z0-9]+")
RARE_IN = 3
"""A word that so few skills have is rare; two skills that share several of them may be the same work."""
RARE_SHARED = 3


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """|A ∩ B| / |A ∪ B|; 0 where both are empty."""
    union = len(left | right)
    return len(left & right) / union if union else 0.0


@dataclass(frozen=True)
class SkillTerms:
    """What overlaps are measured on: words of the normalized name, alphanumeric parts of the id, words of the document."""

    skill: Skill

    @cached_property
    def name(self) -> frozenset[str]:
        return frozenset(normalize(self.skill.name).split())

    @cached_property
    def id_parts(self) -> frozenset[str]:
        return frozenset(_PART.findall(self.skill.skill_id.lower()))

    @cached_property
    def text(self) -> str:
        return normalize(self.skill.document)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(self.text.split())

    @cached_property
    def body(self) -> str:
        return normalize(self.skill.body)


@dataclass(frozen=True)
class OverlapLimits:
    """E.5's thresholds; a pair that reaches one of them overlaps."""

    name_jaccard: float = 0.60
    id_jaccard: float = 0.80
    text_jaccard: float = 0.60
    cosine: float = 0.85


def overlap_reason(left: SkillTerms, right: SkillTerms, cosine: float, limits: OverlapLimits) -> str:
    """The first filter of E.5 that a pair falls under, or "": same_name, same_id, same_text, contained, near_vector.

    ``text`` is the document that retrievers see, as a set of normalized words.
    """
    if jaccard(left.name, right.name) >= limits.name_jaccard:
        return "same_name"
    if jaccard(left.id_parts, right.id_parts) >= limits.id_jaccard:
        return "same_id"
    if jaccard(left.words, right.words) >= limits.text_jaccard:
        return "same_text"
    if contains(left, right):
        return "contained"
    return "near_vector" if cosine >= limits.cosine else ""


def contains(left: SkillTerms, right: SkillTerms) -> bool:
    """One document's body stands whole in the other's; bodies of less than 100 characters do not count."""
    short, long = sorted((left.body, right.body), key=len)
    return len(short) >= 100 and short in long


class AlternativeFinder:
    """Proposes skills that may also satisfy a request made for a target (C.4); what they are is judged by somebody else.

    Signals: ``name`` (equal normalized names), ``document`` (equal bodies), ``repository`` (same repository, names that
    overlap), ``overlap`` (names, ids or documents alike), ``contained``, ``rare_words`` (several words that hardly any other
    skill has), ``dense``.
    """

    def __init__(self, corpus: SkillCorpus, limits: OverlapLimits):
        self.limits = limits
        self._corpus = corpus
        # Only what the indexes need is kept: the words of 65,714 documents would fill gigabytes.
        names = [normalize(skill.name) for skill in corpus]
        self._by_name = _index((name, i) for i, name in enumerate(names) if name)
        self._by_body = _index((digest, i) for i, s in enumerate(corpus) if (digest := _body_digest(s)))
        self._by_repo = _index((repo, i) for i, skill in enumerate(corpus) if (repo := _repository(skill)))
        counts = Counter(sys.intern(word) for skill in corpus for word in SkillTerms(skill).words)
        rare = {word for word, count in counts.items() if 1 < count <= RARE_IN}
        self._rare = _index((word, i) for i, skill in enumerate(corpus) for word in rare & SkillTerms(skill).words)
        self._compared: dict[int, SkillTerms] = {}

    def propose(self, target_id: str, dense: Mapping[str, float], cosine: float) -> dict[str, list[str]]:
        """Candidate id to its signals, in corpus order.

        Args:
            dense: cosines of the target's nearest skills; their names and documents are compared with the target's.
            cosine: from which a neighbour is a candidate by itself.
        """
        own = self._corpus.position(target_id)
        target = self._terms(own)
        found: dict[int, list[str]] = {}

        def add(positions: Iterable[int], signal: str) -> None:
            for i in positions:
                if i != own:
                    found.setdefault(i, []).append(signal)

        add(self._by_name.get(normalize(target.skill.name), ()), "name")
        add(self._by_body.get(_body_digest(target.skill), ()), "document")
        same_repo = self._by_repo.get(_repository(target.skill), ())
        add(
            (i for i in same_repo if jaccard(self._terms(i).name, target.name) >= self.limits.name_jaccard),
            "repository",
        )
        shared = Counter(i for word in target.words for i in self._rare.get(word, ()))
        add(sorted(i for i, n in shared.items() if n >= RARE_SHARED), "rare_words")
        add((self._corpus.position(s) for s, value in dense.items() if value >= cosine), "dense")
        for i in sorted({*(self._corpus.position(s) for s in dense), *found} - {own}):
            reason = overlap_reason(target, self._terms(i), -1.0, self.limits)
            if reason:
                add([i], "contained" if reason == "contained" else "overlap")
        return {self._corpus.ids[i]: signals for i, signals in sorted(found.items())}

    def _terms(self, position: int) -> SkillTerms:
        return self._compared.setdefault(position, SkillTerms(self._corpus[position]))


def _repository(skill: Skill) -> str:
    return next((skill.metadata[key] for key in ("repo", "repository", "repo_url") if skill.metadata.get(key)), "")


def _body_digest(skill: Skill) -> str:
    body = normalize(skill.body)
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest() if body else ""


def _index(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for key, position in pairs:
        out.setdefault(key, []).append(position)
    return out


def balanced_sample(ids: Sequence[str], domains: Sequence[str], size: int, order: Sequence[float]) -> list[str]:
    """Up to ``size`` ids, in input order, with domains as even as they allow; of a domain those of the smallest ``order``."""
    rows: dict[str, list[int]] = {}
    for i in sorted(range(len(ids)), key=lambda i: (order[i], i)):
        rows.setdefault(domains[i], []).append(i)
    chosen: set[int] = set()
    depth = 0
    while len(chosen) < min(size, len(ids)):
        for domain in sorted(rows):
            if depth < len(rows[domain]) and len(chosen) < size:
                chosen.add(rows[domain][depth])
        depth += 1
    return [ids[i] for i in sorted(chosen)]


def stratified_sample(ids: Sequence[str], strata: Sequence[str], size: int, order: Sequence[float]) -> list[str]:
    """Up to ``size`` ids, in input order, each stratum in its share (largest remainders; ties by name); within a stratum
    those of the smallest ``order``."""
    rows: dict[str, list[int]] = {}
    for i in sorted(range(len(ids)), key=lambda i: (order[i], i)):
        rows.setdefault(strata[i], []).append(i)
    wanted = min(size, len(ids))
    exact = {name: wanted * len(members) / len(ids) for name, members in rows.items()}
    counts = {name: int(share) for name, share in exact.items()}
    remainders = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in remainders[: wanted - sum(counts.values())]:
        counts[name] += 1
    return [ids[i] for i in sorted(i for name, members in rows.items() for i in members[: counts[name]])]
