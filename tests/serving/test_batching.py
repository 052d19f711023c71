"""The batcher: what goes together, what waits, what is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from serving.batching import Batcher
from serving.engine import BatchOutcome, JobResult, SearchJob
from serving.problems import Problem, RequestProblem


def job(*queries: str) -> SearchJob:
    return SearchJob("default", queries)


class Recorder:
    """Runs batches one at a time as ``release`` lets them; remembers what each held."""

    def __init__(self, free: bool = False) -> None:
        self.batches: list[list[tuple[str, ...]]] = []
        self.release = asyncio.Semaphore(1000 if free else 0)
        self.now = self.most = 0

    async def __call__(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        self.batches.append([one.queries for one in jobs])
        self.now += 1
        self.most = max(self.most, self.now)
        await self.release.acquire()
        self.now -= 1
        if any("explode" in one.queries for one in jobs):
            raise RuntimeError("boom")
        results: list[JobResult | Problem] = [
            Problem(404, "no", one.queries[0])
            if one.queries[0] == "refuse"
            else JobResult("1", [[] for _ in one.queries])
            for one in jobs
        ]
        return BatchOutcome(results, {"encode": 0.5})


def started(recorder: Recorder, **changed) -> Batcher:
    batcher = Batcher(recorder, **({"max_batch": 4, "wait_s": 0.0, "max_queue": 100} | changed))
    batcher.start()
    return batcher


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_arrives_while_a_batch_is_computed_goes_together() -> None:
    async def scenario() -> list:
        recorder = Recorder()
        batcher = started(recorder)
        asks = []
        for name in "abcd":
            asks.append(asyncio.create_task(batcher.submit(job(name))))
            await settle()
        recorder.release.release()
        await asks[0]
        await settle()
        recorder.release.release()
        await asyncio.gather(*asks)
        return recorder.batches

    assert asyncio.run(scenario()) == [[("a",)], [("b",), ("c",), ("d",)]]


def test_a_batch_is_full_at_its_number_of_queries_and_keeps_the_order() -> None:
    async def scenario() -> list:
        recorder = Recorder()
        batcher = started(recorder)
        jobs = [job("a"), job("b", "c"), job("d", "e"), job("f"), job(*"ghijk"), job("l")]
        asks = []
        for one in jobs:
            asks.append(asyncio.create_task(batcher.submit(one)))
            await settle()
        for _ in range(10):
            recorder.release.release()
            await settle()
        await asyncio.gather(*asks)
        return recorder.batches

    # A job is never split: ("g" … "k") is larger than a batch and goes alone.
    assert asyncio.run(scenario()) == [
        [("a",)],
        [("b", "c"), ("d", "e")],
        [("f",)],
        [tuple("ghijk")],
        [("l",)],
    ]


def test_with_a_wait_the_first_query_is_joined_by_later_ones() -> None:
    async def scenario() -> list:
        recorder = Recorder(free=True)
        batcher = started(recorder, wait_s=0.2)
        first = asyncio.create_task(batcher.submit(job("a")))
        await asyncio.sleep(0.01)
        await asyncio.gather(first, batcher.submit(job("b")))
        return recorder.batches

    assert asyncio.run(scenario()) == [[("a",), ("b",)]]


def test_a_full_batch_does_not_wait() -> None:
    async def scenario() -> None:
        batcher = started(Recorder(free=True), wait_s=30.0)
        await asyncio.wait_for(asyncio.gather(*(batcher.submit(job(name)) for name in "abcd")), 5)

    asyncio.run(scenario())


def test_as_many_batches_run_at_once_as_there_are_replicas() -> None:
    async def scenario() -> int:
        recorder = Recorder()
        batcher = started(recorder, max_batch=1)
        batcher.set_slots(3)
        asks = [asyncio.create_task(batcher.submit(job(str(number)))) for number in range(10)]
        await settle()
        for _ in range(10):
            recorder.release.release()
            await settle()
        await asyncio.gather(*asks)
        return recorder.most

    assert asyncio.run(scenario()) == 3


def test_each_gets_its_own_answer_refusal_or_failure() -> None:
    async def scenario() -> None:
        batcher = started(Recorder(free=True))
        good, refused = await asyncio.gather(
            batcher.submit(job("x", "y")), batcher.submit(job("refuse")), return_exceptions=True
        )
        assert isinstance(good, JobResult)
        assert len(good.rankings) == 2
        assert isinstance(refused, RequestProblem)
        assert refused.problem.message == "refuse"
        with pytest.raises(RuntimeError, match="boom"):
            await batcher.submit(job("explode"))
        assert isinstance(await batcher.submit(job("still works")), JobResult)

    asyncio.run(scenario())


def test_a_caller_that_gives_up_is_not_computed() -> None:
    async def scenario() -> tuple[list, int]:
        recorder = Recorder()
        batcher = started(recorder)
        first = asyncio.create_task(batcher.submit(job("a")))
        await settle()
        waiting = [asyncio.create_task(batcher.submit(job(name))) for name in "bc"]
        await settle()
        waiting[0].cancel()
        await settle()
        left = batcher.waiting
        for _ in range(5):
            recorder.release.release()
        await asyncio.gather(first, waiting[1])
        return recorder.batches, left

    assert asyncio.run(scenario()) == ([[("a",)], [("c",)]], 1)


def test_a_queue_that_is_full_refuses_and_says_when_to_ask_again() -> None:
    async def scenario() -> None:
        batcher = started(Recorder(), max_queue=2)
        asks = []
        for name in "abc":
            asks.append(asyncio.create_task(batcher.submit(job(name))))
            await settle()
        with pytest.raises(RequestProblem) as caught:
            await batcher.submit(job("d"))
        assert (caught.value.problem.status, caught.value.problem.retry_after_s) == (503, 1.0)
        for ask in asks:
            ask.cancel()

    asyncio.run(scenario())


def test_the_observer_learns_sizes_and_waits() -> None:
    async def scenario() -> list:
        seen: list = []
        batcher = started(
            Recorder(free=True), on_batch=lambda outcome, waits, size: seen.append((outcome.phases, len(waits), size))
        )
        await batcher.submit(job("a", "b", "c"))
        await settle()
        return seen

    assert asyncio.run(scenario()) == [({"encode": 0.5}, 1, 3)]


def test_stopping_answers_what_is_under_way_and_refuses_what_waits() -> None:
    async def scenario() -> None:
        recorder = Recorder()
        batcher = started(recorder)
        running = asyncio.create_task(batcher.submit(job("a")))
        await settle()
        waiting = asyncio.create_task(batcher.submit(job("b")))
        await settle()
        recorder.release.release()
        await batcher.stop()
        assert isinstance(await running, JobResult)
        with pytest.raises(RequestProblem, match="shutting down"):
            await waiting

    asyncio.run(scenario())
