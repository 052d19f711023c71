"""From what was measured to what each skill would need: evidence and one concrete action a finding, worst skills first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.isolation import normalize
from evaluation.library_report.descriptions import SHORT_WORDS, Weak, as_read
from evaluation.library_report.duplicates import COPY, Cluster
from evaluation.library_report.findings import LABELS, Advice, Finding
from evaluation.library_report.reach import Confusion, Hub, Reach, Request
from evaluation.library_report.wording import Wording, overlap
from models.views import DESCRIPTION_CHARS

_RIVALS = 2
"""Skills that a suggestion tells a skill apart from."""
_NAMED = 3
"""Skills that a finding names."""
_ALIKE = 0.25
"""Share of common words from which a finding mentions it."""
_CAPABILITIES = 3


class Adviser:
    """Collects the findings of a library.

    Args:
        corpus, wording: the library and its words.
        requests, reach: the pseudo-queries and what they found.
    """

    def __init__(self, corpus: SkillCorpus, wording: Wording, requests: Sequence[Request], reach: Reach) -> None:
        self.corpus, self.wording, self.reach = corpus, wording, reach
        self._requests, self._first, self._found = reach.requests, reach.found(1), reach.found(reach.depth)
        stolen = reach.stolen()
        self._taken: Counter[int] = Counter()
        self._rivals: dict[int, list[tuple[int, int]]] = {}
        for (own, first), count in stolen.items():
            self._taken[first] += count
            self._rivals.setdefault(own, []).append((count, first))
        for rivals in self._rivals.values():
            rivals.sort(key=lambda pair: (-pair[0], pair[1]))
        self._asked: dict[int, list[str]] = {}
        self._failed: dict[int, list[str]] = {}
        self._example: dict[tuple[int, int], str] = {}
        for request, rank, top in zip(requests, reach.ranks.tolist(), reach.top[:, 0].tolist(), strict=True):
            if rank != 1:
                self._example.setdefault((request.owner, top), request.text)
            self._asked.setdefault(request.owner, []).append(request.capability)
            if rank != 1:
                self._failed.setdefault(request.owner, []).append(request.capability)
        self._advice: dict[int, Advice] = {}

    def advise(
        self,
        clusters: Sequence[Cluster],
        confusable: Iterable[Confusion],
        hubs: Iterable[Hub],
        weak: Iterable[Weak],
    ) -> list[Advice]:
        """Every skill with a finding, by impact."""
        self._reached()
        self._confused(confusable)
        for hub in hubs:
            self._hub(hub)
        for cluster in clusters:
            self._duplicates(cluster)
        self._names(clusters)
        for weakness in weak:
            self._weak(weakness)
        order = list(LABELS)
        for advice in self._advice.values():
            advice.findings.sort(key=lambda finding: order.index(finding.kind))
        return sorted(self._advice.values(), key=lambda advice: (-advice.impact, advice.skill))

    def _of(self, row: int) -> Advice:
        if row not in self._advice:
            requests, first, found = (int(array[row]) for array in (self._requests, self._first, self._found))
            self._advice[row] = Advice(row, requests, first, found, self._taken[row])
        return self._advice[row]

    def _add(self, row: int, kind: str, evidence: str, action: str) -> None:
        self._of(row).findings.append(Finding(kind, evidence, action))

    def _skill(self, row: int) -> Skill:
        return self.corpus[row]

    def _terms(self, row: int) -> list[str]:
        """Words that a description lacks; worked out once a skill."""
        advice = self._of(row)
        if not advice.terms:
            rivals = [self._skill(first) for _, first in self._rivals.get(row, [])[:_RIVALS]]
            advice.terms = self.wording.missing(self._skill(row), self._failed.get(row, ()), rivals)
        return advice.terms

    def _add_terms(self, row: int, otherwise: str) -> str:
        terms = self._terms(row)
        return f"Add to the description what only its body says: {', '.join(terms)}." if terms else otherwise

    def _reached(self) -> None:
        for row in np.flatnonzero(self._requests == 0).tolist():
            action = "Say in the description what it does, verb first: which task, on what, with which result."
            self._add(row, "no_requests", "No sentence, heading or list item in it names something to be done.", action)
        lost = np.flatnonzero((self._requests > 0) & (self._first == 0))
        for row in lost.tolist():
            n, found = int(self._requests[row]), int(self._found[row])
            if found:
                evidence = f"Its {_count(n, 'request')} find it {found} times among the first {self.reach.depth}, but never first"
            else:
                evidence = f"None of its {_count(n, 'request')} has it among the first {self.reach.depth}"
            kind = "never_first" if found else "unreachable"
            self._add(row, kind, f"{evidence}{self._instead(row)}", self._add_terms(row, _SAY_WHAT))

    def _instead(self, row: int) -> str:
        rivals = self._rivals.get(row, [])
        if not rivals:
            return "."
        count, first = rivals[0]
        return f"; “{self.corpus.ids[first]}” comes first for {count} of them{self._because(row, first, first)}"

    def _confused(self, pairs: Iterable[Confusion]) -> None:
        """One finding a skill, whatever the number of skills that it loses requests to."""
        losses: dict[int, list[tuple[int, int]]] = {}
        for pair in pairs:
            for own, other, lost in ((pair.a, pair.b, pair.a_to_b), (pair.b, pair.a, pair.b_to_a)):
                if lost and self._first[own]:  # a skill that is never first was told so, and by whom
                    losses.setdefault(own, []).append((lost, other))
        for own, rivals in losses.items():
            rivals.sort(key=lambda pair: (-pair[0], pair[1]))
            told = [f"{lost} find “{self.corpus.ids[other]}” first" for lost, other in rivals[:_NAMED]]
            evidence = f"Of its {_count(int(self._requests[own]), 'request')} {', '.join(told)}"
            closest = max((other for _, other in rivals), key=lambda other: self._shared(own, other))
            evidence += self._because(own, rivals[0][1], closest)
            self._add(own, "confusable", evidence, self._add_terms(own, self._tell_apart(own, rivals[0][1])))

    def _shared(self, own: int, other: int) -> float:
        return overlap(self._skill(own), self._skill(other))

    def _because(self, own: int, first: int, closest: int) -> str:
        """The rest of a sentence: a request that ``first`` took, and how much of a description ``closest`` shares."""
        example = self._example.get((own, first))
        shown = f", such as “{example}”" if example else ""
        share = self._shared(own, closest)
        if share < _ALIKE:
            return f"{shown}."
        same = f"{_percent(share)} of the words of its name and description"
        return f"{shown}. {same} are also those of “{self.corpus.ids[closest]}”."

    def _tell_apart(self, own: int, other: int) -> str:
        words = self.wording.only_here(self._skill(own), [self._skill(other)], 4)
        if not words:
            return f"No word tells it from “{self.corpus.ids[other]}”: merge the two."
        return f"Say what it alone is for; only it has the words {', '.join(words)}."

    def _hub(self, hub: Hub) -> None:
        skill = self._skill(hub.skill)
        common = self.wording.common(skill)
        evidence = (
            f"It is among the first {self.reach.depth} for {_count(hub.occurrences, 'request')} of "
            f"{_count(hub.victims, 'other skill')}, and first for {hub.firsts} of them"
        )
        if common:
            shares = ", ".join(f"{word} ({_percent(self.wording.share(word))})" for word in common)
            evidence += f". Words of its description that much of the library has: {shares}"
        telling = self.wording.only_here(skill, (), 4)
        action = f"Narrow the description to what it is for{': ' + ', '.join(telling) if telling else ''}; or split the skill."
        self._add(hub.skill, "hub", f"{evidence}.", action)

    def _duplicates(self, cluster: Cluster) -> None:
        for skill_id in cluster.skills:
            row = self.corpus.position(skill_id)
            own = [edge for edge in cluster.edges if skill_id in (edge.a, edge.b)]
            other_id = own[0].b if own[0].a == skill_id else own[0].a
            other = self.corpus.get(other_id)
            more = f" and {len(cluster.skills) - 2} more like it" if len(cluster.skills) > 2 else ""
            evidence = f"Its text is that of “{other_id}”{more} (trigram Jaccard {own[0].jaccard:.2f})."
            words = self.wording.only_here(self._skill(row), [other], 4)
            if own[0].jaccard > COPY:
                action = f"Merge with “{other_id}”, or remove one."
                if words:
                    action += f" To keep: {', '.join(words)}."
            elif words:
                action = f"Say in the description what sets it apart: {', '.join(words)}."
            else:
                action = f"Merge with “{other_id}”: no word is its own."
            self._add(row, "copy" if own[0].jaccard > COPY else "variant", evidence, action)

    def _names(self, clusters: Sequence[Cluster]) -> None:
        cluster_of = {skill_id: number for number, cluster in enumerate(clusters) for skill_id in cluster.skills}
        by_name: dict[str, list[int]] = {}
        for row, skill in enumerate(self.corpus):
            by_name.setdefault(normalize(skill.name), []).append(row)
        for rows in by_name.values():
            for row in rows if len(rows) > 1 else ():
                own = cluster_of.get(self.corpus.ids[row], -1)
                others = [self._skill(other) for other in rows if other != row]
                others = [
                    o for o in others if own == -1 or cluster_of.get(o.skill_id) != own
                ]  # copies are to be merged
                if not others:
                    continue
                words = self.wording.only_here(self._skill(row), others[:_RIVALS], 3)
                apart = f" after what sets it apart: {', '.join(words)}" if words else ""
                evidence = f"“{others[0].skill_id}” has the same name{_and_more(len(others) - 1)}."
                self._add(row, "same_name", evidence, f"Rename it{apart}.")

    def _weak(self, weak: Weak) -> None:
        row, skill = weak.skill, self._skill(weak.skill)
        n = weak.amount
        if weak.kind in ("missing", "repeats_name"):
            offers = list(dict.fromkeys(self._asked.get(row, [])))[:_CAPABILITIES]
            offered = "; ".join(offers) or ", ".join(self._terms(row))
            evidence = "It has no description." if weak.kind == "missing" else "Its description only repeats its name."
            self._add(row, weak.kind, evidence, f"Write one. Its body offers: {offered}." if offered else _SAY_WHAT)
        elif weak.kind == "short":
            evidence = f"Its description has {_count(n, 'content word')} beside the name ({SHORT_WORDS} is little)."
            self._add(row, weak.kind, evidence, self._add_terms(row, _SAY_WHAT))
        elif weak.kind == "no_capability":
            self._add(row, weak.kind, "No verb in its description says what it does.", _SAY_WHAT)
        elif weak.kind == "boilerplate":
            evidence = f"{n}% of its description stands in {weak.others} others as well (“{weak.quote}”)."
            self._add(row, weak.kind, evidence, self._add_terms(row, _SAY_WHAT))
        elif self._first[row] < self._requests[row]:  # cut off, and some request of it fails
            evidence = (
                f"Its description has {n} characters; what follows the first {DESCRIPTION_CHARS} is not read "
                f"(“{weak.quote} …”)."
            )
            seen, unread = as_read(skill)
            # twice: a word in the part that is not read counts, however rare it is in the body
            rest = Skill(skill.skill_id, skill.name, seen, f"{unread}\n{unread}")
            later = self.wording.missing(rest, self._failed.get(row, ()), (), 4)
            told = f": {', '.join(later)}" if later else ""
            self._add(row, weak.kind, evidence, f"Shorten it, with what tells it from others in front{told}.")


_SAY_WHAT = "Begin the description with what it does: a verb, what it works on, and the result."


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _and_more(n: int) -> str:
    return f", and {_count(n, 'more skill')}" if n else ""
