"""Stage II while processes and nodes are killed: training finishes, and the weights are those of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from configs import to_yaml
from objectives.checkpoint import list_checkpoints
from trainers.run_folder import RunFolder
from trainers.tracking import read_metrics

pytestmark = [pytest.mark.ray, pytest.mark.timeout(580)]

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 5
ON_NODES = [
    "resources.rollout_cpus=3",
    "resources.policy_cpus=4",
    "resources.reference_cpus=4",
    "resources.retriever_cpus=4",
]
"""Logical CPUs, of a head of 16 and nodes of three: each rollout worker has a node to itself, all others fill the head."""

STORM = {
    1: ["await_two"],
    2: ["rollout_node", "reward"],
    3: ["add_node", "reference"],
    4: ["await_two", "retriever", "policy"],  # the last checkpoint is that of update 2
}


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    folder: RunFolder

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder.metrics)

    @property
    def events(self) -> list[dict[str, Any]]:
        return read_metrics(self.folder.events)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [row for row in self.events if row["event"] == event]

    def tensors(self, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
        return load_file(Path(self.folder.checkpoints) / f"step_{STEPS:06d}" / file)


@pytest.fixture(scope="module")
def calm(unbroken: RunFolder) -> Run:
    """The undisturbed run."""
    return Run(unbroken)


@pytest.fixture(scope="module")
def storm(make_five_updates, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on three nodes that loses one of everything."""
    (run,) = start(tmp_path_factory.mktemp("storm"), {"head": 16, "nodes": 2}, (make_five_updates, ON_NODES, STORM))
    return run


def start(root: Path, cluster: dict[str, Any], *runs: tuple[Any, list[str], dict[int, list[str]]]) -> list[Run]:
    """Runs ``(make, keys, strikes)``, one after the other in one program; each ends well."""
    plans, ended = [], []
    for number, (make, keys, strikes) in enumerate(runs):
        config = make(root / str(number), *keys, "resources.wait_s=120")
        (root / f"{number}.yaml").write_text(to_yaml(config))
        plans.append({"config": str(root / f"{number}.yaml"), "strikes": strikes})
        ended.append(Run(RunFolder.of(config.run)))
    result = program(root, {**cluster, "runs": plans})
    assert result.returncode == 0, result.stderr[-3000:]
    return ended


def program(root: Path, plan: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (root / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, str(REPOSITORY / "tests" / "trainers" / "chaos.py"), str(root / "plan.json")]
    return run(command, REPOSITORY)


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500, check=False)


def assert_same_training(run: Run, undisturbed: Run) -> None:
    """Every update once, with the same numbers, and the same weights and moments at the end, to the bit."""
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    assert [row["step"] for row in read_metrics(run.folder.timeline)] == list(range(1, STEPS + 1))
    for row, expected in zip(run.rows, undisturbed.rows, strict=True):
        for key, value in expected.items():
            if not key.startswith(("time/", "pool/", "recovery/")):
                assert row[key] == value, (row["step"], key)
    for file in ("model.safetensors", "optimizer.safetensors"):
        tensors, wanted = run.tensors(file), undisturbed.tensors(file)
        assert tensors.keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in tensors.items()), file


def test_a_run_that_loses_one_of_everything_learns_the_same(calm: Run, storm: Run):
    assert not [row for row in calm.events if row["event"] != "joined"]
    saved = list_checkpoints(calm.folder.checkpoints)
    first, last = (load_file(Path(path) / "model.safetensors") for path in (saved[0], saved[-1]))
    assert not all(torch.equal(first[name], last[name]) for name in first)  # there was something to learn
    assert_same_training(storm, calm)


def test_every_loss_is_told(storm: Run):
    told = Counter((row["event"], row.get("pool") or row.get("group") or row.get("role")) for row in storm.events)
    del told["joined", "rollout"], told["joined", "retriever"]
    assert told == {
        ("left", "rollout"): 1,
        ("redispatched", "rollout"): 1,
        ("died", "reward"): 1,
        ("died", "retriever"): 1,
        ("redispatched", "retriever"): 1,
        ("died", "reference"): 1,
        ("restart", "reference"): 1,
        ("died", "policy"): 1,
        ("restart", "policy"): 1,
    }
    # the policy went on from update 2: update 3 is made again, and update 4, which was under way, was never counted
    (restart,) = [row for row in storm.named("restart") if row["group"] == "policy"]
    assert (restart["step"], restart["updates_lost"]) == (2, 1)


def test_the_pool_shrinks_with_its_node_and_grows_with_a_new_one(storm: Run):
    members = {row["step"]: row["pool/rollout_members"] for row in storm.rows}
    assert members[1] == 2
    assert members[2] == 1
    assert members[4] == members[5] == 2
    (left,) = storm.named("left")
    joined = [row for row in storm.named("joined") if row["pool"] == "rollout"]
    assert len({row["node"] for row in joined}) == 3
    assert joined[-1]["node"] != left["node"]


def test_losses_are_counted_as_curves(storm: Run):
    last = storm.rows[-1]
    assert last["recovery/lost"] == 5
    assert last["pool/redispatched"] == 2
    assert last["recovery/restarts"] == 2
    seconds = [row["seconds"] for event in ("redispatched", "restart") for row in storm.named(event)]
    assert last["recovery/seconds_lost"] == pytest.approx(sum(seconds))
    assert all(0 < each < 120 for each in seconds)


def test_a_driver_killed_in_mid_checkpoint_is_resumed_by_the_same_command(calm: Run, make_five_updates, tmp_path: Path):
    config = make_five_updates(tmp_path)
    file = tmp_path / "grpo.yaml"
    file.write_text(to_yaml(config))
    killed = program(tmp_path, {"nodes": None, "runs": [{"config": str(file), "strikes": {4: ["driver"]}}]})
    resumed = Run(RunFolder.of(config.run))
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert [Path(c).name for c in list_checkpoints(resumed.folder.checkpoints)] == ["step_000002"]
    assert [row["step"] for row in resumed.rows] == [1, 2, 3, 4]
    unfinished = json.loads((resumed.folder.root / "unfinished.json").read_text())
    assert unfinished["files"]
    assert not any(name.endswith("state.json") for name in unfinished["files"])
    os.kill(unfinished["writer"], signal.SIGKILL)  # frozen, it could not end with the driver

    again = run([sys.executable, "-m", "trainers.grpo", str(file)], tmp_path)
    assert again.returncode == 0, again.stderr[-3000:]
    assert not list(Path(resumed.folder.checkpoints).glob(".*"))
    assert [row["step"] for row in resumed.rows] == list(range(1, STEPS + 1))
    # a new driver encodes documents anew, in other batches: equal to rounding
    for name, tensor in resumed.tensors().items():
        torch.testing.assert_close(tensor, calm.tensors()[name], rtol=0, atol=2e-6)


# -- several policy workers, and other ways to place and to push ---------------------------------------------------------------


@pytest.fixture(scope="module")
def two_workers(make_five_updates, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Two policy workers and two rollout workers on a node each; undisturbed, and with a policy worker's node removed."""
    keys = [
        "actor.parallel.workers=2",
        "resources.policy_cpus=3",
        "resources.rollout_cpus=3",
        "resources.reference_cpus=4",
        "resources.retriever_cpus=4",
    ]
    strikes = {1: ["await_two"], 3: ["policy_node"], 4: ["add_node"], 5: ["await_two"]}
    cluster = {"head": 12, "nodes": 4}
    root = tmp_path_factory.mktemp("two_workers")
    calm, storm = start(root, cluster, (make_five_updates, keys, {}), (make_five_updates, keys, strikes))
    return calm, storm


@pytest.mark.slow
def test_the_policy_moves_from_a_lost_node_and_a_rollout_worker_makes_room(two_workers: tuple[Run, Run]):
    calm, storm = two_workers
    assert_same_training(storm, calm)
    assert len(storm.named("retired")) == 1
    (restart,) = storm.named("restart")
    assert (restart["group"], restart["step"], restart["updates_lost"]) == ("policy", 2, 0)
    members = {row["step"]: row["pool/rollout_members"] for row in storm.rows}
    assert members[2] == 2
    assert members[3] == 1
    assert members[5] == 2


@pytest.mark.slow
def test_colocated_roles_move_together(two_workers: tuple[Run, Run], make_five_updates, tmp_path: Path):
    keys = ["actor.parallel.workers=2", "resources.colocate=true", "resources.policy_cpus=3"]
    strikes = {1: ["await_two", "add_node"], 3: ["policy_node"]}
    # it starts with room for one policy worker, waits for the late node, and later moves to the one that was added
    (moved,) = start(tmp_path, {"head": 1, "nodes": 1, "late": True}, (make_five_updates, keys, strikes))
    assert_same_training(moved, two_workers[0])
    assert moved.rows[-1]["pool/rollout_members"] >= 1
    assert {row["group"] for row in moved.named("restart")} == {"policy"}


@pytest.mark.slow
def test_weights_are_broadcast_to_whoever_is_there(calm: Run, make_five_updates, tmp_path: Path):
    keys = [*ON_NODES, "rollout.weight_transfer=broadcast"]
    (run,) = start(tmp_path, {"head": 16, "nodes": 2}, (make_five_updates, keys, STORM))
    assert_same_training(run, calm)
