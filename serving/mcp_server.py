"""An MCP server with which agents find skills and read them, over stdio or streamable HTTP.

Nothing but the protocol goes to stdout; the log goes to stderr. ``initialize`` and ``tools/list`` are answered at once, while
the models load in a thread; a call that comes before waits for them, with progress notifications for clients that ask for them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.auth import check_listen, is_loopback, matching_token
from serving.index import IndexInfo
from serving.library import Library, ToolRefusedError, supports_hybrid
from serving.mcp_tools import (
    FindSkillsArguments,
    FindSkillsResult,
    ReadSkillArguments,
    ReadSkillResult,
    SkillTools,
    known_domains,
)
from serving.problems import Problem, shown

logger = logging.getLogger(__name__)

LIBRARY_URI = "skillreason://library"
HTTP_PATH = "/mcp"
MAX_BODY_BYTES = 2**20
PROGRESS_S = 2.0
"""Seconds between two progress notifications while the models load."""

INSTRUCTIONS = (
    "A library of skills: documents that say how to do a task well. Before you begin a task that a skill may cover, call "
    "find_skills with the user's own words. If the name and description of a result fit the task, call read_skill with its "
    "skill_id and follow the document. If none fits, go on without a skill."
)
_FIND = (
    "Find the skills that help with a request, among {n_skills} skills{domains}. Call it before you begin a task that somebody "
    "may have written instructions for: using a tool, format, service or procedure. Pass the user's own words, not keywords. "
    "Returns skill_id, name and description of the best matches. It always returns the nearest ones, so check that a description "
    "fits before you use it; then call read_skill for the one that fits."
)
_READ = (
    "Read the document of a skill that find_skills returned. Call it before you follow a skill: the description alone does not "
    "say how. Long documents come in pages: while next_offset is not null, call again with offset = next_offset."
)

_READ_ONLY = types.ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def build_server(tools: SkillTools) -> Server[Any]:
    """The server, for any transport. Its models begin to load when a transport starts it."""

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_describe(tools.library.info))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name not in ("find_skills", "read_skill"):
            message = f"no tool {shown(params.name)}; expected find_skills or read_skill"
            raise MCPError(types.INVALID_PARAMS, message)
        async with _progress(context, tools.library):
            return await anyio.to_thread.run_sync(_answer, tools, params, abandon_on_cancel=True)

    async def list_resources(_: Any, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        about = "Size, version and domains of the skill library, with the number of skills in each domain."
        return types.ListResourcesResult(
            resources=[types.Resource(uri=LIBRARY_URI, name="library", description=about, mime_type="application/json")]
        )

    async def read_resource(_: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) != LIBRARY_URI:
            raise MCPError(types.INVALID_PARAMS, f"no resource {shown(str(params.uri))}; expected {LIBRARY_URI}")
        info = tools.library.info
        text = _json(
            {
                "n_skills": info.n_skills,
                "domains": info.domains,
                "model": info.model or "bm25",
                "hybrid": supports_hybrid(info),
                "rerank": info.has_reranker,
                "index_version": info.version,
                "built_at": info.built_at,
            }
        )
        contents = types.TextResourceContents(uri=LIBRARY_URI, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])

    @contextlib.asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        threading.Thread(target=_load, args=(tools.library,), name="load models", daemon=True).start()
        yield {}

    from skillreason import __version__

    return Server(
        "skillreason",
        version=__version__,
        title="SkillReason",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def run_stdio(tools: SkillTools) -> None:
    """Serve one client over stdin and stdout until it closes them."""

    async def serve() -> None:
        server = build_server(tools)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def http_app(tools: SkillTools, host: str, token_digests: Sequence[str]) -> ASGIApp:
    """The server at ``/mcp`` as an ASGI application. It keeps no sessions, so a restart goes unnoticed by clients.

    Raises:
        ValueError: a host that other machines reach, and no token.
    """
    check_listen(host, token_digests)
    names = ["127.0.0.1", "localhost", "[::1]"]
    if is_loopback(host) and host not in names:
        names.append(f"[{host}]" if ":" in host else host)
    # Without a token a web page must not get here by a name of its own that points to this machine (DNS rebinding).
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=not token_digests,
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[f"http://{name}{port}" for name in names for port in ("", ":*")],
    )
    app = build_server(tools).streamable_http_app(
        streamable_http_path=HTTP_PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=security,
        host=host,
    )
    return _Bearer(app, token_digests) if token_digests else app


def run_http(tools: SkillTools, host: str, port: int, token_digests: Sequence[str]) -> None:
    """Serve any number of clients at ``http://HOST:PORT/mcp`` until interrupted."""
    import uvicorn

    app = http_app(tools, host, token_digests)
    logging.getLogger("mcp").setLevel(logging.WARNING)  # a line for every request otherwise
    where = f"[{host}]" if ":" in host else host
    logger.info("serving MCP at http://%s:%d%s (%s)", where, port, HTTP_PATH, "token" if token_digests else "no token")
    uvicorn.run(app, host=host, port=port, log_config=None, access_log=False)


class _Bearer:
    """ASGI middleware: 401 for every request without one of the tokens."""

    def __init__(self, app: ASGIApp, digests: Sequence[str]) -> None:
        self.app, self.digests = app, digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = Headers(scope=scope).get("authorization")
            if matching_token(header, self.digests) is None:
                given = "no token" if header is None else "the bearer token is not one of this server's"
                problem = Problem(401, "unauthorized", f"{given}; expected the header Authorization: Bearer TOKEN")
                await problem.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _describe(info: IndexInfo) -> list[types.Tool]:
    """Both tools, as they fit the index: a switch that it does not support is not offered."""
    domains = known_domains(info)
    find = FindSkillsArguments.model_json_schema()
    if not domains:
        del find["properties"]["domain"]
    if not supports_hybrid(info):
        del find["properties"]["hybrid"]
    if not info.has_reranker:
        del find["properties"]["rerank"]
    return [
        _tool(
            "find_skills",
            "Find skills",
            _FIND.format(n_skills=info.n_skills, domains=f" (domains: {domains})" if domains else ""),
            find,
            FindSkillsResult,
        ),
        _tool("read_skill", "Read a skill", _READ, ReadSkillArguments.model_json_schema(), ReadSkillResult),
    ]


def _tool(name: str, title: str, description: str, input_schema: dict[str, Any], result: type[BaseModel]) -> types.Tool:
    return types.Tool(
        name=name,
        title=title,
        description=description,
        input_schema=_bare(input_schema),
        output_schema=_bare(result.model_json_schema(mode="serialization")),
        annotations=_READ_ONLY,
    )


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without pydantic's titles and our docstrings: every agent pays for each word of it, in every conversation."""
    for part in (schema, *schema.get("$defs", {}).values()):
        part.pop("title", None)
        part.pop("description", None)
        for value in part["properties"].values():
            value.pop("title", None)
    return schema


@contextlib.asynccontextmanager
async def _progress(context: Any, library: Library) -> AsyncIterator[None]:
    """Tell a client that waits for the models that they are still loading, so that it does not give up."""

    async def report() -> None:
        for count in range(1, 10_000):
            await anyio.sleep(PROGRESS_S)
            if library.ready:
                return
            await context.session.report_progress(count, message="loading the model")

    async with anyio.create_task_group() as tasks:
        if not library.ready:
            tasks.start_soon(report)
        yield
        tasks.cancel_scope.cancel()


def _answer(tools: SkillTools, params: types.CallToolRequestParams) -> types.CallToolResult:
    try:
        result = tools.call(params.name, params.arguments or {})
    except ToolRefusedError as error:
        return _error(str(error))
    except Exception:
        logger.exception("%s failed", params.name)
        return _error("the server failed to answer; its log (stderr) says why. Other calls may work")
    text = _json(result.model_dump())
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=json.loads(text))


def _load(library: Library) -> None:
    try:
        library.searcher()
    except Exception as error:  # told to the agent by its first call, which tries again
        logger.error("%s", error)


def _error(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=_utf8(message))], is_error=True)


def _json(value: Any) -> str:
    return _utf8(json.dumps(value, ensure_ascii=False))


def _utf8(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot hold, become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
