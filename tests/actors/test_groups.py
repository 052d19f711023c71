"""Worker groups of real processes: what they compute is what one process computes, and a loss is noticed and survived."""

from __future__ import annotations

import os
import pickle
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from actors import groups
from actors.groups import GroupDied, PolicyGroup, ReferenceGroup, WorkerGroup
from actors.policy import Policy
from actors.policy_batch import PolicyBatch
from actors.reference import Reference
from actors.weight_group import WeightTransferError
from cluster.placement import Slots
from configs.schema import ActorConfig, GrpoConfig, ModelConfig, OptimizerConfig, ParallelConfig
from models.views import document_view, raw_view
from objectives.checkpoint import CheckpointError

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

VIEWS = [raw_view("Draw a chart"), document_view("sql"), document_view("form | Fills forms | " + "Reads it. " * 9)]


@pytest.fixture(scope="module")
def config(model_config: ModelConfig) -> GrpoConfig:
    """Two policy workers and a reference of one, on CPUs."""
    optim = OptimizerConfig(lr=1e-3, weight_decay=0.0)
    actor = ActorConfig(optim=optim, ppo_max_token_len=40, parallel=ParallelConfig(workers=2))
    config = GrpoConfig(model=model_config, actor=actor)
    config.run.device = "cpu"
    return config


@pytest.fixture(scope="module")
def bundles(ray_cluster: None) -> Iterator[PlacementGroup]:
    """Two bundles of less than a CPU: what verl itself would start there would wait for ever."""
    group = placement_group([{"CPU": 0.75}] * 2)
    yield group
    remove_placement_group(group)


@pytest.fixture(scope="module")
def policy(config: GrpoConfig, bundles: PlacementGroup) -> Iterator[PolicyGroup]:
    group = PolicyGroup.start(config, Slots(bundles, 0, 2, cpus=0.5, gpus=0.0))
    group.ready()
    yield group
    group.stop()


def alone(config: GrpoConfig) -> Policy:
    actor = ActorConfig(optim=config.actor.optim)
    return Policy(config.model, actor, temperature=0.8, threads=0, device="cpu", seed=0)


def weights_of(policy: Policy) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in policy.engine.full_parameters()}


def pushed(group: PolicyGroup) -> tuple[int, dict[str, np.ndarray]]:
    update = group.publish_weights("float32")
    return update.version, {name: tensor.numpy().copy() for name, tensor in update.parameters()}


def test_a_group_does_what_one_process_does(
    policy: PolicyGroup, config: GrpoConfig, make_batch: Callable[..., PolicyBatch], tmp_path: Path
) -> None:
    """One test for the whole life of a policy, in its order: the group takes long to start."""
    own = alone(config)
    batch = make_batch(own, [3, 7, 1, 0, 6, 2, 4])
    assert policy.ready() == own.ready()
    assert policy.version() == 0

    metrics, expected = policy.update(batch), own.update(batch)
    assert metrics.keys() == expected.keys()
    del metrics["time/update"], expected["time/update"]
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
    version, weights = pushed(policy)
    assert version == policy.version() == 1
    for name, value in weights_of(own).items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-5, err_msg=name)

    np.testing.assert_allclose(policy.encode(VIEWS, 64), own.encode(VIEWS, 64), rtol=0, atol=1e-5)

    folder = policy.save(str(tmp_path / "checkpoints"), 1, {"epoch": 0}, 2)
    policy.update(batch)
    assert policy.restore(folder) == {"epoch": 0, "step": 1}
    version, weights = pushed(policy)
    resumed = alone(config)
    resumed.restore(folder)
    assert version == resumed.version == 1
    for name, value in weights_of(resumed).items():
        np.testing.assert_array_equal(weights[name], value, err_msg=name)

    policy.export(str(tmp_path / "export"), str(tmp_path / "export" / "causal_lm"), 64)
    exported = Policy(
        ModelConfig(path=str(tmp_path / "export" / "causal_lm"), dtype="float32"),
        ActorConfig(),
        temperature=0.8,
        threads=0,
        device="cpu",
        seed=0,
    )
    np.testing.assert_array_equal(exported.encode(VIEWS, 64), resumed.encode(VIEWS, 64))


def test_what_all_workers_refuse_is_raised_as_itself_and_leaves_the_group_alive(
    policy: PolicyGroup, config: GrpoConfig, make_batch: Callable[..., PolicyBatch], tmp_path: Path
) -> None:
    version = policy.version()
    batch = make_batch(alone(config), rewards=torch.full((8,), float("nan")))
    with pytest.raises(FloatingPointError, match="the gradient norm is nan"):
        policy.update(batch)
    with pytest.raises(CheckpointError, match=r"no state\.json"):
        policy.restore(str(tmp_path))
    assert policy.version() == version


def test_the_reference_shares_the_policys_bundle_and_answers_in_order(
    config: GrpoConfig, bundles: PlacementGroup, policy: PolicyGroup, make_batch: Callable[..., PolicyBatch]
) -> None:
    group = ReferenceGroup.start(config, Slots(bundles, 1, 1, cpus=0.25, gpus=0.0))
    try:
        batch = make_batch(alone(config), [5, 2, 7, 0, 1])
        pending = group.log_probs(batch.prompts, batch.responses)
        scores, seconds = pending.result()
        own = Reference(config.model, temperature=0.8, token_budget=40, threads=0, device="cpu")
        for score, expected in zip(scores, own.log_probs(batch.prompts, batch.responses)[0], strict=True):
            np.testing.assert_allclose(score, expected, rtol=0, atol=1e-5)
        assert 0 < seconds < 60
    finally:
        group.stop()


def test_a_worker_killed_in_mid_update_ends_its_group_which_starts_again_from_a_checkpoint(
    policy: PolicyGroup,
    config: GrpoConfig,
    bundles: PlacementGroup,
    make_batch: Callable[..., PolicyBatch],
    tmp_path: Path,
) -> None:
    batch = make_batch(alone(config))
    folder = policy.save(str(tmp_path), 5, {}, 1)
    policy.restore(folder)  # version 5
    pids = policy.pids()
    long = make_batch(alone(config), list(range(8)) * 400)
    threading.Timer(1.0, os.kill, (pids[1], signal.SIGKILL)).start()
    start = time.monotonic()
    with pytest.raises(GroupDied, match="the policy group lost worker 1 of 2") as caught:
        policy.update(long)
    assert time.monotonic() - start < 20  # not gloo's half an hour
    assert (caught.value.group, caught.value.workers) == ("policy", (1,))
    with pytest.raises(GroupDied, match="the policy group was stopped"):
        policy.update(batch)
    assert not runs_within(pids[0], 10)

    again = PolicyGroup.start(config, Slots(bundles, 0, 2, cpus=0.5, gpus=0.0))
    try:
        again.ready()
        again.restore(folder)
        assert again.version() == 5
        own = alone(config)
        own.restore(folder)
        assert again.update(batch)["actor/grad_norm"] == pytest.approx(own.update(batch)["actor/grad_norm"], rel=1e-5)
        assert set(again.pids()).isdisjoint(pids)
    finally:
        again.stop()


def runs_within(pid: int, seconds: float) -> bool:
    """Whether the process still runs after that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(") ", 1)[1].startswith("Z"):
            return False
        time.sleep(0.1)
    return True


def test_a_model_that_cannot_be_loaded_is_named_by_the_error_of_its_worker(
    bundles: PlacementGroup, tmp_path: Path
) -> None:
    config = GrpoConfig(model=ModelConfig(path=str(tmp_path / "nothing")))
    group = ReferenceGroup.start(config, Slots(bundles, 0, 1, cpus=0.1, gpus=0.0))
    with pytest.raises(Exception, match="nothing") as caught:
        group.ready()
    assert not isinstance(caught.value, RayError)
    group.stop()
    group.stop()  # a second time changes nothing


def test_workers_on_gpus_join_on_verls_device_and_wait_for_rank_0_as_long_as_it_saves(
    monkeypatch: pytest.MonkeyPatch, config: GrpoConfig
) -> None:
    from actors import group_workers

    joined: list[dict[str, Any]] = []
    chosen: list[int] = []
    monkeypatch.setattr(group_workers, "place", lambda *_: "cuda")
    monkeypatch.setattr(group_workers.GroupWorker, "_refuse_shared_gpu", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(group_workers.dist, "init_process_group", lambda backend, **keys: joined.append(keys))
    for variable in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(variable, "")
    worker: Any = object.__new__(group_workers.GroupWorker)
    worker.config, worker._store, worker._rank, worker._world_size = config, object(), 0, 2
    worker.join(("localhost", 1), config.actor.parallel)
    assert chosen == []  # RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES: all GPUs are seen, and verl has chosen one
    (keys,) = joined
    assert keys["timeout"].total_seconds() >= 3600


# -- failures of some of the workers ------------------------------------------------------------------------------------


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> WorkerGroup:
    """A group without workers of its own, which waits for whatever it is given; it has two seconds of patience."""
    monkeypatch.setattr(groups, "PATIENCE_S", 2.0)
    monkeypatch.setattr(WorkerGroup, "name", "policy", raising=False)
    workers: Any = SimpleNamespace(world_size=2, workers=[], listen=lambda: None, setup=lambda address: [])
    return WorkerGroup(workers)


def failing(tmp_path: Path, error: str) -> Any:
    """The answer of a worker that raises."""
    script = tmp_path / "failing.py"
    script.write_text(f"raise {error}\n")
    return ray.remote(num_cpus=0, max_retries=0)(runpy.run_path).remote(str(script))


@pytest.fixture
def never() -> Iterator[Any]:
    """An answer that does not come, as that of a worker which waits for a dead one."""
    reference = ray.remote(num_cpus=0, resources={"never": 1})(runpy.run_path).remote("")
    yield reference
    ray.cancel(reference)


def test_the_error_of_one_worker_is_raised_though_the_others_wait_for_it_for_ever(
    waiting: WorkerGroup, never: Any, tmp_path: Path
) -> None:
    with pytest.raises(MemoryError, match="no room"):
        waiting.wait([never, failing(tmp_path, "MemoryError('no room')")])
    with pytest.raises(GroupDied, match="was stopped"):
        waiting.pids()


def test_a_broken_connection_is_a_death_of_those_who_do_not_answer(
    waiting: WorkerGroup, never: Any, tmp_path: Path
) -> None:
    error = "RuntimeError('[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer')"
    with pytest.raises(GroupDied, match=r"lost worker 1 of 2: worker 0 lost contact: .*Connection closed") as caught:
        waiting.wait([failing(tmp_path, error), never])
    assert caught.value.workers == (1,)


def pickled(error: Exception) -> str:
    return f"__import__('pickle').loads({pickle.dumps(error)!r})"


def test_a_failed_gpu_is_a_death_of_its_worker_whatever_the_others_say(
    waiting: WorkerGroup, never: Any, tmp_path: Path
) -> None:
    ecc = pickled(torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"))
    lost = "RuntimeError('gloo: Connection closed by peer')"
    (tmp_path / "0").mkdir()
    with pytest.raises(GroupDied, match="lost worker 1 of 2: its GPU failed: CUDA error: uncorrectable ECC") as caught:
        waiting.wait([failing(tmp_path / "0", lost), failing(tmp_path, ecc), never])
    assert caught.value.workers == (1,)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("shapes cannot be multiplied"),
        WeightTransferError("a receiver was lost: gloo: Connection closed by peer"),
    ],
)
def test_an_error_of_ones_own_is_no_death(waiting: WorkerGroup, tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        waiting.wait([failing(tmp_path, pickled(error))])


def test_a_dead_group_keeps_its_name_when_it_is_pickled() -> None:
    error = GroupDied("reference", (0, 3), "the reference group lost worker 0, 3 of 4")
    again = pickle.loads(pickle.dumps(error))
    assert (again.group, again.workers, str(again)) == ("reference", (0, 3), str(error))
