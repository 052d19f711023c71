"""The HTTP interface: a FastAPI application over any ``Backend``. It knows nothing of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, JSONResponse, Response

from serving.backends import Backend
from serving.gate import API_DOCS, HEALTH, METRICS, OPENAPI, Gate
from serving.handlers import add_handlers
from serving.limits import BodyLimit
from serving.schema import (
    BatchSearchRequest,
    BatchSearchResponse,
    ErrorResponse,
    HealthResponse,
    Hit,
    IndexesResponse,
    ReloadResponse,
    SearchRequest,
    SearchResponse,
    SkillResponse,
    add_limits,
)
from serving.service import Service
from serving.settings import ServeSettings

PAGE = Path(__file__).parent / "page"
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "the body is not JSON"},
    401: {"model": ErrorResponse, "description": "no token, or a wrong one"},
    403: {"model": ErrorResponse, "description": "a server without a token, asked from another machine"},
    404: {"model": ErrorResponse, "description": "no such index, domain or skill"},
    408: {"model": ErrorResponse, "description": "the body did not arrive in time"},
    409: {"model": ErrorResponse, "description": "this index cannot do that"},
    413: {"model": ErrorResponse, "description": "the body is too large"},
    422: {"model": ErrorResponse, "description": "a field is missing, unknown, of another type or out of range"},
    429: {"model": ErrorResponse, "description": "more requests than this client may make; see Retry-After"},
    500: {"model": ErrorResponse, "description": "a defect; the server's log says where"},
    503: {
        "model": ErrorResponse,
        "description": "too many requests wait, no replica is up, or shutting down; see Retry-After",
    },
    504: {"model": ErrorResponse, "description": "no answer in time"},
}


def build_http(settings: ServeSettings, backend: Backend, page: Path = PAGE) -> FastAPI:
    """The whole application: API, OpenAPI page, metrics, and the page of ``serving/page`` at ``/``."""
    service = Service(settings, backend)
    app = FastAPI(
        title="SkillReason",
        summary="Which skill fits what a person wants done?",
        version="1",
        docs_url=API_DOCS,
        redoc_url=None,
        openapi_url=OPENAPI,
        lifespan=service.lifespan,
        responses=ERRORS,
    )
    app.state.service = service
    add_handlers(app, service.metrics)
    _add_routes(app, service)
    _document_limits(app, settings)
    files = _add_page(app, page)
    # The last one added is the first that a request meets.
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, timeout_s=settings.timeout_s)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(
        Gate, settings=settings, metrics=service.metrics, draining=lambda: service.draining, page_files=files
    )
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.post("/search")
    async def search(request: SearchRequest) -> SearchResponse:
        """The skills that fit one request best."""
        index, result, took = await service.answer(request, [request.query])
        return SearchResponse.model_construct(
            index=index, version=result.version, hits=_hits(result.rankings[0]), took_ms=took
        )

    @app.post("/search/batch")
    async def search_batch(request: BatchSearchRequest) -> BatchSearchResponse:
        """The skills that fit each of several requests best, all from one version of the index."""
        index, result, took = await service.answer(request, request.queries)
        return BatchSearchResponse.model_construct(
            index=index, version=result.version, results=[_hits(row) for row in result.rankings], took_ms=took
        )

    @app.get("/skills/{skill_id:path}")
    async def skill(
        skill_id: str, index: Annotated[str | None, Query(min_length=1, max_length=256)] = None
    ) -> SkillResponse:
        """A whole skill document. An id may hold slashes: /skills/owner/repository/skill."""
        name = index or service.settings.default_index
        found = await service.skill(name, skill_id)
        return SkillResponse(
            index=name,
            skill_id=found.skill_id,
            name=found.name,
            description=found.description,
            body=found.body,
            metadata=found.metadata,
        )

    @app.get("/indexes")
    async def indexes() -> IndexesResponse:
        """Every index that is served, with its domains."""
        return IndexesResponse(indexes=service.described())

    @app.post("/reload")
    async def reload() -> ReloadResponse:
        """Have every replica open the newest version of its indexes now; they look every few seconds anyway."""
        return ReloadResponse.model_validate({"outcomes": await service.reload()})

    @app.get(HEALTH, responses={503: {"model": HealthResponse, "description": "not ready, or shutting down"}})
    async def healthz() -> HealthResponse:
        """200 while searches are answered, 503 otherwise; needs no token."""
        health = service.health()
        if health["status"] != "ready":
            return JSONResponse(health, 503)  # type: ignore[return-value]
        return HealthResponse.model_validate(health)

    @app.get(METRICS, response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _hits(ranking: Sequence[dict[str, Any]]) -> list[Hit]:
    return [Hit.model_construct(**hit) for hit in ranking]


def _document_limits(app: FastAPI, settings: ServeSettings) -> None:
    """Have the OpenAPI document say what this server accepts."""
    plain = app.openapi

    def with_limits() -> dict[str, Any]:
        made = app.openapi_schema is not None
        document = plain()
        return document if made else add_limits(document, settings)

    app.openapi = with_limits


def _add_page(app: FastAPI, page: Path) -> list[str]:
    """Serve each file of the page at its own path, ``index.html`` at ``/``; returns the paths.

    A mount at ``/`` would answer every path that nothing else does, and a wrong method of those that something does.
    """
    paths = []
    for file in sorted(path for path in page.rglob("*") if path.is_file()):
        name = file.relative_to(page).as_posix()
        path = "/" if name == "index.html" else f"/{name}"

        async def send(_: Request, file: Path = file) -> FileResponse:
            return FileResponse(file)

        app.add_route(path, send, methods=["GET"], include_in_schema=False)
        paths.append(path)
    return paths
