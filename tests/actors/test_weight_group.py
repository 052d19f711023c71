"""A broadcast gives every receiver the sender's weights, or every member that lives an error in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from actors.weight_buckets import Bucket, fill_buckets
from actors.weight_group import WeightGroup, WeightTransferError, connect_store, serve_store
from actors.weight_sync import WeightPublisher

WEIGHTS = {f"w{i}": torch.randn(300, 1000, generator=torch.Generator().manual_seed(i)) for i in range(12)}
"""Twelve buckets of 1.2 MB: more than sockets buffer."""

Members = tuple[WeightGroup, list[WeightGroup]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def make_group(pool: ThreadPoolExecutor) -> Callable[..., Members]:
    """A sender and two receivers, each in a thread: gloo does not mind that they share a process."""

    def make(timeout_s: float = 20.0, receivers: int = 2) -> Members:
        store = serve_store(timeout_s)
        size = receivers + 1
        sender = pool.submit(WeightGroup, store, 0, size, "gloo", timeout_s)
        others = [
            pool.submit(
                lambda r: WeightGroup(connect_store("localhost", store.port, timeout_s), r, size, "gloo", timeout_s), r
            )
            for r in range(1, size)
        ]
        return sender.result(), [other.result() for other in others]

    return make


def received(group: WeightGroup) -> tuple[int, dict[str, torch.Tensor]]:
    version, buckets = group.receive()
    return version, {name: tensor for bucket in buckets for name, tensor in bucket.parameters()}


def buckets(shift: float = 0.0) -> Iterator[Bucket]:
    return fill_buckets(((name, tensor + shift) for name, tensor in WEIGHTS.items()), 1, "float32")


def test_every_receiver_gets_the_weights_of_each_send(
    make_group: Callable[..., Members], pool: ThreadPoolExecutor
) -> None:
    sender, receivers = make_group()
    for version, shift in ((3, 0.0), (4, 0.5)):
        futures = [pool.submit(received, r) for r in receivers]
        sender.send(version, buckets(shift))
        for future in futures:
            got, weights = future.result()
            assert got == version
            assert list(weights) == list(WEIGHTS)
            assert all(torch.equal(weights[name], WEIGHTS[name] + shift) for name in WEIGHTS)


def test_a_silent_receiver_is_an_error_for_sender_and_receivers(
    make_group: Callable[..., Members], pool: ThreadPoolExecutor
) -> None:
    sender, (first, _silent) = make_group(timeout_s=2.0)
    start = time.monotonic()
    waiting = pool.submit(received, first)
    passed: list[int] = []

    def counted() -> Iterator[Bucket]:
        for bucket in buckets():
            passed.append(len(passed))
            yield bucket

    with pytest.raises(WeightTransferError, match="weights of version 1 failed"):
        sender.send(1, counted())
    with pytest.raises(WeightTransferError):
        waiting.result()
    assert time.monotonic() - start < 15
    assert len(passed) == len(
        WEIGHTS
    )  # gathering them is a collective of the policy's workers, which must not stop half-way


def test_a_receiver_that_leaves_the_weights_unused_holds_nobody_up(
    make_group: Callable[..., Members], pool: ThreadPoolExecutor
) -> None:
    sender, (first, second) = make_group(timeout_s=5.0)

    def drained() -> int:
        version, rest = second.receive()
        next(rest)
        return version + sum(0 for _ in rest)

    futures: list[Future] = [pool.submit(received, first), pool.submit(drained)]
    sender.send(7, buckets())
    assert futures[0].result()[0] == 7
    assert futures[1].result() == 7


def test_a_member_that_never_joins_is_an_error_in_time() -> None:
    store = serve_store(1.0)
    start = time.monotonic()
    with pytest.raises(WeightTransferError, match="rank 0 of 2 could not join the weight group"):
        WeightGroup(store, 0, 2, "gloo", 1.0)
    assert time.monotonic() - start < 10


def test_a_sender_that_is_gone_is_named() -> None:
    store = serve_store(1.0)
    port = store.port
    del store
    with pytest.raises(WeightTransferError, match=f"no answer from the weight group's sender at localhost:{port}"):
        connect_store("localhost", port, 1.0)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"backend is 'mpi'; expected one of \('nccl', 'gloo'\)"):
        WeightGroup(serve_store(1.0), 0, 1, "mpi", 1.0)


def test_default_group_is_untouched(make_group: Callable[..., Members]) -> None:
    make_group()
    assert not torch.distributed.is_initialized()


def test_the_policys_other_workers_help_to_gather_and_send_nothing() -> None:
    gathered: list[str] = []

    def parameters() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in WEIGHTS.items():
            gathered.append(name)
            yield name, tensor

    other = WeightPublisher(parameters, rank=1, bucket_mb=1, device="cpu")
    assert other.publish(1, "float32") is None
    other.broadcast(1, "float32")
    assert gathered == [*WEIGHTS, *WEIGHTS]
