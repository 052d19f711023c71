"""Rationales for inference-time augmentation: written by the policy itself or by a teacher, or read; kept beside the result."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_pipeline.records import BenchQuery
from data_pipeline.rows import RecordError, read_rows, write_rows
from data_pipeline.teacher import TeacherConfig, validate_teacher
from evaluation.rationale_writers import causal_lm_of, from_policy, from_teacher, model_digest

if TYPE_CHECKING:
    from models.generation import SamplingParams

logger = logging.getLogger(__name__)

TOP_P = 0.95
"""Nucleus of sampled rationales (Table 16)."""
SOURCES = ("self", "teacher", "file")


@dataclass(frozen=True)
class Augment:
    """Where rationales come from.

    Attributes:
        source: ``self`` (the evaluated policy's own LM head), ``teacher`` (a model behind an API) or ``file``.
        model: for ``self``: another causal LM than that of the evaluated model, such as for BM25; a run's folder or a model.
        file: for ``file``: rows of ``query_id`` and ``rationale``; several rows of a request are several rationales.
        samples: for ``self``: rationales of a request.
        temperature: for ``self``: 0 is greedy.
        max_tokens, max_prompt_tokens: for ``self``: the limits of Stage II (Table 16).
        seed: of sampling.
        teacher: for ``teacher``; its answers are kept in ``teacher_cache`` and never paid for twice.
    """

    source: str
    model: str = ""
    file: str = ""
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 192
    max_prompt_tokens: int = 1024
    seed: int = 42
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    teacher_cache: str = ""

    def to_dict(self) -> dict[str, Any]:
        """What is not at its default, as plain values; a teacher by its name alone."""
        plain = Augment(self.source)
        given = {key: value for key, value in vars(self).items() if value != getattr(plain, key)}
        given.pop("teacher_cache", None)
        return {"source": self.source, **given} | ({"teacher": self.teacher.name} if "teacher" in given else {})

    def check(self) -> None:
        """Refuse what cannot work before anything is loaded.

        Raises:
            ValueError: naming the option, its value and what would be accepted.
        """
        if self.source not in SOURCES:
            raise ValueError(f"augmentation is {self.source!r}; expected one of {', '.join(SOURCES)}")
        if self.source == "file" and not self.file:
            raise ValueError("augmentation from a file needs the file of rationales; give --rationales FILE")
        if self.source == "teacher":
            validate_teacher(self.teacher)
            if self.teacher.kind == "offline":
                raise ValueError(
                    "the offline teacher writes rationales from the target skill, which nobody knows at inference; expected "
                    "teacher.kind openai or anthropic, or rationales from a file"
                )
        if self.samples < 1 or self.max_tokens < 1:
            raise ValueError(
                f"samples is {self.samples} and max_tokens is {self.max_tokens}; expected at least 1 of each"
            )
        if not 0 <= self.temperature < 10:
            raise ValueError(f"temperature is {self.temperature}; expected 0 (greedy) or more")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples is {self.samples} at temperature 0, where all are equal; expected 1, or a temperature such as 0.8"
            )


@dataclass(frozen=True)
class Rationales:
    """What a retriever is augmented with.

    Attributes:
        by_request: rationales by the request's text.
        info: for the result file: ``source``, ``writer``, ``file``, ``samples``, ``requests`` with a rationale and ``without``,
            ``reused`` rationales, mean ``words``, and ``seconds`` that writing them took, in earlier runs too.
    """

    by_request: dict[str, list[str]]
    info: dict[str, Any]


def collect_rationales(
    augment: Augment,
    queries: Sequence[BenchQuery],
    model_spec: str | Path,
    path: Path | None = None,
    *,
    dtype: str | None = None,
    progress: bool = False,
) -> Rationales:
    """The rationales of a benchmark's requests; those that ``path`` holds from the same writer are not written again.

    Args:
        model_spec: what is evaluated; for ``self`` the LM beside it writes, see :func:`causal_lm_of`.
        path: JSONL that is read first and written as rationales come; None keeps nothing.
        dtype: precision of the LM, ``float32`` (default) or ``bfloat16``.

    Raises:
        ValueError, FileNotFoundError: see :meth:`Augment.check`; no LM, or a broken file.
        BudgetSpent, PipelineError: see :func:`data_pipeline.pipeline.asking.ask_teacher`; what was answered is kept.
    """
    augment.check()
    if augment.source == "file":
        return _summary(augment, queries, _read_given(augment.file, queries), f"file:{augment.file}", augment.file, 0)
    if augment.source == "self":
        lm = causal_lm_of(model_spec, augment.model)
        sampling = "greedy" if augment.temperature == 0 else f"temperature {augment.temperature:g}, seed {augment.seed}"
        writer = f"self:{model_digest(lm)}, {sampling}, {augment.max_tokens} tokens"
    else:
        lm, writer = "", f"teacher:{augment.teacher.name}"
    rows = _read_own(path, writer) if path is not None and path.is_file() else {}
    done = {
        query for query, found in rows.items() if len(found) >= (augment.samples if augment.source == "self" else 1)
    }
    todo = {query.query: query for query in queries if query.query not in done}
    reused = sum(len(rows[query.query]) for query in queries if query.query in done)
    if todo:
        asked = list(todo.values())
        if augment.source == "self":
            written = from_policy(
                lm, asked, _sampling(augment), augment.max_prompt_tokens, augment.seed, dtype, progress
            )
        else:
            cache = Path(augment.teacher_cache) if augment.teacher_cache else Path(path or "x").parent / ".teacher"
            written = from_teacher(augment.teacher, asked, cache, progress)
        for found in written:
            for row in found:
                row["writer"] = writer
            rows.update({query: list(group) for query, group in itertools.groupby(found, lambda row: row["query"])})
            if path is not None:
                write_rows(path, [row for kept in rows.values() for row in kept])
    return _summary(augment, queries, rows, writer, str(path or ""), reused)


Rows = dict[str, list[dict[str, Any]]]
"""Rows of the file by the request's text."""


def _sampling(augment: Augment) -> SamplingParams:
    from models.generation import SamplingParams

    return SamplingParams(augment.samples, augment.temperature, TOP_P, augment.max_tokens)


def _read_own(path: Path, writer: str) -> Rows:
    """The rows of this writer; a file of another one is written anew."""
    rows: Rows = {}
    others = set()
    for number, row in read_rows(path):
        if not all(isinstance(row.get(key), str) for key in ("query", "rationale", "writer")):
            raise RecordError(path, number, "not a row of rationales; expected texts under query, rationale and writer")
        if row["writer"] == writer:
            rows.setdefault(row["query"], []).append(dict(row))
        else:
            others.add(row["writer"])
    if others:
        logger.warning("%s: rationales by %s are replaced by those of %s", path, "; ".join(sorted(others)), writer)
    return rows


def _read_given(file: str, queries: Sequence[BenchQuery]) -> Rows:
    wanted = {query.query_id: query.query for query in queries}
    by_id: dict[str, list[dict[str, Any]]] = {}
    unknown = 0
    for number, row in read_rows(file):
        query_id, text = row.get("query_id"), row.get("rationale")
        if not isinstance(query_id, str) or not isinstance(text, str):
            raise RecordError(file, number, "expected a text under query_id and one under rationale")
        if query_id in wanted:
            by_id.setdefault(query_id, []).append(dict(row))
        else:
            unknown += 1
    if not by_id:
        raise ValueError(f"{file}: none of its {unknown} rows is about a request of this benchmark (by query_id)")
    if unknown:
        logger.warning("%s: %d rows are about other requests", file, unknown)
    rows: Rows = {}
    for query_id, found in by_id.items():
        rows.setdefault(wanted[query_id], found)  # of two requests with one text, the first one's count
    return rows


def _summary(
    augment: Augment, queries: Sequence[BenchQuery], rows: Mapping[str, Sequence[Mapping[str, Any]]], writer: str,
    file: str, reused: int,
) -> Rationales:  # fmt: skip
    limit = augment.samples if augment.source == "self" else None
    used = {q.query: list(rows[q.query])[:limit] for q in queries if q.query in rows}
    flat = [row for found in used.values() for row in found]
    words = [len(row["rationale"].split()) for row in flat]
    info: dict[str, Any] = {
        "source": augment.source,
        "writer": writer,
        "file": file,
        "samples": augment.samples,
        "requests": sum(query.query in used for query in queries),
        "without": sum(query.query not in used for query in queries),
        "reused": reused,
        "words": round(sum(words) / max(1, len(words)), 2),
        "seconds": round(sum(float(row.get("seconds") or 0) for row in flat), 3),
    }
    return Rationales({query: [row["rationale"] for row in found] for query, found in used.items()}, info)
