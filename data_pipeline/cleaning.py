"""Deterministic corpus cleaning (C.2): which collected records cannot serve as retrieval documents, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from data_pipeline.corpus import Skill


class Reason(StrEnum):
    """Why a record was dropped."""

    MISSING_ID = "missing_id"
    DUPLICATE_ID = "duplicate_id"
    MISSING_NAME = "missing_name"
    EMPTY_DOCUMENT = "empty_document"
    TOO_SHORT = "too_short"
    PLACEHOLDER = "placeholder"
    MALFORMED_FRONTMATTER = "malformed_frontmatter"
    MALFORMED_RECORD = "malformed_record"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class RawSkill:
    """A collected record before cleaning; its fields may be missing (None) or of a wrong type.

    ``problem`` is set where reading already failed: a file that is not UTF-8, frontmatter that is not YAML, ...
    """

    file: str
    row: int | None = None
    skill_id: Any = None
    name: Any = None
    description: Any = None
    body: Any = None
    metadata: dict[str, str] = field(default_factory=dict)
    problem: tuple[Reason, str] | None = None


@dataclass(frozen=True)
class DroppedRecord:
    """A record that cleaning removed. ``row`` counts from 1 and is None for a file that holds one skill."""

    reason: str
    skill_id: str
    file: str
    row: int | None
    detail: str


@dataclass(frozen=True)
class CleaningRules:
    """Bounds of the checks.

    ``min_characters`` counts description and body with white space folded (characters, so that languages written
    without spaces are not cut); ``max_unreadable`` and ``max_placeholder`` are shares (0..1) of the characters that
    are control or replacement characters, and of the content lines outside code blocks that are template text.
    """

    min_characters: int = 100
    max_unreadable: float = 0.01
    max_placeholder: float = 0.5

    def __post_init__(self) -> None:
        if self.min_characters < 1:
            raise ValueError(f"min_characters = {self.min_characters}: expected at least 1")
        for key in ("max_unreadable", "max_placeholder"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key} = {getattr(self, key)}: expected a share from 0 to 1")


@dataclass(frozen=True)
class CleaningResult:
    """Kept skills in input order and every dropped record."""

    kept: list[Skill]
    dropped: list[DroppedRecord]

    @property
    def counts(self) -> dict[str, int]:
        """Dropped records by reason, in the order of ``Reason``, reasons that did not occur left out."""
        counts = Counter(record.reason for record in self.dropped)
        return {reason.value: counts[reason.value] for reason in Reason if counts[reason.value]}

    @property
    def reasons(self) -> str:
        """The counts in words, as errors show them; empty where nothing was dropped."""
        return ", ".join(f"{reason}: {count}" for reason, count in self.counts.items())


def clean(records: Iterable[RawSkill], rules: CleaningRules | None = None) -> CleaningResult:
    """Keep the records that can serve as retrieval documents (C.2).

    The first *usable* record of an id wins, so a broken copy does not displace a good one. Similar or identical texts
    under different ids stay: redundancy is part of the task.
    """
    rules = rules or CleaningRules()
    kept: dict[str, tuple[Skill, RawSkill]] = {}
    dropped: list[DroppedRecord] = []
    for raw in records:
        problem = find_problem(raw, rules)
        skill_id = _text(raw.skill_id).strip()
        if problem is None and skill_id in kept:
            first = kept[skill_id][1]
            problem = Reason.DUPLICATE_ID, f"first kept from {_place(first)}"
        if problem is not None:
            shown = skill_id.encode("utf-8", "replace").decode("utf-8")
            dropped.append(DroppedRecord(problem[0].value, shown, raw.file, raw.row, problem[1]))
            continue
        skill = Skill(
            skill_id,
            raw.name.strip(),
            _text(raw.description).strip(),
            _text(raw.body).strip("\n"),
            raw.metadata,
        )
        kept[skill_id] = skill, raw
    return CleaningResult([skill for skill, _ in kept.values()], dropped)


def find_problem(raw: RawSkill, rules: CleaningRules) -> tuple[Reason, str] | None:
    """The first reason for which a record alone (duplicates aside) cannot be kept, with a detail to read; else None."""
    if raw.problem is not None:
        return raw.problem
    for key in ("skill_id", "name", "description", "body"):
        value = getattr(raw, key)
        if value is not None and not isinstance(value, str):
            return Reason.MALFORMED_RECORD, f"{key} is a {type(value).__name__}; expected a string"
    if not _text(raw.skill_id).strip():
        return Reason.MISSING_ID, "no skill_id"
    if not _text(raw.name).strip():
        return Reason.MISSING_NAME, "no name"
    document = f"{_text(raw.description)}\n{_text(raw.body)}"
    unreadable = _unreadable(f"{raw.skill_id}\n{raw.name}\n{document}", rules)
    if unreadable:
        return Reason.UNREADABLE, unreadable
    length = len(" ".join(document.split()))
    if length == 0:
        return Reason.EMPTY_DOCUMENT, "description and body are empty"
    if length < rules.min_characters:
        return (
            Reason.TOO_SHORT,
            f"{length} characters of description and body; expected {rules.min_characters}",
        )
    placeholder = _placeholder(raw.name, _text(raw.description), _text(raw.body), rules)
    return (Reason.PLACEHOLDER, placeholder) if placeholder else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _place(raw: RawSkill) -> str:
    return raw.file if raw.row is None else f"{raw.file}:{raw.row}"


_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ufffd]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def _unreadable(text: str, rules: CleaningRules) -> str:
    if "\x00" in text:
        return "contains NUL bytes"
    if _SURROGATE.search(text):
        return "contains half a surrogate pair"
    bad = len(_UNREADABLE.findall(text))
    if bad > rules.max_unreadable * len(text):
        return f"{bad} of {len(text)} characters are control or replacement characters"
    return ""


# Names and sentences that skill templates ship with. A skill *about* templates may quote them, which is why in a body
# they only count outside code blocks, and only when they make up most of it.
_TEMPLATE_NAME = re.compile(
    r"(?:(?:your|my|new|example|sample|template)[-_ ])?skill[-_ ](?:name|template|title)|(?:your|my|new|template)[-_ ]skill"
    r"|[\[<{].*[\]>}]|name|todo|tbd|untitled|placeholder",
    re.IGNORECASE,
)
_TEMPLATE_TEXT = re.compile(
    r"lorem ipsum dolor|\breplace (?:this )?with (?:a |your |the )?(?:\w+ )?(?:description|text|content|instructions)"
    r"|\bdescribe what (?:this|your|the) skill does|\bbrief description of what (?:this|the|your) skill"
    r"|\b(?:insert|add) (?:your )?(?:instructions|description|content) (?:here|below)|\bdescription goes here"
    r"|\byour description here|[\[<{](?:insert|describe|your|todo|tbd|placeholder)\b[^\]>}]*[\]>}]|\[todo\b",
    re.IGNORECASE,
)
_TEMPLATE_LINE = re.compile(
    r"\W*(?:todo|tbd|fixme|coming soon|placeholder|work in progress|under construction|n/a|xxx+)\b.{0,80}|\W+",
    re.IGNORECASE,
)


def _placeholder(name: str, description: str, body: str, rules: CleaningRules) -> str:
    if _TEMPLATE_NAME.fullmatch(name.strip()):
        return f"the name is a template's: {name.strip()!r}"
    found = _TEMPLATE_TEXT.search(description)
    if found:
        return f"the description is template text: {found.group()!r}"
    lines = [line for line in _prose_lines(body) if not line.startswith("#")]
    template = [line for line in lines if _TEMPLATE_TEXT.search(line) or _TEMPLATE_LINE.fullmatch(line)]
    if template and len(template) > rules.max_placeholder * len(lines):
        return f"{len(template)} of {len(lines)} lines of the body are template text, as {template[0][:60]!r}"
    return ""


def _prose_lines(body: str) -> Iterable[str]:
    in_code = False
    for line in body.splitlines():
        line = line.strip()
        if line.startswith(("```", "~~~")):
            in_code = not in_code
        elif line and not in_code and not _RULE.fullmatch(line):
            yield line


_RULE = re.compile(r"[-*_=|:\s]+")
