"""Dynamic batching: searches that arrive while the replicas are busy go through the encoder together.

Ray Serve's ``serve.batch`` batches inside a replica, behind one call a request. This batches in front of the replicas: a batch is
one call, a search that nobody waits for any more is never computed, and the same code runs without Ray.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from serving.engine import BatchOutcome, JobResult, SearchJob
from serving.problems import Problem, RequestProblem

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting:
    job: SearchJob
    answer: asyncio.Future[JobResult]
    arrived: float = field(default_factory=time.perf_counter)


class Batcher:
    """A queue of searches, and at most ``slots`` batches of them under way: one a replica."""

    def __init__(
        self,
        run: Callable[[Sequence[SearchJob]], Awaitable[BatchOutcome]],
        *,
        max_batch: int,
        wait_s: float,
        max_queue: int,
        on_batch: Callable[[BatchOutcome, Sequence[float], int], None] | None = None,
    ) -> None:
        """``run`` answers a batch; ``on_batch`` learns its outcome, the seconds each job waited, and its number of queries."""
        self._run = run
        self._max_batch = max_batch
        self._wait_s = wait_s
        self._max_queue = max_queue
        self._on_batch = on_batch
        self._queue: deque[_Waiting] = deque()
        self._batches: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._dispatcher: asyncio.Task[None] | None = None
        self.slots = 1
        self.waiting = 0
        """Queries in the queue, those of batches under way not counted."""

    def start(self) -> None:
        """Begin to hand out batches; call it inside the event loop."""
        self._dispatcher = asyncio.get_running_loop().create_task(self._dispatch())

    async def stop(self) -> None:
        """Stop handing out batches and let those under way finish; whoever still waits gets 503."""
        if self._dispatcher is not None:
            self._dispatcher.cancel()
            await asyncio.gather(self._dispatcher, return_exceptions=True)
        while self._queue:
            entry = self._queue.popleft()
            if not entry.answer.done():
                entry.answer.set_exception(RequestProblem(Problem(503, "draining", "the server is shutting down")))
        self.waiting = 0
        await asyncio.gather(*self._batches, return_exceptions=True)

    def set_slots(self, slots: int) -> None:
        """How many batches may be under way at once: the number of live replicas."""
        self.slots = max(1, slots)
        self._changed.set()

    async def submit(self, job: SearchJob) -> JobResult:
        """The answer to one job; its queries stay in one batch, hence on one version of the index.

        Raises:
            RequestProblem: the queue is full (503), or what the replica refused.
            asyncio.CancelledError: the caller gave up; a job that still waits is dropped.
        """
        if self.waiting and self.waiting + len(job.queries) > self._max_queue:
            message = f"{self.waiting} queries wait already; expected at most {self._max_queue} with yours"
            raise RequestProblem(Problem(503, "overloaded", message, retry_after_s=1.0))
        entry = _Waiting(job, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        self.waiting += len(job.queries)
        self._changed.set()
        try:
            return await entry.answer
        except asyncio.CancelledError:
            if entry in self._queue:
                self._queue.remove(entry)
                self.waiting -= len(job.queries)
            raise

    async def _dispatch(self) -> None:
        while True:
            while not self._queue or len(self._batches) >= self.slots:
                self._changed.clear()
                await self._changed.wait()
            await self._fill()
            batch = self._take()
            if batch:
                task = asyncio.get_running_loop().create_task(self._answer(batch))
                self._batches.add(task)
                task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._changed.set()

    async def _fill(self) -> None:
        """Wait for a full batch, but no longer than ``wait_s`` after its first job arrived."""
        while self._queue and self.waiting < self._max_batch:
            left = self._queue[0].arrived + self._wait_s - time.perf_counter()
            if left <= 0:
                return
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[_Waiting]:
        """Jobs of at most ``max_batch`` queries together, in order of arrival; one larger job goes alone."""
        taken: list[_Waiting] = []
        queries = 0
        while self._queue and (not taken or queries + len(self._queue[0].job.queries) <= self._max_batch):
            entry = self._queue.popleft()
            self.waiting -= len(entry.job.queries)
            queries += len(entry.job.queries)
            taken.append(entry)
        return taken

    async def _answer(self, batch: list[_Waiting]) -> None:
        started = time.perf_counter()
        try:
            outcome = await self._run([entry.job for entry in batch])
        except Exception as error:
            for entry in batch:
                if not entry.answer.done():
                    entry.answer.set_exception(error)
            return
        for entry, result in zip(batch, outcome.results, strict=True):
            if entry.answer.done():
                continue
            if isinstance(result, Problem):
                entry.answer.set_exception(RequestProblem(result))
            else:
                entry.answer.set_result(result)
        if self._on_batch is not None:
            waits = [started - entry.arrived for entry in batch]
            self._on_batch(outcome, waits, sum(len(entry.job.queries) for entry in batch))
