"""Pseudo-queries and the templates they come from, each traceable to one capability of one skill; their JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from data_pipeline.rows import RecordError, read_rows, write_rows


class Form(StrEnum):
    """The four sentence forms of section 3.3.2."""

    IMPERATIVE = "imperative"  # "Extract the tables from report.pdf."
    YES_NO = "yes_no"  # "Can you extract the tables from report.pdf?"
    WH = "wh"  # "How do I extract the tables from report.pdf?"
    INDIRECT = "indirect"  # "I would like to extract the tables from report.pdf."


@dataclass(frozen=True)
class Template:
    """A sentence with ``{slot}`` marks, bound to one capability (section 3.3.2).

    ``slots`` names the parameter of each mark: mark to the parameter's node id, or to an empty string where the graph has no such
    parameter (the baselines of A.1 see no graph and guess).
    """

    template_id: str
    skill_id: str
    capability_id: str  # empty where the method knows no capabilities
    form: Form
    text: str
    slots: dict[str, str] = field(default_factory=dict, hash=False)
    writer: str = "rule"  # or the teacher model's name


@dataclass(frozen=True)
class PseudoQuery:
    """One filled template and everything that led to it (section 3.3.3).

    ``problems`` are the checks of A.3 and A.4.1 that it fails, each as ``check: detail``; it counts for Exec-Pass where there are
    none.
    """

    query_id: str
    skill_id: str
    query: str
    capability_id: str
    capability: str
    template_id: str
    template: str
    form: Form
    slots: dict[str, str] = field(hash=False)  # mark to the value it was filled with
    problems: tuple[str, ...] = ()
    method: str = "skill2query"  # or zero_shot, few_shot, skillflow (A.1)
    writer: str = "rule"  # who wrote the template

    @property
    def valid(self) -> bool:
        """Whether every check passed: v_i of A.4.1."""
        return not self.problems

    @classmethod
    def from_row(cls, file: str | Path, number: int, row: Mapping[str, Any]) -> PseudoQuery:
        """The pseudo-query of one JSON line; RecordError naming file, row and key where it is none."""
        for key in ("query_id", "skill_id", "query"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise RecordError(file, number, "expected a non-empty string", key, row.get(key))
        try:
            values = {**row, "form": Form(row.get("form", "")), "problems": tuple(row.get("problems", ()))}
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise RecordError(file, number, f"not a pseudo-query: {error}") from None


def read_pseudo_queries(path: str | Path) -> list[PseudoQuery]:
    """Pseudo-queries in file order; RecordError (file, row, key, value) for a broken row or a repeated id."""
    found: dict[str, PseudoQuery] = {}
    for number, row in read_rows(path):
        query = PseudoQuery.from_row(path, number, row)
        if query.query_id in found:
            raise RecordError(path, number, "occurs twice; ids are unique", "query_id", query.query_id)
        found[query.query_id] = query
    return list(found.values())


def write_pseudo_queries(path: str | Path, queries: Iterable[PseudoQuery]) -> None:
    """One JSON object a line; the file appears whole or not at all."""
    write_rows(path, (asdict(query) for query in queries))
