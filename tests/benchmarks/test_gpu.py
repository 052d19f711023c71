"""The script for a lent GPU: that it needs no more than torch and transformers, and that what it writes out itself is right."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
BLOCKED = (
    "ray", "verl", "vllm", "trl", "faiss", "omegaconf", "hydra", "sentence_transformers", "bm25s",
    "typer", "matplotlib", "pytrec_eval",
)  # fmt: skip
"""Not scikit-learn, W&B and their like: transformers imports them itself where it believes them installed."""


def run_without_our_libraries(tmp_path: Path, *arguments: str) -> dict:
    """``gpu.py`` in a process that cannot import what a bare machine does not have."""
    script = tmp_path / "bare.py"
    script.write_text(
        "import runpy, sys\n"
        f"BLOCKED = {BLOCKED!r}\n"
        "class Bare:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in BLOCKED:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Bare())\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        f"sys.argv[0] = {str(BENCHMARKS / 'gpu.py')!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    out = tmp_path / "gpu.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), "--out", str(out), "--shape", "toy", "--scale", "0.01", "--rounds", "1"]
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


def test_every_part_runs_on_a_bare_machine_and_both_ways_agree(tmp_path):
    parts = run_without_our_libraries(tmp_path)["parts"]
    assert set(parts) == {"encoding", "stage1", "grpo", "rollouts", "training"}
    for name in ("encoding", "stage1", "grpo"):
        shared, plain = parts[name]["values"]
        assert shared == pytest.approx(plain, rel=1e-4)
        assert parts[name]["shared_s"] > 0
    assert parts["rollouts"]["ours_s"] > 0
    assert parts["training"] == {"skipped": "no --model and --data", "part_s": parts["training"]["part_s"]}


@pytest.mark.slow
def test_the_training_runs_on_a_bare_machine(tmp_path, tiny_folder):
    data = tmp_path / "data"
    data.mkdir()
    skills = [
        {"skill_id": f"s{i}", "name": f"skill {i}", "description": f"does {i}", "body": f"text {i}" * 9}
        for i in range(40)
    ]
    with gzip.open(data / "skills.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(skill) + "\n" for skill in skills)
    requests = [
        {
            "record_id": f"r{i}", "skill_id": f"s{i}", "query": f"do {i}", "implicit_query": f"please {i}",
            "query_capability": f"The user needs skills for {i}.",
        }
        for i in range(30)
    ]  # fmt: skip
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in requests))
    bench = [{"query_id": f"q{i}", "query": f"do {i}", "skill_id": f"s{i}"} for i in range(10)]
    (data / "dev_bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bench))
    arguments = ["--part", "training", "--model", str(tiny_folder), "--data", str(data), "--updates", "2", "1"]
    found = run_without_our_libraries(tmp_path, *arguments)["parts"]["training"]
    assert set(found["recall@10"]) == {"untrained", "stage1", "stage2"}
    assert (found["stage1"]["updates"], found["stage2"]["updates"]) == (2, 1)


@pytest.fixture
def training(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("gpu_training")


def test_a_part_that_fails_does_not_cost_the_others(tmp_path):
    parts = run_without_our_libraries(
        tmp_path, "--part", "training", "--part", "grpo", "--model", "x", "--data", "absent"
    )
    assert parts["parts"]["training"]["failed"]
    assert parts["parts"]["grpo"]["ratio"] > 0


def test_its_loss_and_advantages_are_those_of_the_real_objective(training):
    pytest.importorskip("verl")
    from configs.schema import ActorConfig
    from objectives.policy_gradient import BatchInfo, group_relative_advantages, policy_objective

    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(8, 5, generator=generator)
    reference = log_probs + 0.1 * torch.randn(8, 5, generator=generator)
    mask = (torch.arange(5) < torch.tensor([5, 3, 4, 5, 1, 2, 5, 4])[:, None]).float()
    rewards = torch.tensor([0.1, 0.5, -0.2, 0.9, 0.3, 0.3, 0.3, 0.3])
    advantages = training.group_advantages(rewards, 4)
    torch.testing.assert_close(advantages, group_relative_advantages(rewards, [*"aaaabbbb"]))
    leaves = [log_probs.clone().requires_grad_() for _ in range(2)]
    info = BatchInfo(int(mask.sum()), 8, 4)
    theirs, _ = policy_objective(leaves[0], leaves[0].detach(), reference, advantages, mask, ActorConfig(), info)
    ours = training.grpo_loss(leaves[1], reference, advantages, mask, int(mask.sum()))
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss, leaf)[0] for loss, leaf in zip((theirs, ours), leaves, strict=True)]
    torch.testing.assert_close(gradients[1], gradients[0])
