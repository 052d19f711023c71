"""The command that serves an index over HTTP: ``skillreason serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

serve_app = typer.Typer()


@serve_app.command(
    "serve", epilog="[bold]Example:[/bold] skillreason serve --index library.index --reranker runs/mine/export"
)
def serve(
    index: Annotated[
        list[str], typer.Option(help="DIR or NAME=DIR of an index; may be repeated, the first is the default")
    ],
    reranker: Annotated[str | None, typer.Option(help="folder or hub id of a reranker (default: the index's)")] = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; beyond this machine only with a token")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0: a free one")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="accepted bearer tokens, one a line; also: SKILLREASON_TOKEN in the environment")
    ] = None,
    address: Annotated[str | None, typer.Option(help="a Ray cluster, such as auto (default: a Ray of its own)")] = None,
    replicas: Annotated[int, typer.Option(help="search replicas that always run")] = 1,
    max_replicas: Annotated[int, typer.Option(help="search replicas under load; 0: no more than --replicas")] = 0,
    cpus: Annotated[float, typer.Option(help="CPUs that a replica reserves")] = 1.0,
    gpus: Annotated[float, typer.Option(help="GPUs that a replica reserves; fractions share one")] = 0.0,
    threads: Annotated[int, typer.Option(help="CPU threads of a replica; 0: its share of this machine, or --cpus")] = 0,
    max_batch: Annotated[int, typer.Option(help="queries encoded together at most; 1: no batching")] = 32,
    batch_wait_ms: Annotated[
        float, typer.Option(help="how long a query waits for others while a replica is free")
    ] = 2.0,
    max_queue: Annotated[int, typer.Option(help="queries that wait at most; above it 503")] = 512,
    max_k: Annotated[int, typer.Option(help="largest k of a request")] = 100,
    max_queries: Annotated[int, typer.Option(help="queries of a batch request at most")] = 128,
    max_query_chars: Annotated[int, typer.Option(help="characters of a query at most")] = 8192,
    max_body_bytes: Annotated[int, typer.Option(help="size of a request's body at most; above it 413")] = 2**20,
    rate: Annotated[
        float, typer.Option(help="requests a second of one token or address; above it 429; 0: no limit")
    ] = 0.0,
    burst: Annotated[int, typer.Option(help="requests at once that --rate lets through")] = 20,
    timeout: Annotated[float, typer.Option(help="seconds until a request gets 504")] = 30.0,
    reload_every: Annotated[float, typer.Option(help="seconds between looks for a new version of an index")] = 5.0,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="origin whose pages may call the API; may be repeated (default: none)")
    ] = None,
) -> None:
    """Serve one or several indexes over HTTP with Ray Serve, with a page to try them at / (docs/serving.md)."""
    import os

    from serving.serve import Listen, run_server
    from serving.settings import Scaling, ServeSettings, accepted_tokens, parse_indexes

    scaling = Scaling(replicas, max_replicas, cpus, gpus)
    if threads == 0:
        share = cpus if address is not None else (os.cpu_count() or 1) / max(replicas, max_replicas)
        threads = max(1, int(share))
    settings = ServeSettings(
        parse_indexes(index),
        reranker=reranker,
        token_digests=accepted_tokens(token_file),
        cors_origins=tuple(cors_origin or ()),
        max_batch=max_batch,
        batch_wait_s=batch_wait_ms / 1000,
        max_queue=max_queue,
        max_k=max_k,
        max_queries=max_queries,
        max_query_chars=max_query_chars,
        max_body_bytes=max_body_bytes,
        rate=rate,
        burst=burst,
        timeout_s=timeout,
        reload_s=reload_every,
        threads=threads,
    )
    run_server(settings, scaling, Listen(host, port, address), say=lambda line: print(line, flush=True))
