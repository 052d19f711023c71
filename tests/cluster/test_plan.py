"""``skillreason plan``: where roles go, what does not fit, and that it needs no cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.plan import make_plan
from configs import ConfigError, GrpoConfig, Stage1Config, load_config
from skillreason.cli import main

GPU = 80e9
SHIPPED = ["stage1_0.6b", "stage1_4b", "grpo_0.6b", "grpo_4b", "reranker_0.6b", "reranker_4b"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def grpo(*overrides: str) -> GrpoConfig:
    return load_config(GrpoConfig, "grpo_0.6b", overrides)


# -- the shipped configurations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_the_paper_s_configurations_fit_on_one_node_of_eight_gpus(name: str, capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "--config", name, "--json")
    plan = json.loads(out)
    assert (code, plan["fits"], plan["problems"]) == (0, True, [])
    assert {gpu["node"] for gpu in plan["gpus"]} == {1}
    assert all(len(gpu["processes"]) == 1 for gpu in plan["gpus"])
    assert all(gpu["peak"] <= GPU for gpu in plan["gpus"])


def test_what_does_not_fit_is_named_with_its_size_and_keys_and_the_exit_status_is_1(capsys: pytest.CaptureFixture[str]):
    code, out, _ = run(capsys, "grpo_4b", "actor.parallel.workers=1", "actor.parallel.strategy=single")
    assert code == 1
    # 16 bytes a parameter, of which there are 4.02 billion, are 64.3 GB before any activation
    assert "policy: a process needs 1" in out
    assert "of 80 GB; change actor.ppo_max_token_len, actor.parallel.workers or the strategy" in out


def test_a_larger_gpu_takes_what_a_smaller_one_does_not(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "stage1_4b", "loss.micro_batch_tokens=8192")[0] == 1
    assert run(capsys, "stage1_4b", "loss.micro_batch_tokens=8192", "--gpu-memory", "141")[0] == 0


def test_the_text_shows_every_role_every_gpu_and_what_else_could_be_chosen(capsys: pytest.CaptureFixture[str]):
    _, out, _ = run(capsys, "--config", "grpo_4b")
    for expected in ("policy", "reference", "rollout", "retriever", "4,021,774,336 parameters", "kv cache", "policy-3"):
        assert expected in out
    for strategy in ("ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP2"):
        assert strategy in out
    assert out.rstrip().endswith("fits on 1 node")


# -- places -------------------------------------------------------------------------------------------------------------


def test_more_processes_than_a_node_has_gpus_fill_the_next_node():
    plan = make_plan(grpo("rollout.workers=12"), GPU)
    assert len({gpu.node for gpu in plan.gpus}) == 2
    used = [name for gpu in plan.gpus for name in gpu.processes]
    assert sorted(n for n in used if n.startswith("rollout")) == sorted(f"rollout-{i}" for i in range(12))


def test_halves_of_a_gpu_share_it():
    plan = make_plan(grpo("resources.reference_gpus=0.5", "resources.retriever_gpus=0.5"), GPU)
    shared = [set(gpu.processes) for gpu in plan.gpus if len(gpu.processes) > 1]
    assert shared == [{"reference-0", "retriever-0"}]


def test_colocated_roles_share_the_policy_s_gpus_and_their_peaks_add_up():
    config = grpo(
        "resources.colocate=true", "actor.parallel.workers=2", "ref.parallel.workers=2", "rollout.workers=2",
        "rollout.gpu_memory_utilization=0.1", "actor.ppo_max_token_len=4096",
    )  # fmt: skip
    plan = make_plan(config, GPU)
    used = [gpu for gpu in plan.gpus if gpu.processes]
    assert [set(gpu.processes) for gpu in used] == [
        {"policy-0", "reference-0", "rollout-0", "retriever-0"},
        {"policy-1", "reference-1", "rollout-1"},
    ]
    peaks = {role.name: role.memory.peak for role in plan.roles}
    assert used[1].peak == pytest.approx(peaks["policy"] + peaks["reference"] + peaks["rollout"])
    assert plan.problems == []


def test_colocated_roles_that_fit_one_by_one_but_not_together_are_named_with_their_gpu():
    config = grpo("resources.colocate=true", "actor.parallel.workers=1", "rollout.workers=1")
    problems = make_plan(config, GPU).problems
    assert len(problems) == 1
    assert problems[0].startswith("node 1 GPU 0: policy-0, reference-0, rollout-0, retriever-0 together need 1")


def test_colocated_roles_that_sleep_take_turns_with_the_memory():
    keys = ["resources.colocate=true", "actor.parallel.workers=1", "rollout.workers=1"]
    plan = make_plan(grpo(*keys, "rollout.sleep=true", "rollout.gpu_memory_utilization=0.5"), GPU)
    memory = {role.name: role.memory for role in plan.roles}
    (gpu,) = [gpu for gpu in plan.gpus if gpu.processes]
    frozen = memory["reference"].at_rest + memory["retriever"].at_rest
    asleep = 2e9 + 1.5e9  # a process's context and vLLM's graphs
    updating = memory["policy"].peak + frozen + asleep
    sampling = memory["rollout"].peak + frozen + memory["policy"].at_rest
    scoring = memory["reference"].peak + memory["retriever"].peak + memory["policy"].at_rest + asleep
    assert gpu.peak == pytest.approx(max(updating, sampling, scoring))
    assert gpu.peak < sum(gpu.processes.values()) - 10e9


def test_an_engine_without_a_gpu_beside_roles_with_one_is_that_of_the_cpu():
    roles = {role.name: role for role in make_plan(grpo("resources.rollout_gpus=0", "rollout.name=auto"), GPU).roles}
    assert roles["rollout"].strategy == "transformers"


def test_roles_without_a_gpu_are_said_to_be_on_the_cpu():
    plan = make_plan(load_config(GrpoConfig, "grpo_tiny", ["model.path=runs/x-0.6b", "data.train_file=x"]), GPU)
    assert plan.gpus == []
    assert any("no GPU is reserved for policy, reference, rollout, retriever" in note for note in plan.notes)


# -- what cannot run ----------------------------------------------------------------------------------------------------


def test_an_engine_without_room_for_one_sequence_is_refused():
    problems = make_plan(grpo("rollout.gpu_memory_utilization=0.05"), GPU).problems
    assert any("rollout: vLLM has room for 0 tokens" in p and "a sequence has 1216" in p for p in problems)


def test_the_fewest_workers_of_an_elastic_run_must_hold_it_too():
    """ZeRO-3 shards AdamW's 16 bytes a parameter over eight workers; one that is left alone would hold all 64 GB."""
    config = load_config(
        Stage1Config,
        "stage1_4b",
        ["optim.name=adamw", "parallel.zero_stage=3", "loss.micro_batch_tokens=2048", "parallel.min_workers=1"],
    )
    plan = make_plan(config, GPU)
    assert plan.roles[0].memory.peak < GPU
    assert any("with parallel.min_workers=1 a worker needs" in problem for problem in plan.problems)


@pytest.mark.parametrize("arguments", [["grpo_4b", "--gpu-memory", "0"], ["grpo_4b", "--gpus-per-node", "0"]])
def test_impossible_gpus_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert err.startswith("error: --gpu-memory ")


def test_a_process_larger_than_a_node_is_refused():
    with pytest.raises(ConfigError, match="16 GPUs for one process; a node has 8"):
        make_plan(grpo("resources.policy_gpus=16"), GPU)


# -- no cluster ---------------------------------------------------------------------------------------------------------


def test_planning_imports_neither_ray_nor_torch():
    code = (
        "import sys; from cluster.plan import print_plan; print_plan('grpo_4b', [], 80, 8, as_json=False); "
        "sys.exit(sum(name in sys.modules for name in ('ray', 'torch', 'transformers', 'vllm')))"
    )
    repository = Path(__file__).resolve().parents[2]
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=repository, check=False, capture_output=True).returncode == 0
    )
