"""What a teacher is asked and what it gives back: the types that both kinds of teacher share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol

Check = Callable[[dict[str, Any]], str | None]
"""A rule that no JSON schema can say: a problem in words, or None."""


@dataclass(frozen=True)
class TeacherTask:
    """One question about one record.

    ``kind`` names the prompt, ``task_id`` the question (``<kind>/<record>``, unique in a run). ``inputs`` is what the prompt was
    made of, for a teacher that does not read prompts. ``schema`` and ``check`` are imposed by us on every answer. With an
    empty schema the answer is plain text, taken as it is (models behind APIs alone): ``text``, ``finish``, ``input_tokens``,
    ``output_tokens``.
    """

    task_id: str
    kind: str
    system: str
    prompt: str
    schema: Mapping[str, Any] = field(hash=False)
    check: Check | None = field(default=None, compare=False)
    inputs: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass
class Usage:
    """Counts of calls, tokens and money. ``cost_usd`` is None where a price is not known."""

    calls: int = 0  # answers that were paid for
    cached: int = 0  # answers that were at hand already
    retries: int = 0  # calls repeated after a failure on the way
    lost_calls: int = 0  # asked, but no answer arrived: the endpoint may have charged for them
    repairs: int = 0  # answers asked for again because one did not fit the schema
    failed: int = 0  # tasks without a usable answer
    not_asked: int = 0  # tasks that the budget left over
    input_tokens: int = 0
    output_tokens: int = 0
    estimated_tokens: int = 0  # part of the two above that the endpoint did not count for us
    cost_usd: float | None = None

    def add(self, **counts: int) -> None:
        """Increase counts by name."""
        for name, value in counts.items():
            setattr(self, name, getattr(self, name) + value)

    def plus(self, other: Usage) -> Usage:
        """The sum; its cost is unknown where either is."""
        known = self.cost_usd is not None and other.cost_usd is not None
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "cost_usd"}
        return Usage(**summed, cost_usd=self.cost_usd + other.cost_usd if known else None)  # type: ignore[operator]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return asdict(self)


Status = Literal["ok", "failed", "not_asked"]


@dataclass(frozen=True)
class TeacherResult:
    """The outcome of one task: a ``value`` that fits the schema, or a ``reason`` by name with ``detail``."""

    task_id: str
    kind: str
    status: Status
    teacher: str
    value: dict[str, Any] | None = field(default=None, hash=False)
    reason: str = ""
    detail: str = ""
    attempts: int = 0  # answers that were read, cached ones included

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def record(self) -> dict[str, Any]:
        """The answer with ``teacher``, who made it.

        Raises:
            ValueError: there is no answer.
        """
        if self.value is None:
            raise ValueError(f"{self.task_id}: no answer ({self.reason}: {self.detail})")
        return {**self.value, "teacher": self.teacher}


class Teacher(Protocol):
    """Anything that answers tasks. A task never raises: what goes wrong with it stands in its result."""

    @property
    def name(self) -> str: ...

    @property
    def usage(self) -> Usage:
        """What this object has used since it was made."""
        ...

    def run(self, tasks: Iterable[TeacherTask], progress: bool = False) -> Iterator[TeacherResult]:
        """One result a task, in the order of the tasks. Tasks are taken as they are needed, so a generator will do."""
        ...

    def complete(self, task: TeacherTask) -> TeacherResult:
        """The result of one task."""
        ...


class TeacherStopped(RuntimeError):
    """The endpoint cannot be worked with now: a refused key, an unknown model, a server that is down. Its answers are kept."""
