"""Stage I in a group of processes on Ray Train: the same weights and rows as in one process, also when one of them dies."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray._private.worker as ray_worker
import torch
from safetensors.torch import load_file

from configs import ConfigError
from models.backbone import Backbone
from objectives.checkpoint import list_checkpoints
from trainers.interrupt import Interrupted
from trainers.run_folder import RunFolder
from trainers.stage1 import train_stage1
from trainers.tracking import read_metrics

pytestmark = [pytest.mark.ray, pytest.mark.deepspeed, pytest.mark.usefixtures("ray_cluster")]

KEYS = ["optim.lr=1e-4", "trainer.max_ckpt_to_keep=100"]


def final_weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(Path(list_checkpoints(run.checkpoints)[-1], "model.safetensors"))


def assert_same_training(run: RunFolder, expected: RunFolder) -> None:
    """Weights to 1e-5, and every update's losses in one row each."""
    weights = final_weights(run)
    for name, value in final_weights(expected).items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    rows, others = read_metrics(run.metrics), read_metrics(expected.metrics)
    assert [row["step"] for row in rows] == [row["step"] for row in others]
    for row, other in zip(rows, others, strict=True):
        losses = {key: value for key, value in row.items() if key.startswith(("loss/", "val/", "sampler/"))}
        assert losses == pytest.approx({key: other[key] for key in losses}, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def alone(make_stage1, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Four updates with exports and recall in one process."""
    threads = torch.get_num_threads()
    keys = [*KEYS, "trainer.total_steps=4", "trainer.export=true", "data.heldout_fraction=0.25", "trainer.test_freq=2"]
    run = train_stage1(make_stage1(tmp_path_factory.mktemp("alone"), *keys))
    torch.set_num_threads(threads)
    return run


@pytest.mark.parametrize("strategy", ["deepspeed", "fsdp2"])
def test_two_workers_train_and_export_what_one_process_does(
    make_stage1, tmp_path: Path, alone: RunFolder, strategy: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789-nobody-may-read-this")
    keys = [*KEYS, "trainer.total_steps=4", "trainer.export=true", "data.heldout_fraction=0.25", "trainer.test_freq=2"]
    keys += ["parallel.workers=2", f"parallel.strategy={strategy}", "tracking.wandb=offline"]
    run = train_stage1(make_stage1(tmp_path, *keys))
    assert_same_training(run, alone)
    assert {row["train/workers"] for row in read_metrics(run.metrics)} == {2}
    exported, expected = Backbone.load(run.causal_lm).state(), Backbone.load(alone.causal_lm).state()
    for name, value in expected.items():
        torch.testing.assert_close(exported[name], value, rtol=0, atol=1e-5)
    assert (run.export / "retrieval.json").read_bytes() == (alone.export / "retrieval.json").read_bytes()
    assert not run.events.exists()
    assert list(run.root.glob("wandb/offline-run-*"))
    logs = Path(ray_worker._global_node.get_logs_dir_path())  # type: ignore[union-attr]
    for file in [file for folder in (run.root, logs) for file in folder.rglob("*") if file.is_file()]:
        assert b"nobody-may-read-this" not in file.read_bytes(), file


@pytest.fixture
def when(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[RunFolder, int, Callable[[list[int]], None]], None]]:
    """``when(run, step, act)``: call ``act`` with the group's process ids once, after update ``step`` of ``run``."""
    caplog.set_level(logging.INFO)
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def when(run: RunFolder, step: int, act: Callable[[list[int]], None]) -> None:
        def watch() -> None:
            while not ended.wait(0.01):
                if any(row["step"] >= step for row in read_metrics(run.metrics)):
                    told = [record.message for record in caplog.records if "training on" in record.message]
                    if told:
                        act([int(pid) for pid in re.findall(r"process (\d+)", told[-1])])
                        return

        threads.append(threading.Thread(target=watch, daemon=True))
        threads[-1].start()

    yield when
    ended.set()
    for thread in threads:
        thread.join()


def test_workers_killed_in_mid_update_cost_no_update_and_change_nothing(make_stage1, tmp_path: Path, when):
    keys = [*KEYS, "trainer.total_steps=60", "trainer.save_freq=7"]
    alone = train_stage1(make_stage1(tmp_path / "alone", *keys))
    config = make_stage1(tmp_path / "group", *keys, "parallel.workers=2")
    run = RunFolder.of(config.run)
    when(run, 10, lambda pids: os.kill(pids[1], signal.SIGKILL))
    when(run, 40, lambda pids: os.kill(pids[0], signal.SIGKILL))  # the one that writes
    train_stage1(config)
    assert_same_training(run, alone)
    first, second = read_metrics(run.events)
    for event, rank in ((first, 1), (second, 0)):
        assert (event["event"], event["workers_before"], event["workers"]) == ("restart", 2, 2)
        assert f"worker {rank}'s process died" in event["detail"]
        assert event["step"] % 7 == 0
        assert event["updates_lost"] < 7
    for row in read_metrics(run.metrics):
        before = [event for event in (first, second) if row["step"] > event["step"]]
        assert row["recovery/restarts"] == len(before)
        assert row["recovery/seconds_lost"] == pytest.approx(sum(event["seconds"] for event in before))


@pytest.mark.slow
def test_a_mistake_is_not_tried_again_and_keeps_its_name(make_stage1, tmp_path: Path):
    keys = ["trainer.total_steps=4", "optim.lr=1e30", "loss.lambda_kl=0"]
    config = make_stage1(tmp_path, *keys, "parallel.workers=2")
    with pytest.raises(
        FloatingPointError, match=r"^the gradient norm is (inf|nan); the weights were left as they are$"
    ):
        train_stage1(config)
    assert not RunFolder.of(config.run).events.exists()


@pytest.mark.slow
def test_a_group_that_is_lost_too_often_ends_the_run_by_name(make_stage1, tmp_path: Path, when):
    keys = [*KEYS, "trainer.total_steps=200", "parallel.workers=2", "trainer.max_restarts=0"]
    config = make_stage1(tmp_path, *keys)
    run = RunFolder.of(config.run)
    when(run, 3, lambda pids: os.kill(pids[0], signal.SIGKILL))
    with pytest.raises(OSError, match=r"trainer\.max_restarts allows no more: worker 0's process died"):
        train_stage1(config)
    assert [event["event"] for event in read_metrics(run.events)] == ["lost"]


@pytest.mark.slow
def test_an_interrupted_group_writes_a_checkpoint_and_another_number_of_workers_goes_on(
    make_stage1, tmp_path: Path, when
):
    keys = [*KEYS, "trainer.total_steps=40", "trainer.save_freq=100"]
    alone = train_stage1(make_stage1(tmp_path / "alone", *keys))
    config = make_stage1(tmp_path / "group", *keys, "parallel.workers=2")
    run = RunFolder.of(config.run)
    when(run, 5, lambda pids: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match=r"stopped at update \d+ of 40"):
        train_stage1(config)
    (stopped_at,) = [int(path[-6:]) for path in list_checkpoints(run.checkpoints)]
    assert 5 <= stopped_at < 40
    assert len(read_metrics(run.metrics)) == stopped_at
    train_stage1(make_stage1(tmp_path / "group", *keys))
    assert_same_training(run, alone)


def test_what_a_cluster_of_its_own_cannot_hold_is_refused_by_name(make_stage1, tmp_path: Path, monkeypatch):
    from cluster.elastic import GroupSize, check_room

    with pytest.raises(ConfigError, match=r"training needs 99 workers of 1 CPU; the cluster has room for 4"):
        check_room(GroupSize(workers=99, min_workers=0, cpus=1.0, gpus=0.0))
    check_room(GroupSize(workers=99, min_workers=2, cpus=1.0, gpus=0.0))


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["run.device=cuda"], r"resources\.worker_gpus is 0"),
        (["resources.worker_gpus=0.5"], r"resources\.worker_gpus is 0\.5; expected a whole number"),
        (["parallel.min_workers=1", "resources.worker_cpus=0"], r"parallel\.min_workers is set and resources"),
    ],
)
def test_impossible_combinations_are_refused_before_anything_starts(make_stage1, tmp_path: Path, keys, named: str):
    with pytest.raises(ConfigError, match=named):
        train_stage1(make_stage1(tmp_path, "parallel.workers=2", *keys))
