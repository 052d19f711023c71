"""Where searches are computed, as the HTTP side sees it: in this process here, in Ray Serve's replicas in ``serving.app``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from serving.engine import BatchOutcome, EngineStatus, SearchEngine, SearchJob


class Backend(Protocol):
    """What ``serving.http_app`` asks of whoever holds the indexes."""

    async def search(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        """Answer a batch; RequestProblem (503) where no replica can."""
        ...

    async def skill(self, index: str, skill_id: str) -> Any:
        """A ``data_pipeline.Skill`` or a ``Problem``."""
        ...

    async def status(self) -> list[EngineStatus]:
        """One entry a live replica; empty where none answers."""
        ...

    async def reload(self) -> list[EngineStatus]:
        """Open newer versions now, in every replica."""
        ...


class LocalBackend:
    """The engine in this process: one thread computes searches, the event loop stays free.

    ``build_http(settings, LocalBackend(SearchEngine(settings)))`` is an ASGI application that needs no Ray.
    """

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search")

    async def search(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        return await asyncio.get_running_loop().run_in_executor(self._searches, self.engine.search, list(jobs))

    async def skill(self, index: str, skill_id: str) -> Any:
        return await asyncio.to_thread(self.engine.skill, index, skill_id)

    async def status(self) -> list[EngineStatus]:
        return [self.engine.status()]

    async def reload(self) -> list[EngineStatus]:
        await asyncio.to_thread(self.engine.reload)
        return [self.engine.status()]
