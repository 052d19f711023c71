"""A push gives every rollout worker the policy's exact weights, by the object store and by broadcast, and survives lost workers.

The policy worker and the rollout workers are Ray actors in processes of their own.
"""

from __future__ import annotations

import inspect
import os
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.rollout import RolloutWorker
from actors.weight_sync import Push, WeightPublisher, WeightSync, WeightUpdate, _answers
from configs.schema import ModelConfig, RolloutConfig
from models.backbone import Backbone
from models.generation import SamplingParams
from models.tiny import TinyConfig, create_tiny

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SHAPE = TinyConfig(
    vocab_size=400, hidden_size=256, intermediate_size=1024, num_layers=2, num_heads=8, num_key_value_heads=4
)
"""Two million parameters: eight buckets and more of the smallest size."""

TIMEOUT_S = 5.0


def moved_parameters(folder: Path) -> Callable[[], Iterator[tuple[str, torch.Tensor]]]:
    """An engine's ``full_parameters``: the model's weights moved by the number in ``folder/shift``. It stops half-way, and
    touches ``folder/paused``, while ``folder/pause`` exists."""

    def parameters() -> Iterator[tuple[str, torch.Tensor]]:
        shift = float((folder / "shift").read_text())
        for index, (name, tensor) in enumerate(Backbone.load(folder).state().items()):
            if index == 10 and (folder / "pause").exists():
                (folder / "paused").touch()
                while (folder / "pause").exists():
                    time.sleep(0.01)
            yield name, tensor + shift

    return parameters


class Call:
    """A remote call that is under way."""

    def __init__(self, reference: Any, value: Any = None):
        self.reference, self.value = reference, value

    def result(self) -> Any:
        import ray

        ray.get(self.reference)
        return self.value


class Source:
    """A policy of one worker, as :class:`WeightSync` sees it."""

    def __init__(self, folder: Path):
        import ray

        self.folder = folder
        self.version = 0
        self.worker: Any = (
            ray.remote(WeightPublisher)
            .options(num_cpus=0)
            .remote(moved_parameters(folder), rank=0, bucket_mb=1, device="cpu", timeout_s=TIMEOUT_S)
        )

    def weight_device(self) -> str:
        import ray

        return ray.get(self.worker.device.remote())

    def publish_weights(self, dtype: str) -> WeightUpdate:
        import ray

        return ray.get(self.worker.publish.remote(self.version, dtype))

    def open_weight_group(self) -> tuple[str, int]:
        import ray

        return ray.get(self.worker.open_group.remote())

    def start_join_weight_group(self, size: int, backend: str) -> Call:
        return Call(self.worker.join_group.remote(size, backend))

    def start_broadcast_weights(self, dtype: str) -> Call:
        return Call(self.worker.broadcast.remote(self.version, dtype), self.version)

    def train(self, shift: float) -> None:
        """An update: other weights, the next version."""
        (self.folder / "shift").write_text(str(shift))
        self.version += 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_tiny(["Draw a chart.", "Fill a form."], tmp_path_factory.mktemp("sync") / "model", SHAPE)


@pytest.fixture(scope="module")
def source(folder: Path, ray_cluster: None) -> Iterator[Source]:
    import ray

    (folder / "shift").write_text("0")
    policy = Source(folder)
    yield policy
    ray.kill(policy.worker)


@pytest.fixture(scope="module")
def start_worker(folder: Path, ray_cluster: None) -> Iterator[Callable[[], Any]]:
    import ray

    started: list[Any] = []

    def start() -> Any:
        model, params = ModelConfig(path=str(folder), dtype="float32"), SamplingParams(n=1, max_tokens=4)
        actor = ray.remote(RolloutWorker).options(num_cpus=0)
        started.append(actor.remote(model, RolloutConfig(name="hf"), params, threads=1, device="cpu"))
        return started[-1]

    yield start
    for worker in started:
        ray.kill(worker)


@pytest.fixture(scope="module")
def workers(start_worker: Callable[[], Any]) -> dict[str, Any]:
    """Two rollout workers that outlive the module's tests."""
    return {"a": start_worker(), "b": start_worker()}


def weight_sync(source: Source, transfer: str) -> WeightSync:
    return WeightSync(source, RolloutConfig(weight_transfer=transfer), TIMEOUT_S)


def assert_holds(worker: Any, version: int, source: Source, shift: float) -> None:
    """The worker's parameters are bit for bit the policy's."""
    import ray

    assert ray.get(worker.ready.remote()) == version
    held: Any = ray.get(
        worker.__ray_call__.remote(lambda self: {n: t.numpy() for n, t in self.engine.backbone.state().items()})
    )
    expected = {name: (tensor + shift).numpy() for name, tensor in Backbone.load(source.folder).state().items()}
    assert held.keys() == expected.keys()
    assert all(np.array_equal(held[name], expected[name]) for name in expected)


def pid(worker: Any) -> int:
    import ray

    return ray.get(worker.__ray_call__.remote(lambda self: os.getpid()))


@pytest.mark.parametrize("transfer", ["object_store", "broadcast"])
def test_every_push_gives_all_workers_the_exact_weights(source: Source, workers: dict[str, Any], transfer: str) -> None:
    sync = weight_sync(source, transfer)
    for shift in (0.25, -0.125):
        source.train(shift)
        push = sync.push(workers)
        assert (push.version, push.lost) == (source.version, ())
        assert sync.version == source.version
        for worker in workers.values():
            assert_holds(worker, source.version, source, shift)


def test_weights_travel_in_buckets(source: Source) -> None:
    import ray

    update = source.publish_weights("float32")
    buckets: Any = ray.get(list(update.buckets))
    sizes = [len(bucket.data) for bucket in buckets]
    weights = sum(tensor.numel() for tensor in Backbone.load(source.folder).state().values())
    assert weights * 4 <= sum(sizes) < weights * 4 + 64 * 100  # each weight once, and the gaps between parameters
    assert max(sizes) <= 2**20


@pytest.mark.parametrize("transfer", ["object_store", "broadcast"])
def test_a_late_worker_gets_the_newest_weights_and_takes_part_in_the_next_push(
    source: Source, workers: dict[str, Any], start_worker: Callable[[], Any], transfer: str
) -> None:
    import ray

    sync = weight_sync(source, transfer)
    source.train(0.5)
    sync.push(workers)
    late = start_worker()
    ray.get(sync.deliver(late))
    assert_holds(late, source.version, source, 0.5)

    source.train(0.75)
    sync.push({**workers, "late": late})
    for worker in (*workers.values(), late):
        assert_holds(worker, source.version, source, 0.75)


@pytest.mark.parametrize(
    "sign",
    [pytest.param(signal.SIGKILL, id="dead"), pytest.param(signal.SIGSTOP, id="silent", marks=pytest.mark.slow)],
)
def test_a_worker_lost_in_mid_broadcast_is_named_and_the_others_have_the_weights(
    source: Source, workers: dict[str, Any], start_worker: Callable[[], Any], sign: signal.Signals
) -> None:
    victim = start_worker()
    sync = weight_sync(source, "broadcast")
    members = {**workers, "victim": victim}
    source.train(1.5)
    sync.push(members)  # forms the group
    process = pid(victim)
    source.train(2.5)
    (source.folder / "pause").touch()
    pushes: list[Push] = []
    start = time.monotonic()
    thread = threading.Thread(target=lambda: pushes.append(sync.push(members)))
    thread.start()
    while not (source.folder / "paused").exists():
        assert time.monotonic() - start < 60
        time.sleep(0.01)
    os.kill(process, sign)
    (source.folder / "pause").unlink()
    (source.folder / "paused").unlink()
    thread.join(60)
    if sign is signal.SIGSTOP:
        os.kill(process, signal.SIGKILL)
    assert [push.lost for push in pushes] == [("victim",)]
    for worker in workers.values():
        assert_holds(worker, source.version, source, 2.5)


def test_after_a_restart_of_the_policy_pushes_go_on(source: Source, workers: dict[str, Any], folder: Path) -> None:
    import ray

    sync = weight_sync(source, "broadcast")
    source.train(3.5)
    sync.push(workers)
    ray.kill(source.worker)
    restarted = Source(folder)
    restarted.version = source.version
    sync.reset(restarted)
    restarted.train(4.5)
    push = sync.push(workers)
    assert push.lost == ()
    for worker in workers.values():
        assert_holds(worker, restarted.version, source, 4.5)
    ray.kill(restarted.worker)


# -- workers that do not answer -----------------------------------------------------------------------------------------


def answer(tmp_path: Path, code: str) -> Any:
    """A worker's answer to a call: what the code does."""
    import ray

    script = tmp_path / f"{abs(hash(code))}.py"
    script.write_text(code)
    return ray.remote(num_cpus=0, max_retries=0)(runpy.run_path).remote(str(script))


def test_workers_that_are_silent_or_whose_gpu_failed_are_lost_and_the_others_count(
    ray_cluster: None, tmp_path: Path
) -> None:
    import ray

    never = ray.remote(num_cpus=0, resources={"never": 1})(runpy.run_path).remote("")
    calls = {
        "good": ray.put(0.5),
        "silent": never,
        "broken": answer(tmp_path, "import torch\nraise torch.AcceleratorError('CUDA error: uncorrectable ECC')"),
        "full": answer(tmp_path, "import torch\nraise torch.OutOfMemoryError('CUDA out of memory')"),
    }
    ray.wait([calls["broken"], calls["full"]], num_returns=2)
    alive = dict.fromkeys(calls)
    assert _answers(alive, calls, timeout_s=1.0) == {"good": 0.5}
    assert set(alive) == {"good"}
    ray.cancel(never)


def test_a_workers_own_mistake_is_raised(ray_cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        _answers({"a": None}, {"a": answer(tmp_path, "raise ValueError('does not fit')")})


def test_no_call_to_a_worker_is_waited_for_without_limit() -> None:
    limit = inspect.signature(_answers).parameters["timeout_s"].default
    assert 600 <= limit <= 7200
