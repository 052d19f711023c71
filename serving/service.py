"""What the routes of the HTTP application share: the queue, the time limit, and what the replicas said last about themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from fastapi import FastAPI

from serving.backends import Backend
from serving.batching import Batcher
from serving.engine import EngineStatus, JobResult, SearchJob, newest
from serving.metrics import ServingMetrics
from serving.problems import Problem, RequestProblem
from serving.schema import IndexDescription, SearchOptions, exceeded_limit
from serving.settings import ServeSettings

logger = logging.getLogger(__name__)
STATUS_EVERY_S = 1.0
_STATUS_TIMEOUT_S = 10.0


class Service:
    """What the routes share: the batcher, what the replicas said last, and whether the server is shutting down."""

    def __init__(self, settings: ServeSettings, backend: Backend) -> None:
        self.settings, self.backend = settings, backend
        self.draining = False
        self.in_flight = 0
        self.statuses: list[EngineStatus] = []
        self.metrics = ServingMetrics(lambda: self.statuses, lambda: self.batcher.waiting)
        self.batcher = Batcher(
            backend.search,
            max_batch=settings.max_batch,
            wait_s=settings.batch_wait_s,
            max_queue=settings.max_queue,
            on_batch=self.metrics.observe_batch,
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Hand out batches and ask the replicas how they are while the application runs."""
        self.batcher.start()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await self.batcher.stop()

    async def _watch(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(STATUS_EVERY_S)

    async def refresh(self) -> None:
        """Ask every replica for its state; none answering is a state too."""
        try:
            self.statuses = await asyncio.wait_for(self.backend.status(), _STATUS_TIMEOUT_S)
        except Exception as error:
            if self.statuses:
                logger.warning("no search replica answers: %s", type(error).__name__)
            self.statuses = []
        self.batcher.set_slots(len(self.statuses))

    async def answer(self, request: SearchOptions, queries: list[str]) -> tuple[str, JobResult, float]:
        """Index, rankings, and milliseconds; within the time limit, or RequestProblem (504) and the search is given up."""
        limit = exceeded_limit(request, queries, self.settings)
        if limit is not None:
            field, message = limit
            details = ({"field": field, "message": message},)
            raise RequestProblem(Problem(422, "invalid_request", message, field, details=details))
        index = request.index or self.settings.default_index
        job = SearchJob(
            index, tuple(queries), request.k, request.hybrid, request.rerank, request.rerank_depth, request.domain
        )
        started = time.perf_counter()
        result = await self._in_time(self.batcher.submit(job))
        return index, result, round((time.perf_counter() - started) * 1000, 3)

    async def _in_time(self, work: Coroutine[Any, Any, Any]) -> Any:
        self.in_flight += 1
        try:
            return await asyncio.wait_for(work, self.settings.timeout_s)
        except TimeoutError:
            message = f"no answer within {self.settings.timeout_s:g} s"
            raise RequestProblem(Problem(504, "timeout", message, retry_after_s=1.0)) from None
        finally:
            self.in_flight -= 1

    async def skill(self, index: str, skill_id: str) -> Any:
        """A document, or RequestProblem."""
        found = await self._in_time(self.backend.skill(index, skill_id))
        if isinstance(found, Problem):
            raise RequestProblem(found)
        return found

    def health(self) -> dict[str, Any]:
        """``serving.schema.HealthResponse``: what a load balancer asks."""
        status = "draining" if self.draining else "ready" if self.statuses else "unavailable"
        replicas = [
            {"replica": one.replica, "versions": {name: index.version for name, index in one.indexes.items()}}
            for one in self.statuses
        ]
        return {"status": status, "replicas": replicas, "waiting": self.batcher.waiting}

    def described(self) -> list[IndexDescription]:
        """Every index, as the replica that has the newest version describes it; RequestProblem (503) where none answers."""
        described = []
        for name in self.settings.indexes:
            index = newest(self.statuses, name)
            if index is None:
                message = "no search replica answers yet; ask again"
                raise RequestProblem(Problem(503, "unavailable", message, retry_after_s=2.0))
            known = {key: value for key, value in index.info.items() if key in IndexDescription.model_fields}
            known |= {"kind": index.info["kind"] or "bm25", "version": index.version}
            described.append(IndexDescription(name=name, default=name == self.settings.default_index, **known))
        return described

    async def reload(self) -> list[dict[str, Any]]:
        """Have every replica open newer versions; RequestProblem (409) where one cannot: the old one goes on serving."""
        before = {one.replica: one for one in self.statuses}
        self.statuses = await self.backend.reload()
        failed = {index.error for one in self.statuses for index in one.indexes.values() if index.error}
        if failed:
            message = f"the old version goes on serving: {'; '.join(sorted(failed))}"
            raise RequestProblem(Problem(409, "reload_failed", message))
        return [
            {
                "replica": one.replica,
                "index": name,
                "version": index.version,
                "reloaded": one.replica in before and before[one.replica].indexes[name].version != index.version,
            }
            for one in self.statuses
            for name, index in one.indexes.items()
        ]
