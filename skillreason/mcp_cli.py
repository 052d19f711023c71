"""The command that gives a skill library to agents: ``skillreason mcp``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillreason.cluster_cli import example

mcp_app = typer.Typer()


@mcp_app.command(epilog=example("skillreason mcp --index library.index --http"))
def mcp(
    index: Annotated[Path, typer.Option(help="folder that skillreason index build wrote; updates of it are followed")],
    model: Annotated[str | None, typer.Option(help="where the index's model is now, if it has moved")] = None,
    reranker: Annotated[str | None, typer.Option(help="a reranker, if not the one recorded in the index")] = None,
    fusion_weight: Annotated[
        float | None, typer.Option(help="weight of the dense list in hybrid searches, if not the index's")
    ] = None,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="fuse with BM25 unless the agent says otherwise")] = False,
    rerank: Annotated[bool, typer.Option("--rerank", help="rerank unless the agent says otherwise")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: a GPU where there is one)")] = None,
    http: Annotated[bool, typer.Option("--http", help="streamable HTTP at /mcp instead of stdin and stdout")] = False,
    host: Annotated[
        str, typer.Option(help="with --http: address to listen on; beyond this machine a token is needed")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(help="with --http: port to listen on", min=1, max=65535)] = 8001,
    token_file: Annotated[
        Path | None,
        typer.Option(help="with --http: accepted bearer tokens, one a line (also: SKILLREASON_TOKEN)"),
    ] = None,
) -> None:
    """Serve a skill library to agents by the Model Context Protocol: tools find_skills and read_skill (docs/agents.md)."""
    from serving.library import Library
    from serving.mcp_server import run_http, run_stdio
    from serving.mcp_tools import SkillTools

    if not http and token_file is not None:
        raise ValueError(
            "--token-file is for --http; over stdin and stdout only the process that started this one asks"
        )
    library = Library(index, model=model, reranker=reranker, fusion_weight=fusion_weight, device=device)
    tools = SkillTools(library, hybrid=hybrid, rerank=rerank)
    if http:
        from serving.settings import accepted_tokens

        run_http(tools, host, port, accepted_tokens(token_file))
    else:
        run_stdio(tools)
