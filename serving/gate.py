"""The ASGI layer that every request passes: who asks, how often, what is counted, and the headers of every response."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.auth import host_name, is_loopback, matching_token
from serving.limits import TokenBuckets
from serving.metrics import ServingMetrics
from serving.problems import Problem
from serving.settings import ServeSettings

logger = logging.getLogger(__name__)

HEALTH = "/healthz"
METRICS = "/metrics"
API_DOCS = "/docs"
OPENAPI = "/openapi.json"
PUBLIC = frozenset({HEALTH, API_DOCS, OPENAPI})
"""Paths that need no token, beside the page's files; everything else does, what is added later included."""

_SWAGGER = "https://cdn.jsdelivr.net"
_POLICY = "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_DOCS_POLICY = (
    f"default-src 'self'; script-src 'self' 'unsafe-inline' {_SWAGGER}; style-src 'self' 'unsafe-inline' {_SWAGGER}; "
    "img-src 'self' data: https://fastapi.tiangolo.com; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Gate:
    """ASGI middleware: counts, headers, access and rate. Pure ASGI, so that a body is never read here."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        metrics: ServingMetrics,
        draining: Callable[[], bool],
        page_files: Collection[str],
    ) -> None:
        self.app, self.metrics, self.draining = app, metrics, draining
        self.digests = settings.token_digests
        self.cors = bool(settings.cors_origins)
        self.buckets = TokenBuckets(settings.rate, settings.burst)
        self.public = PUBLIC | set(page_files)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._add_headers(scope, message)
            await send(message)

        try:
            problem = self._refusal(scope)
            if problem is None:
                await self.app(scope, receive, counted)
            else:
                self.metrics.errors.labels(problem.code).inc()
                await problem.response()(scope, receive, counted)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in {"GET", "HEAD", "POST", "OPTIONS"} else "other"
            self.metrics.requests.labels(route, method, str(status)).inc()
            self.metrics.request_seconds.labels(route).observe(time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> Problem | None:
        path = scope["path"]
        headers = Headers(scope=scope)
        client = (scope.get("client") or ("", 0))[0]
        if not self.digests:
            # Without a token this machine alone may ask, whatever address the server was made to listen on. A web page that has a
            # name of its own point to 127.0.0.1 (DNS rebinding) is not this machine.
            if not is_loopback(client):
                message = (
                    f"this server has no token and answers its own machine alone, not {client or 'an unknown client'}"
                )
                return Problem(403, "not_local", message + "; expected a server started with --token-file")
            if not is_loopback(host_name(headers.get("host", ""))):
                return Problem(
                    403, "not_local", "the Host header is not this machine's; expected localhost or 127.0.0.1"
                )
        if path == HEALTH:
            return None
        if self.draining():
            return Problem(503, "draining", "the server is shutting down; ask again", retry_after_s=5.0)
        if path in self.public:
            return None
        token = matching_token(headers.get("authorization"), self.digests)
        wait = self.buckets.take(token or client) if path != METRICS else 0.0
        if wait > 0:
            message = f"more requests than this server's limit; ask again in {wait:.2g} s"
            return Problem(429, "too_many_requests", message, retry_after_s=wait)
        preflight = self.cors and scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self.digests and token is None and not preflight:
            given = "the bearer token is not one of this server's" if "authorization" in headers else "no token"
            return Problem(401, "unauthorized", f"{given}; expected the header Authorization: Bearer TOKEN")
        return None

    def _add_headers(self, scope: Scope, message: MutableMapping[str, Any]) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in SECURITY_HEADERS.items():
            headers.setdefault(name, value)
        if self.cors:
            headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        headers.setdefault("Content-Security-Policy", _DOCS_POLICY if scope["path"] == API_DOCS else _POLICY)
        if scope["path"] not in self.public:
            headers.setdefault("Cache-Control", "no-store")
