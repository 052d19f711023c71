"""What can be wrong with a skill, and how a finding about it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

LABELS = {
    "no_requests": "says nothing to ask for",
    "unreachable": "never found",
    "never_first": "never first",
    "confusable": "confusable",
    "hub": "hub",
    "copy": "copy",
    "variant": "near-duplicate",
    "same_name": "name taken",
    "missing": "no description",
    "repeats_name": "description repeats the name",
    "short": "short description",
    "no_capability": "no verb in the description",
    "boilerplate": "boilerplate",
    "cut": "description cut off",
}
"""Kinds of findings, the gravest first, as the page calls them."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a skill, by what it shows, and what would mend it."""

    kind: str
    evidence: str
    action: str


@dataclass
class Advice:
    """All that was found about one skill.

    Attributes:
        skill: its row.
        requests, first, found: its pseudo-queries; for how many it is first, and among the first results.
        taken: requests of other skills for which it is first.
        findings: the gravest first.
        terms: words for its description; empty where none were needed or known.
    """

    skill: int
    requests: int
    first: int
    found: int
    taken: int
    findings: list[Finding] = field(default_factory=list)
    terms: list[str] = field(default_factory=list)

    @property
    def impact(self) -> int:
        """Requests that went wrong with this skill: its own that it is not first for, and others' that it took."""
        return self.requests - self.first + self.taken
