"""Stage I on a cluster that changes: nodes join and leave, the driver is stopped or killed; no update is lost or made twice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from configs import Stage1Config, to_yaml
from objectives.checkpoint import list_checkpoints
from trainers.run_folder import RunFolder
from trainers.stage1 import train_stage1
from trainers.tracking import read_metrics

pytestmark = [pytest.mark.ray, pytest.mark.deepspeed, pytest.mark.slow, pytest.mark.timeout(580)]

ROOT = Path(__file__).resolve().parents[2]
# small micro-batches make updates slow enough for a cluster to change between two of them
KEYS = [
    "optim.lr=1e-4",
    "trainer.save_freq=20",
    "trainer.max_ckpt_to_keep=100",
    "data.train_batch_size=12",
    "loss.micro_batch_tokens=64",
]

DRIVER = """
import sys
import cluster.elastic
from configs import Stage1Config
from trainers.main import main
from trainers.stage1 import train_stage1
cluster.elastic.RESIZE_INTERVAL_S = 1.0  # half a minute is for clusters, not for tests
main(Stage1Config, train_stage1, sys.argv[1:])
"""


class Driver:
    """``python -m trainers.stage1`` in a process of its own, with what it prints in a file."""

    def __init__(self, config: Stage1Config, folder: Path, address: str | None):
        self.run = RunFolder.of(config.run)
        file = folder / "stage1.yaml"
        file.write_text(to_yaml(config))
        self.log = folder / "driver.log"
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        environment |= {"OMP_NUM_THREADS": "1"} | ({"RAY_ADDRESS": address} if address else {})
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(file)], cwd=ROOT, env=environment, stdout=out, stderr=out
            )

    def rows(self) -> list[dict[str, Any]]:
        return read_metrics(self.run.metrics)

    def workers(self) -> list[int]:
        """Process ids of the group that was started last."""
        lines = [line for line in self.log.read_text().splitlines() if "training on" in line]
        return [int(pid) for pid in re.findall(r"process (\d+)", lines[-1])] if lines else []

    def wait_until(self, what: str, reached: Callable[[], bool], seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert self.process.poll() is None, f"ended before {what}:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s:\n{self.log.read_text()}"
            time.sleep(0.05)

    def wait(self, seconds: float = 200) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.log.read_text()}") from None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def start(config: Stage1Config, address: str | None = None) -> Driver:
        drivers.append(Driver(config, tmp_path, address))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.process.kill()
        driver.process.wait()


def assert_same_training(run: RunFolder, expected: RunFolder, steps: int) -> None:
    """Every update in one row, its losses and the final weights as in the run that nothing happened to."""
    rows, others = read_metrics(run.metrics), read_metrics(expected.metrics)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    for row, other in zip(rows, others, strict=True):
        losses = {key: value for key, value in row.items() if key.startswith(("loss/", "sampler/"))}
        assert losses == pytest.approx({key: other[key] for key in losses}, rel=1e-3, abs=1e-4)
    weights = load_file(Path(list_checkpoints(run.checkpoints)[-1], "model.safetensors"))
    for name, value in load_file(Path(list_checkpoints(expected.checkpoints)[-1], "model.safetensors")).items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_node_joins_and_another_leaves(make_stage1, tmp_path: Path, start):
    from ray.cluster_utils import Cluster

    steps = 200
    undisturbed = train_stage1(make_stage1(tmp_path / "undisturbed", *KEYS, f"trainer.total_steps={steps}"))
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 2**27}
    )
    try:
        first = cluster.add_node(num_cpus=1, object_store_memory=2**27)
        keys = [*KEYS, f"trainer.total_steps={steps}", "parallel.workers=2", "parallel.min_workers=1"]
        driver = start(make_stage1(tmp_path / "elastic", *keys), cluster.address)
        driver.wait_until("update 5", lambda: any(row["step"] == 5 for row in driver.rows()))
        cluster.add_node(num_cpus=1, object_store_memory=2**27)
        driver.wait_until("two workers", lambda: any(row["train/workers"] == 2 for row in driver.rows()))
        joined_at = driver.rows()[-1]["step"]
        driver.wait_until("five more updates", lambda: driver.rows()[-1]["step"] >= joined_at + 5)
        cluster.remove_node(first)
        assert driver.wait() == 0, driver.log.read_text()
    finally:
        cluster.shutdown()

    run = driver.run
    assert_same_training(run, undisturbed, steps)
    resize, restart = read_metrics(run.events)
    assert (resize["event"], resize["workers_before"], resize["workers"]) == ("resize", 1, 2)
    assert resize["updates_lost"] == 0  # a checkpoint is written before the group is ended
    assert (restart["event"], restart["workers_before"], restart["workers"]) == ("restart", 2, 1)
    assert restart["updates_lost"] < 20
    workers = [row["train/workers"] for row in driver.rows()]
    assert workers == [1] * resize["step"] + [2] * (restart["step"] - resize["step"]) + [1] * (steps - restart["step"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_or_killed_driver_leaves_a_run_that_goes_on(
    make_stage1, tmp_path: Path, start, number: signal.Signals
):
    steps = 60
    undisturbed = train_stage1(make_stage1(tmp_path / "undisturbed", *KEYS, f"trainer.total_steps={steps}"))
    config = make_stage1(tmp_path / "run", *KEYS, f"trainer.total_steps={steps}", "parallel.workers=2")
    driver = start(config)
    driver.wait_until("update 25", lambda: any(row["step"] == 25 for row in driver.rows()))
    workers = driver.workers()
    driver.process.send_signal(number)
    code = driver.wait()
    saved_at = int(list_checkpoints(driver.run.checkpoints)[-1][-6:])
    if number == signal.SIGTERM:
        assert code == 130, driver.log.read_text()
        assert 25 <= saved_at < steps
        assert f"stopped at update {saved_at} of {steps}; run it again to go on" in driver.log.read_text()
    else:
        assert saved_at in (20, 40)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, f"processes {workers} outlive their driver"
        time.sleep(0.2)
    train_stage1(make_stage1(tmp_path / "run", *KEYS, f"trainer.total_steps={steps}"))
    assert_same_training(driver.run, undisturbed, steps)
