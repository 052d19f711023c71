"""The typed records of training and evaluation (E.1, C.5) and their files, validated when they are read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_pipeline.rows import RecordError, read_rows, write_rows
from models.views import format_of_document

SELF_PREFIX = "self/"
"""Record ids of requests that were taken from a skill's own text begin with it, see :mod:`data_pipeline.self_requests`."""


@dataclass(frozen=True)
class TrainingRequest:
    """A request and its one target skill, before negatives are mined (D.1).

    ``query_capability`` is the teacher's rationale c*; ``implicit_query`` the Stage-II rewrite, empty where there is none.
    """

    record_id: str
    skill_id: str
    query: str
    query_capability: str
    implicit_query: str = ""


@dataclass(frozen=True)
class Stage1Record:
    """A Stage-I record (E.1): request, rationale, positive and the ordered explicit negatives (Table 13: ten)."""

    record_id: str
    query: str
    query_capability: str
    positive_id: str
    positive: str
    negative_ids: tuple[str, ...]
    negatives: tuple[str, ...]
    category: str
    sample_weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Stage2Record(Stage1Record):
    """A Stage-II record (E.1): ``query`` is the implicit rewrite, ``original_query`` the Stage-I request it came from."""

    original_query: str


@dataclass(frozen=True)
class BenchQuery:
    """A test request (C.5) with its graded relevant skills; ``extra`` keeps whatever else stood in the row."""

    query_id: str
    query: str
    qrels: dict[str, int] = field(hash=False)
    domain: str = ""
    extra: dict[str, Any] = field(default_factory=dict, hash=False)


Record = TrainingRequest | Stage1Record | Stage2Record | BenchQuery

_REQUEST_KEYS = ("record_id", "skill_id", "query", "query_capability")
_STAGE1_KEYS = (
    "record_id",
    "query",
    "query_capability",
    "positive_id",
    "positive",
    "negative_ids",
    "negatives",
    "category",
    "sample_weight",
)


class _Row:
    """One row under validation: getters that return a typed value or raise RecordError."""

    def __init__(self, file: str | Path, number: int, value: Mapping[str, Any]) -> None:
        self.file, self.number, self.value = file, number, value

    def error(self, problem: str, key: str | None = None, value: Any = None) -> RecordError:
        return RecordError(self.file, self.number, problem, key, value)

    def text(self, key: str, required: bool = True) -> str:
        if key not in self.value:
            if required:
                raise self.error(f"missing key {key!r}; this row has {', '.join(map(str, self.value)) or 'no keys'}")
            return ""
        return self.checked_text(key, self.value[key], required)

    def checked_text(self, key: str, value: Any, required: bool = True) -> str:
        if not isinstance(value, str):
            raise self.error("expected a string", key, value)
        if required and not value.strip():
            raise self.error("expected a non-empty string", key, value)
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise self.error("half of a surrogate pair; expected valid Unicode text", key, value) from None
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        if key not in self.value:
            raise self.error(f"missing key {key!r}; expected a list of strings")
        value = self.value[key]
        if not isinstance(value, list | tuple) or not value:
            raise self.error("expected a non-empty list of strings", key, value)
        return tuple(self.checked_text(f"{key}[{i}]", item) for i, item in enumerate(value))

    def only(self, keys: Sequence[str]) -> None:
        for key in self.value:
            if key not in keys:
                raise self.error(f"unknown key; expected only {', '.join(keys)}", key, self.value[key])


def read_training_requests(path: str | Path) -> list[TrainingRequest]:
    """Read ``record_id, skill_id, query, query_capability[, implicit_query]`` rows; other keys are left alone.

    Raises RecordError (file, row, key, value) for a missing, mistyped or empty field and for a repeated record_id.
    """
    return _read(path, parse_training_request, "record_id")


def parse_training_request(file: str | Path, row: int, value: Mapping[str, Any]) -> TrainingRequest:
    """One training request from a decoded row; RecordError where a field is missing, mistyped or empty."""
    reader = _Row(file, row, value)
    record_id, skill_id, query, rationale = (reader.text(key) for key in _REQUEST_KEYS)
    return TrainingRequest(record_id, skill_id, query, rationale, reader.text("implicit_query", required=False))


def read_stage1(path: str | Path, n_negatives: int | None = None) -> list[Stage1Record]:
    """Read Stage-I records (E.1), each with ``n_negatives`` negatives (None: as many as the first row has).

    Raises RecordError for unknown, missing or mistyped keys, unequal or repeated negatives, a positive among its
    negatives, a weight that is negative or not finite, and a repeated record_id. Unknown keys are refused so that
    a Stage-II file is not trained on as Stage I by mistake.
    """
    records = _read(path, lambda *row: Stage1Record(**_stage_fields(_Row(*row), _STAGE1_KEYS)), "record_id")
    _check_counts(path, records, n_negatives)
    return records


def read_stage2(path: str | Path, n_negatives: int | None = None) -> list[Stage2Record]:
    """Read Stage-II records: the checks of ``read_stage1`` and a non-empty ``original_query``."""

    def parse(*row: Any) -> Stage2Record:
        reader = _Row(*row)
        fields = _stage_fields(reader, (*_STAGE1_KEYS, "original_query"))
        return Stage2Record(**fields, original_query=reader.text("original_query"))

    records = _read(path, parse, "record_id")
    _check_counts(path, records, n_negatives)
    return records


def read_both_stages(folder: str | Path) -> tuple[list[Stage1Record], list[Stage2Record]]:
    """``stage1.jsonl`` and ``stage2.jsonl`` of a records folder; the second may be missing or empty."""
    stage2 = Path(folder) / "stage2.jsonl"
    written = stage2.is_file() and stage2.stat().st_size > 0
    return read_stage1(Path(folder) / "stage1.jsonl"), read_stage2(stage2) if written else []


def _stage_fields(row: _Row, keys: Sequence[str]) -> dict[str, Any]:
    row.only(keys)
    fields: dict[str, Any] = {
        key: row.text(key) for key in ("record_id", "query", "query_capability", "positive_id", "positive", "category")
    }
    negative_ids, negatives = row.texts("negative_ids"), row.texts("negatives")
    if len(negative_ids) != len(negatives):
        raise row.error(f"{len(negatives)} texts for {len(negative_ids)} negative_ids; expected one each", "negatives")
    repeated = next((item for i, item in enumerate(negative_ids) if item in negative_ids[:i]), None)
    if repeated is not None:
        raise row.error("occurs twice; negatives are distinct", "negative_ids", repeated)
    if fields["positive_id"] in negative_ids:
        raise row.error("the positive is among its own negatives", "negative_ids", fields["positive_id"])
    weight = row.value.get("sample_weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
        raise row.error("expected a finite number >= 0", "sample_weight", weight)
    return fields | {"negative_ids": negative_ids, "negatives": negatives, "sample_weight": float(weight)}


def format_of_records(records: Sequence[Stage1Record]) -> str:
    """The one document format of all records' positives, which their texts show; ValueError where there are two."""
    formats = {format_of_document(record.positive): record for record in records}
    if len(formats) > 1:
        first, second = (f"{record.record_id!r} in {name}" for name, record in formats.items())
        raise ValueError(f"two document formats: record {first}, record {second}; expected one in all records")
    return next(iter(formats))


def _check_counts(path: str | Path, records: Sequence[Stage1Record], n_negatives: int | None) -> None:
    wanted = n_negatives if n_negatives is not None else len(records[0].negative_ids)
    for record in records:
        if record.record_id.startswith(SELF_PREFIX):  # as many as data_pipeline.self_requests gave them
            continue
        if len(record.negative_ids) != wanted:
            found = f"{len(record.negative_ids)} negatives in record {record.record_id!r}"
            raise ValueError(f"{path}: {found}; expected {wanted} in every record (Table 13)")


def read_bench(path: str | Path) -> list[BenchQuery]:
    """Read test requests: ``query_id, query`` and one of ``skill_id``, ``skill_ids`` or ``qrels {id: grade}``.

    Raises RecordError for a missing, mistyped or empty field, none or several kinds of labels, a grade that is not
    a whole number >= 0, a request without any grade above 0, and a repeated query_id.
    """
    return _read(path, parse_bench_query, "query_id")


def parse_bench_query(file: str | Path, row: int, value: Mapping[str, Any]) -> BenchQuery:
    """One test request from a decoded row; RecordError as in ``read_bench``."""
    reader = _Row(file, row, value)
    known = {"query_id", "query", "skill_id", "skill_ids", "qrels", "domain"}
    extra = {key: item for key, item in value.items() if key not in known}
    domain = reader.text("domain", required=False)
    return BenchQuery(reader.text("query_id"), reader.text("query"), _qrels(reader), domain, extra)


def _qrels(row: _Row) -> dict[str, int]:
    given = [key for key in ("skill_id", "skill_ids", "qrels") if key in row.value]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise row.error(f"found {found}; expected exactly one of skill_id, skill_ids, qrels {{id: grade}}")
    if given[0] == "skill_id":
        return {row.text("skill_id"): 1}
    if given[0] == "skill_ids":
        return dict.fromkeys(row.texts("skill_ids"), 1)
    value = row.value["qrels"]
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        value = dict(value)  # a Parquet map column arrives as a list of pairs
    if not isinstance(value, dict) or not value:
        raise row.error("expected a non-empty object {skill_id: grade}", "qrels", value)
    for skill_id, grade in value.items():
        row.checked_text("qrels key", skill_id)
        if isinstance(grade, bool) or not isinstance(grade, int) or grade < 0:
            raise row.error("expected a whole number >= 0", f"qrels[{skill_id!r}]", grade)
    if not any(value.values()):
        raise row.error("no skill has a grade above 0; a request needs at least one relevant skill", "qrels", value)
    return dict(value)


def _read(path: str | Path, parse: Any, id_key: str) -> list[Any]:
    seen: dict[str, int] = {}
    records: list[Any] = []
    for row, value in read_rows(path):
        record = parse(path, row, value)
        record_id = getattr(record, id_key)
        if record_id in seen:
            raise RecordError(path, row, f"duplicate id, first seen in row {seen[record_id]}", id_key, record_id)
        seen[record_id] = row
        records.append(record)
    if not records:
        raise RecordError(path, 1, "the file has no records; expected at least one row")
    return records


def record_to_row(record: Record) -> dict[str, Any]:
    """The row of a record as it stands in a file: the form its reader takes back unchanged."""
    if not isinstance(record, BenchQuery):
        return {key: list(item) if isinstance(item, tuple) else item for key, item in vars(record).items()}
    row: dict[str, Any] = {"query_id": record.query_id, "query": record.query}
    if set(record.qrels.values()) != {1}:
        row["qrels"] = record.qrels
    elif len(record.qrels) == 1:
        row["skill_id"] = next(iter(record.qrels))
    else:
        row["skill_ids"] = list(record.qrels)
    return row | ({"domain": record.domain} if record.domain else {}) | record.extra


def write_records(path: str | Path, records: Iterable[Record]) -> None:
    """Write .jsonl, .jsonl.gz or .parquet by suffix, atomically; the same records give the same bytes."""
    write_rows(path, (record_to_row(record) for record in records))
