"""Exceptions of the HTTP application -> the one JSON shape of errors."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from serving.metrics import ServingMetrics
from serving.problems import Problem, RequestProblem, printable, shown

logger = logging.getLogger(__name__)
_MAX_DETAILS = 20


def add_handlers(app: FastAPI, metrics: ServingMetrics) -> None:
    """Answer every exception with a ``Problem``, and count it by its code."""

    def answer(problem: Problem) -> Response:
        metrics.errors.labels(problem.code).inc()
        return problem.response()

    @app.exception_handler(RequestProblem)
    async def refused(_: Request, error: RequestProblem) -> Response:
        return answer(error.problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(_invalid(error.errors(), request.headers.get("content-type")))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        problem = getattr(error, "problem", None) or _http(request, error)
        response = answer(problem)
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(Problem(500, "internal", f"{type(error).__name__}; the server's log says where"))


def _http(request: Request, error: HTTPException) -> Problem:
    """What Starlette and FastAPI refuse themselves."""
    if error.status_code == 404:
        paths = [path for path in request.app.openapi()["paths"] if "{" not in path]
        close = tuple(difflib.get_close_matches(request.url.path, paths, 3, 0.6))
        meant = f"; did you mean {shown(close[0])}?" if close else ""
        message = f"nothing at {shown(request.url.path)}{meant}; /openapi.json lists the paths"
        return Problem(404, "unknown_path", message, similar=close)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Problem(405, "wrong_method", f"{shown(request.method)} is not allowed here; expected {allowed}")
    if error.status_code == 400:
        return Problem(400, "malformed_json", "the body cannot be read; expected a JSON object in UTF-8")
    return Problem(error.status_code, "refused", str(error.detail))


def _invalid(errors: Sequence[Any], content_type: str | None) -> Problem:
    """Pydantic's findings in our shape: the fields and what would be accepted, never the value that was sent."""
    for error in errors:
        if error["type"] == "json_invalid":
            place = error["loc"][-1]
            reason = (error.get("ctx") or {}).get("error", "")
            return Problem(400, "malformed_json", f"the body is not JSON at character {place}: {reason}")
    details = []
    for error in errors[:_MAX_DETAILS]:
        field = printable(".".join(map(str, error["loc"][1:])), 200)  # the first part says body, query or path
        message = printable(str(error["msg"]), 500)
        if error["type"] == "string_pattern_mismatch":  # the one pattern there is asks for something to search for
            message = "blank; expected at least one character that is not a space"
        if not field:
            field = "body"
            if not (content_type or "").startswith("application/json"):
                message += f"; expected Content-Type: application/json, not {shown(content_type or '')}"
        details.append({"field": field, "message": message})
    message = "; ".join(f"{entry['field']}: {entry['message']}" for entry in details)
    return Problem(422, "invalid_request", message, details[0]["field"], details=tuple(details))
