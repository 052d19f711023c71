"""What a server is told: its indexes, how it batches, what it refuses, and who may ask."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serving.auth import read_token_file, token_digest

DEFAULT_INDEX = "default"
TOKEN_VARIABLE = "SKILLREASON_TOKEN"
MAX_ID_CHARS = 512
"""Longest skill id that is looked up; a longer one is refused."""


@dataclass(frozen=True)
class ServeSettings:
    """Everything the HTTP side and the search replicas share: plain values, which travel to a replica and stand in a config file.

    Attributes:
        indexes: name -> folder, the first being the one that is searched where a request names none.
        reranker: folder or hub id of a reranker for ``rerank: true``; None: requests for it are refused.
        token_digests: SHA-256 (hex) of every accepted bearer token; empty: only this machine may ask.
        cors_origins: origins whose pages may call the API; empty: none but the server's own.
        max_batch: queries that go through the encoder together at most; 1: no batching.
        batch_wait_s: how long the first query of a batch waits for others while a replica is free.
        max_queue: queries that wait for a replica at most; above it requests get 503.
        max_k, max_queries, max_query_chars, max_rerank_depth, max_body_bytes: what one request may ask for.
        rate, burst: requests a second, and at once, of one client (a token, or an address without one); rate 0: no limit.
        timeout_s: seconds that a body may take to arrive, and then a search, its time in the queue included.
        reload_s: how often the index folders are looked at for a new version.
        threads: CPU threads of torch and FAISS in a search replica; 0: as they are.
    """

    indexes: dict[str, str]
    reranker: str | None = None
    token_digests: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_batch: int = 32
    batch_wait_s: float = 0.002
    max_queue: int = 512
    max_k: int = 100
    max_queries: int = 128
    max_query_chars: int = 8192
    max_rerank_depth: int = 100
    max_body_bytes: int = 2**20
    rate: float = 0.0
    burst: int = 20
    timeout_s: float = 30.0
    reload_s: float = 5.0
    threads: int = 0
    default_index: str = field(init=False)

    def __post_init__(self) -> None:
        """Raise ValueError naming the setting, its value and what would be accepted."""
        if not self.indexes:
            raise ValueError("no index to serve; expected at least one: --index DIR or --index NAME=DIR")
        for name in self.indexes:
            if not name or not all(character.isalnum() or character in "-_." for character in name):
                raise ValueError(f"index name {name!r}: expected letters, digits, '-', '_' and '.' only")
        for name in ("max_batch", "max_queue", "max_k", "max_queries", "max_query_chars", "max_rerank_depth", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.max_body_bytes < 1024:
            raise ValueError(f"max_body_bytes is {self.max_body_bytes}; expected at least 1024")
        for name, positive in (("batch_wait_s", False), ("rate", False), ("timeout_s", True), ("reload_s", True)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (positive and value == 0):
                raise ValueError(f"{name} is {value}; expected a number {'above' if positive else 'of at least'} 0")
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}; expected 0 (as they are) or more")
        if self.max_queries > self.max_queue:
            raise ValueError(
                f"max_queries is {self.max_queries} and max_queue {self.max_queue}: a request of so many queries could never "
                "wait; expected max_queries <= max_queue"
            )
        object.__setattr__(self, "default_index", next(iter(self.indexes)))


@dataclass(frozen=True)
class Scaling:
    """How many search replicas, and what each reserves of the cluster.

    Attributes:
        replicas: that always run.
        max_replicas: that may run while searches wait; 0: as many as ``replicas``.
        cpus, gpus: reserved for each; fractions share.
    """

    replicas: int = 1
    max_replicas: int = 0
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError naming the option and what would be accepted."""
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}; expected at least 1")
        if self.max_replicas and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas is {self.max_replicas}; expected at least replicas, {self.replicas}, or 0")
        for name in ("cpus", "gpus"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 or more")


def parse_indexes(values: Sequence[str]) -> dict[str, str]:
    """``DIR`` or ``NAME=DIR`` each -> name -> absolute folder, in order; the name of a bare ``DIR`` is ``default``.

    Raises:
        ValueError: a folder that does not exist, or a name given twice.
    """
    indexes: dict[str, str] = {}
    for value in values:
        # A folder whose own name holds "=" is a folder, not a pair.
        name, separator, folder = ("", "", value) if Path(value).expanduser().is_dir() else value.partition("=")
        name, folder = (name, folder) if separator else (DEFAULT_INDEX, value)
        path = Path(folder).expanduser().absolute()
        if not path.is_dir():
            raise ValueError(f"--index {value}: no folder {path}; expected one that `skillreason index build` wrote")
        if name in indexes:
            raise ValueError(
                f"--index {value}: the name {name!r} is taken by {indexes[name]}; name it: --index NAME=DIR"
            )
        indexes[name] = str(path)
    return indexes


def accepted_tokens(token_file: str | Path | None, variable: str = TOKEN_VARIABLE) -> tuple[str, ...]:
    """Digests of the tokens of a file (one a line) and of an environment variable; empty where neither is given."""
    tokens = read_token_file(token_file) if token_file is not None else []
    if os.environ.get(variable):
        tokens.append(os.environ[variable])
    return tuple(dict.fromkeys(token_digest(token) for token in tokens))
