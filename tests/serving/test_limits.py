"""Rates, sizes and times: who is refused, with what, and that a body is not read further than the limit."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from fastapi import FastAPI, Request

from serving.engine import BatchOutcome, JobResult
from serving.handlers import add_handlers
from serving.limits import MAX_CLIENTS, BodyLimit, TokenBuckets
from serving.metrics import ServingMetrics

QUERY = {"query": "x"}


class SlowBackend:
    """Answers with nothing, after ``gate`` is set; counts the batches that began."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = 0

    async def search(self, jobs):
        self.begun += 1
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return BatchOutcome([JobResult("1", [[] for _ in job.queries]) for job in jobs], {})

    async def status(self):
        return []


def test_a_bucket_lets_its_burst_through_and_then_its_rate() -> None:
    now = 100.0
    buckets = TokenBuckets(rate=2.0, burst=3, clock=lambda: now)
    assert [buckets.take("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0.0
    now += 0.25  # half a token
    assert buckets.take("a") == pytest.approx(0.25)
    now += 0.25
    assert buckets.take("a") == 0.0
    now += 3600  # never more than the burst
    assert [buckets.take("a") > 0 for _ in range(4)] == [False, False, False, True]


def test_buckets_are_bounded_and_forget_the_client_quiet_longest() -> None:
    buckets = TokenBuckets(rate=0.001, burst=1, clock=lambda: 0.0)
    buckets.take("first")
    for client in range(MAX_CLIENTS - 1):
        buckets.take(str(client))
    assert buckets.take("first") > 0
    buckets.take("one more")
    assert buckets.take("0") == 0.0  # forgotten: a full bucket again


def test_a_rate_of_zero_is_no_limit() -> None:
    buckets = TokenBuckets(rate=0.0, burst=1)
    assert [buckets.take("a") for _ in range(5)] == [0.0] * 5


def test_above_the_rate_429_says_when_to_come_back(serve_with) -> None:
    client = serve_with(rate=0.5, burst=2)
    statuses = [client.post("/search", json=QUERY).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = client.post("/search", json=QUERY)
    assert refused.json()["error"]["code"] == "too_many_requests"
    assert 1 <= int(refused.headers["retry-after"]) <= 2
    assert client.get("/healthz").status_code == 200  # probes are not counted


def run_limited(chunks, headers=(), max_bytes: int = 1000, timeout_s: float = 5.0) -> tuple[dict, int]:
    """Send ``chunks`` through the middleware to an application that reads its whole body: response start, chunks taken."""
    app = FastAPI()
    add_handlers(app, ServingMetrics(list, lambda: 0))

    @app.post("/")
    async def read(request: Request) -> int:
        return len(await request.body())

    taken = 0
    sent: list[dict] = []

    async def receive():
        nonlocal taken
        taken += 1
        chunk = next(chunks, None)
        if chunk is None:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "http_version": "1.1",
        "headers": list(headers), "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    asyncio.run(BodyLimit(app, max_bytes, timeout_s)(scope, receive, send))
    return sent[0], taken


def test_an_endless_body_without_a_length_is_left_at_the_limit() -> None:
    def endless():
        while True:
            yield b"x" * 100

    start, taken = run_limited(endless())
    assert start["status"] == 413
    assert taken == 11
    assert (b"connection", b"close") in start["headers"]


def test_a_length_beyond_the_limit_is_refused_before_a_byte_is_read() -> None:
    start, taken = run_limited(iter([b"x"]), [(b"content-length", b"10000000")])
    assert (start["status"], taken) == (413, 0)


def test_a_false_length_does_not_help() -> None:
    start, _ = run_limited(iter([b"x" * 600] * 5), [(b"content-length", b"10")])
    assert start["status"] == 413


def test_a_body_that_trickles_in_gets_408() -> None:
    start, _ = run_limited(iter([b"x"]), timeout_s=0.05)
    assert start["status"] == 408


def test_ten_megabytes_are_refused_in_the_usual_shape(serve_with) -> None:
    client = serve_with()
    body = json.dumps({"query": "x" * 10_000_000}).encode()
    for content in (body, iter([body[i : i + 2**16] for i in range(0, len(body), 2**16)])):
        response = client.post("/search", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"


def test_what_takes_too_long_gets_504_and_a_search_that_still_waits_is_dropped(serve_with) -> None:
    backend = SlowBackend()
    client = serve_with(backend=backend, timeout_s=0.2, max_batch=1)
    threads = [threading.Thread(target=client.post, args=("/search",), kwargs={"json": QUERY}) for _ in range(3)]
    for thread in threads:
        thread.start()
    response = client.post("/search", json=QUERY)
    for thread in threads:
        thread.join()
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "timeout"
    backend.gate.set()
    time.sleep(0.1)
    assert backend.begun == 1  # the one that was under way; the others were never computed
    assert "skillreason_waiting_queries 0.0" in client.get("/metrics").text


def test_a_full_queue_gets_503_and_the_waiting_ones_are_answered(serve_with) -> None:
    backend = SlowBackend()
    client = serve_with(backend=backend, max_batch=1, max_queue=2, max_queries=2)
    answers: list[int] = []

    def ask() -> None:
        answers.append(client.post("/search", json=QUERY).status_code)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    service = client.app.state.service  # type: ignore[attr-defined]
    while not (backend.begun == 1 and service.batcher.waiting == 2):
        time.sleep(0.005)
    refused = client.post("/search", json=QUERY)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "overloaded"
    backend.gate.set()
    for thread in threads:
        thread.join()
    assert answers == [200, 200, 200]
