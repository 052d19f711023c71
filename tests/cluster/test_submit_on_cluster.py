"""Submitting to a real local cluster: what travels, what comes back, how a job is stopped, and that no secret is left."""

from __future__ import annotations

import hashlib
import stat
import time
import zipfile
from pathlib import Path

import pytest
import yaml

from data_pipeline.records import Stage1Record, Stage2Record, write_records
from objectives.checkpoint import list_checkpoints
from trainers.tracking import read_metrics

SECRET = "wandb-key-that-nobody-may-read-5c0d"
SKILLS = ("charts", "forms", "minutes", "budgets", "routes", "recipes", "lessons", "captions")


def write_training_files(folder: Path, model: Path) -> None:
    """Eight records of each stage, and a configuration that trains a toy on them for two updates."""
    documents = {s: f"{s} | Can make {s}. | Use it for {s}." for s in SKILLS}
    fields = [
        {
            "record_id": skill,
            "query": f"please help me with {skill} today",
            "query_capability": f"The user needs skills for {skill}.",
            "positive_id": skill,
            "positive": documents[skill],
            "negative_ids": tuple(SKILLS[(number + k) % 8] for k in (1, 2)),
            "negatives": tuple(documents[SKILLS[(number + k) % 8]] for k in (1, 2)),
            "category": "all",
        }
        for number, skill in enumerate(SKILLS)
    ]
    write_records(folder / "stage1.jsonl", [Stage1Record(**f) for f in fields])
    write_records(folder / "stage2.jsonl", [Stage2Record(**f, original_query=f["query"]) for f in fields])
    shared = {
        "run": {"name": "job", "root": str(folder / "runs"), "device": "cpu", "threads": 1},
        "model": {"path": str(model), "dtype": "float32"},
        "trainer": {"total_epochs": 1, "save_freq": 1, "test_freq": 0},
    }
    stage1 = {
        **shared,
        "data": {
            "train_file": str(folder / "stage1.jsonl"), "train_batch_size": 4, "negatives_per_record": 2, "max_length": 160,
            "document_max_length": 48, "lm_max_length": 96, "rationale_max_length": 24,
        },
    }  # fmt: skip
    grpo = {
        **shared,
        "data": {
            "train_file": str(folder / "stage2.jsonl"), "train_batch_size": 4, "max_prompt_length": 64,
            "max_response_length": 8, "max_query_length": 160, "document_max_length": 48,
        },
        "rollout": {"name": "hf", "n": 2},
        "reward": {"terms": {"margin": {"params": {"tau": 0.05}}}},
    }  # fmt: skip
    (folder / "stage1.yaml").write_text(yaml.safe_dump(stage1))
    (folder / "grpo.yaml").write_text(yaml.safe_dump(grpo))


def files_with(text: str, *folders: Path) -> list[Path]:
    """Every file below the folders whose bytes contain the text."""
    found = (p for folder in folders for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return [p for p in found if text.encode() in p.read_bytes()]


@pytest.mark.ray
def test_a_submitted_stage1_run_leaves_its_artifacts_and_no_secret(head, tmp_path: Path, tiny_folder: Path):
    write_training_files(tmp_path, tiny_folder)
    done = head.submit(
        "--env-var", "WANDB_API_KEY", "--name", "stage1-job", "train", "stage1", "--config", "stage1.yaml", "run.seed=3",
        cwd=tmp_path, WANDB_API_KEY=SECRET,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    run = tmp_path / "runs" / "job"
    assert f"done: {run}" in done.stdout
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert list_checkpoints(run / "checkpoints")
    assert (run / "export" / "causal_lm" / "model.safetensors").is_file()
    assert yaml.safe_load((run / "config.yaml").read_text())["run"]["seed"] == 3
    assert (run / "wandb").is_dir()  # the tracker ran, offline

    again = head.jobs("logs", "stage1-job")
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert SECRET not in done.stdout + done.stderr + again.stderr
    session_logs = next(head.folder.glob("session_2*")) / "logs"
    assert (session_logs / "runtime_env_agent.log").is_file()
    assert files_with(SECRET, run, session_logs) == []
    # the one place where the values lie, on every node of the job, readable by its user alone
    kept = files_with(SECRET, head.folder)
    assert {p.name for p in kept} == {"values.json"}
    assert {stat.S_IMODE(p.stat().st_mode) for p in kept} == {0o600}
    assert files_with(head.environment["RAY_AUTH_TOKEN"], run, head.folder) == []


@pytest.mark.ray
def test_variables_reach_the_command_and_ray_s_workers_and_the_exit_status_comes_back(head, tmp_path: Path):
    code = (
        "import hashlib, os, ray; ray.init(log_to_driver=False); "
        "digest = lambda: hashlib.sha256(os.environ['A_KEY'].encode()).hexdigest(); "
        "print('driver', digest()); print('worker', ray.get(ray.remote(digest).remote())); "
        "print('patience', os.environ['RAY_JOB_STOP_WAIT_TIME_S']); raise SystemExit(7)"
    )
    done = head.submit("--env-var", "A_KEY", "--", "python", "-c", code, cwd=tmp_path, A_KEY=SECRET)
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    assert done.returncode == 7
    assert f"driver {digest}\nworker {digest}\npatience 600\n" in done.stdout


@pytest.mark.ray
def test_a_run_that_its_configuration_stops_ends_with_its_one_line_error(head, tmp_path: Path, tiny_folder: Path):
    write_training_files(tmp_path, tiny_folder)
    done = head.submit("train", "stage1", "stage1.yaml", "data.train_file=/not/there.jsonl", cwd=tmp_path)
    assert done.returncode == 1
    assert "error: data.train_file is '/not/there.jsonl': no such file" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.ray
def test_code_and_configurations_travel_and_runs_weights_and_secrets_do_not(head, tmp_path: Path):
    stay = (
        "runs/old/metrics.jsonl", ".git/config", ".venv/bin/python", "venv/bin/python", ".env", ".env.local", "wandb/log",
        "model.safetensors", "deep/er/model.gguf", "deep/__pycache__/a.pyc", ".cache/x", "server.pem", "ignored.txt",
    )  # fmt: skip
    travel = ("mine.yaml", "rewards_of_mine.py", "deep/er/terms.py", "data/stage1.jsonl")
    for name in (*stay, *travel):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitignore").write_text("ignored.txt\n")
    done = head.submit("--", "find", ".", "-type", "f", cwd=tmp_path)
    assert done.returncode == 0
    found = {line.removeprefix("./") for line in done.stdout.splitlines() if line.startswith("./")}
    assert found - {".gitignore"} == set(travel)


@pytest.mark.ray
def test_the_project_travels_with_its_folder(head):
    done = head.submit(
        "--", "python", "-c", "import skillreason, cluster; print(skillreason.__file__, cluster.__file__)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("/working_dir_files/_ray_pkg_") == 2


@pytest.mark.ray
def test_a_wheel_travels_in_place_of_a_folder(head, tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "mine-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("mine_of_a_wheel.py", "print('from the wheel')\n")
    done = head.submit("--wheel", "mine-1-py3-none-any.whl", "--", "python", "-m", "mine_of_a_wheel", cwd=tmp_path)
    assert (done.returncode, "from the wheel" in done.stdout) == (0, True)


@pytest.mark.ray
@pytest.mark.parametrize("token", [None, "another-token"])
def test_without_the_cluster_s_token_nothing_is_submitted(head, token: str | None, tmp_path: Path):
    done = head.submit("--", "true", cwd=tmp_path, RAY_AUTH_TOKEN=token)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: the cluster at {head.address} refused the authentication token; expected its token in"
    )
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.ray
def test_a_token_in_a_file_is_enough(head, tmp_path: Path):
    (tmp_path / "token").write_text(head.environment["RAY_AUTH_TOKEN"])
    done = head.submit(
        "--no-wait", "--name", "by-file", "--", "true",
        cwd=tmp_path, RAY_AUTH_TOKEN=None, RAY_AUTH_MODE=None, RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "by-file\n")
    assert head.jobs("logs", "by-file").returncode == 0
    listed = head.jobs("list").stdout
    assert any(line.split()[:2] == ["by-file", "SUCCEEDED"] for line in listed.splitlines())


@pytest.mark.ray
def test_a_stopped_run_writes_a_checkpoint_of_its_last_update_first(head, tmp_path: Path, tiny_folder: Path):
    write_training_files(tmp_path, tiny_folder)
    started = head.submit(
        "--no-wait", "train", "stage1", "stage1.yaml", "trainer.total_epochs=10000", "trainer.save_freq=0", cwd=tmp_path
    )
    job, run = started.stdout.strip(), tmp_path / "runs" / "job"
    deadline = time.monotonic() + 120
    while len(read_metrics(run / "metrics.jsonl")) < 3:
        assert time.monotonic() < deadline, head.jobs("logs", job).stdout
        time.sleep(0.5)
    assert head.jobs("stop", job).stdout == f"{job} is stopping\n"
    followed = head.jobs("logs", job)
    assert followed.returncode == 130
    assert "stopped at update" in followed.stdout
    last = read_metrics(run / "metrics.jsonl")[-1]["step"]
    assert [Path(path).name for path in list_checkpoints(run / "checkpoints")] == [f"step_{last:06d}"]
    assert head.jobs("stop", job).stdout == f"{job} was not running\n"


@pytest.mark.ray
@pytest.mark.slow
def test_plain_ray_job_submit_runs_grpo(head, tmp_path: Path, tiny_folder: Path):
    write_training_files(tmp_path, tiny_folder)
    command = ("python", "-m", "trainers.grpo", str(tmp_path / "grpo.yaml"))
    done = head.run("ray", "job", "submit", "--address", head.address, "--working-dir", ".", "--", *command)
    assert done.returncode == 0, done.stdout[-3000:]
    run = tmp_path / "runs" / "job"
    assert [row["step"] for row in read_metrics(run / "metrics.jsonl")] == [1, 2]
    assert (run / "export" / "causal_lm" / "model.safetensors").is_file()


@pytest.mark.ray
@pytest.mark.slow
def test_a_submitted_grpo_run_leaves_its_artifacts_and_no_secret(head, tmp_path: Path, tiny_folder: Path):
    write_training_files(tmp_path, tiny_folder)
    done = head.submit("--env-var", "WANDB_API_KEY", "train", "grpo", "grpo.yaml", cwd=tmp_path, WANDB_API_KEY=SECRET)
    assert done.returncode == 0, done.stdout[-3000:]
    run = tmp_path / "runs" / "job"
    assert "reward/total/mean" in read_metrics(run / "metrics.jsonl")[-1]
    assert SECRET not in done.stdout + done.stderr
    assert files_with(SECRET, run, next(head.folder.glob("session_2*")) / "logs") == []
