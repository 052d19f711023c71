"""What went wrong with a request, in the one JSON shape that every error has."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Problem:
    """A refusal: what is wrong and what would be accepted.

    Attributes:
        status: HTTP status.
        code: a stable word for programs, such as ``unknown_skill``.
        message: a sentence for people; never a traceback.
        field: the field of the request it is about.
        similar: names that exist and look like the one that does not.
        retry_after_s: when the same request may go through.
        details: one entry a field, ``{"field": …, "message": …}``, where several are wrong.
    """

    status: int
    code: str
    message: str
    field: str | None = None
    similar: tuple[str, ...] = ()
    retry_after_s: float | None = None
    details: tuple[dict[str, str], ...] = ()

    def body(self) -> dict[str, Any]:
        """The JSON document (``serving.schema.ErrorResponse``)."""
        return {
            "error": {
                "code": self.code,
                "message": printable(self.message, 2000),
                "field": self.field,
                "similar": list(self.similar),
                "details": list(self.details),
            }
        }

    def response(self) -> JSONResponse:
        """The HTTP response; ``Retry-After`` in whole seconds, at least 1."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.status in (408, 413):
            headers["Connection"] = "close"  # the rest of the body is not wanted
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="skillreason"'
        return JSONResponse(self.body(), self.status, headers)

    def in_field(self, field: str) -> Problem:
        """The same problem, said to be about a field of the request."""
        return replace(self, field=field)


class RequestProblem(Exception):
    """Raised wherever a request is refused; handlers answer with its ``problem``."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem.message


def unknown(kind: str, name: str, similar: Iterable[str], accepted: str = "") -> Problem:
    """404 for a name that does not exist, with those that look like it."""
    close = tuple(similar)
    hint = f"; did you mean {', '.join(repr(other) for other in close)}?" if close else accepted and f"; {accepted}"
    return Problem(404, f"unknown_{kind}", f"no {kind} {shown(name)}{hint}", similar=close)


def shown(text: str, limit: int = 80) -> str:
    """Text of a request as an error may repeat it: quoted, cut, and ASCII-only where it holds what cannot be printed."""
    return repr(printable(text if len(text) <= limit else text[: limit - 1] + "…", limit))


def printable(text: str, limit: int) -> str:
    """The text, cut, with lone surrogates escaped: JSON in UTF-8 cannot hold them."""
    return text[:limit].encode("utf-8", "backslashreplace").decode("utf-8")
