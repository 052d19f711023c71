"""Which errors of a group are worth another try, and how a loss is described."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from cluster import controller
from cluster.controller import GroupCallback, describe, find_mistake
from configs.errors import EXPECTED_ERRORS

DIED = WorkerHealthCheckFailedError("A worker health check failed.\nWorker info: ...", failure=ActorDiedError())
SILENT = WorkerHealthCheckFailedError("A worker health check failed.", failure=TimeoutError("no answer in 600 s"))


class OutOfMemoryError(RuntimeError):
    """By its name alone: torch.OutOfMemoryError, without importing torch."""


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("train.jsonl"),
        ValueError("data.max_length is 3"),
        FloatingPointError("the gradient norm is nan"),
        KeyError("model.embed"),
        AssertionError(),
        OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_what_would_come_again_is_a_mistake(error: Exception):
    assert find_mistake({0: RuntimeError("Connection closed by peer"), 1: error}, EXPECTED_ERRORS) is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
        ConnectionResetError("peer"),
        TimeoutError("collective"),
        ActorDiedError(),
        DIED,
        SILENT,
    ],
)
def test_what_a_lost_process_brings_about_is_none(error: Exception):
    assert find_mistake({1: error}, EXPECTED_ERRORS) is None


def test_where_a_process_died_the_others_errors_do_not_count():
    assert find_mistake({0: ValueError("half a message"), 1: DIED}, EXPECTED_ERRORS) is None


def test_the_first_process_that_names_a_mistake_is_heard():
    errors = {0: OSError("disk full"), 1: ValueError("rank 0 could not write: disk full")}
    assert find_mistake(errors, EXPECTED_ERRORS) is errors[0]


@pytest.mark.parametrize(
    ("errors", "line"),
    [
        ({0: RuntimeError("a\nConnection closed by peer"), 1: DIED}, "worker 1's process died"),
        ({2: SILENT}, "worker 2 does not answer: no answer in 600 s"),
        ({0: RuntimeError("trace\n  Connection closed by peer")}, "worker 0: RuntimeError: Connection closed by peer"),
        ({}, ""),
    ],
)
def test_a_loss_is_one_line(errors: dict[int, Exception], line: str):
    assert describe(errors) == line


@pytest.mark.parametrize(
    ("saved_at", "hangs_at", "given_up_at"),
    [(1200, 1e6, 1200), (1e6, 1e6, 1800), (1e6, 400, 400)],
    ids=["a slow save", "a save without end", "a group that hangs"],
)
def test_a_resize_waits_for_a_slow_save_but_not_for_a_group_that_hangs(monkeypatch, saved_at, hangs_at, given_up_at):
    now, ended = [0.0], []

    def answer(method: str, *arguments: Any) -> Any:
        if method == "ended":
            ended.append(now[0])
        return {"wish": True, "wish_pending": now[0] < saved_at, "hangs": now[0] >= hangs_at}.get(method)

    methods = ("wish", "wish_pending", "hangs", "ended")
    monitor = SimpleNamespace(**{m: SimpleNamespace(remote=lambda *a, m=m: answer(m, *a)) for m in methods})
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + 10))
    monkeypatch.setattr(controller, "time", clock)
    monkeypatch.setattr(controller, "ray", SimpleNamespace(get=lambda value: value))
    GroupCallback(monitor, (), 3)._save_and_leave(4)
    assert ended == [given_up_at]
