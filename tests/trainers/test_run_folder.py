"""A run's folder: where things lie, and which resumptions are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from configs import ConfigError
from configs.schema import RunConfig
from trainers.run_folder import RunFolder, with_absolute_paths
from trainers.stage1 import train_stage1
from trainers.tracking import read_metrics


def test_everything_lies_below_root_and_name():
    run = RunFolder.of(RunConfig(name="mine", root="somewhere"))
    root = Path("somewhere/mine").resolve()  # Ray actors run in folders of their own
    assert (run.root, run.metrics, run.plots) == (root, root / "metrics.jsonl", root / "plots")
    assert (run.export, run.causal_lm) == (root / "export", root / "export" / "causal_lm")
    assert run.checkpoints == str(root / "checkpoints")


def test_checkpoints_may_lie_elsewhere():
    assert RunFolder.of(RunConfig(name="mine", checkpoints="big/disk")).checkpoints == str(Path("big/disk").resolve())


@pytest.mark.parametrize("url", ["s3://bucket/run", "memory://checkpoints"])
def test_checkpoints_may_go_to_any_file_system(url: str):
    assert RunFolder.of(RunConfig(name="mine", checkpoints=url)).checkpoints == url


def test_a_run_with_checkpoints_elsewhere_goes_on_from_them(make_stage1, tmp_path: Path):
    keys = [f"run.checkpoints=local://{tmp_path}/elsewhere", "trainer.save_freq=2"]
    train_stage1(make_stage1(tmp_path, *keys, "trainer.total_steps=2"))
    run = train_stage1(make_stage1(tmp_path, *keys, "trainer.total_steps=3"))
    assert [row["step"] for row in read_metrics(run.metrics)] == [1, 2, 3]
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["step_000002", "step_000003"]


def test_a_folder_in_use_is_refused_by_name_and_free_again_afterwards(tmp_path: Path):
    run = RunFolder.of(RunConfig(name="mine", root=str(tmp_path)))
    with (
        run.lock(),
        pytest.raises(ConfigError, match=rf"another process trains in {run.root} \(process {os.getpid()} on "),
    ):
        run.lock().__enter__()
    with run.lock():
        pass


def test_a_new_run_clears_away_what_a_killed_one_left(make_stage1, tmp_path: Path):
    run = RunFolder.of(make_stage1(tmp_path).run)
    left = [
        run.root / ".export.abc.tmp",
        Path(run.checkpoints) / ".step_000003.abc.tmp",
        run.export / ".causal_lm.a.tmp",
    ]
    for folder in left:
        folder.mkdir(parents=True)
        (folder / "half").write_text("x")
    train_stage1(make_stage1(tmp_path, "trainer.total_steps=1"))
    assert not any(folder.exists() for folder in left)


def test_actors_get_absolute_paths_and_the_users_configuration_stays(make_stage1, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "records.jsonl").touch()
    keys = ["model.path=model", "data.train_file=records.jsonl", "run.root=runs", "run.checkpoints=s3://bucket/run"]
    config = make_stage1(tmp_path, *keys)
    absolute = with_absolute_paths(config)
    assert (absolute.model.path, absolute.data.train_file) == (f"{tmp_path}/model", f"{tmp_path}/records.jsonl")
    assert (absolute.run.root, absolute.run.checkpoints) == (f"{tmp_path}/runs", "s3://bucket/run")
    assert (config.model.path, config.run.root) == ("model", "runs")
    config.model.path = "Qwen/Qwen3-Embedding-0.6B"
    assert with_absolute_paths(config).model.path == "Qwen/Qwen3-Embedding-0.6B"


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path):
    run = RunFolder.of(RunConfig(name="mine", root=str(tmp_path)))
    assert run.latest_checkpoint() is None
    for step, complete in ((9, True), (10, True), (11, False)):
        folder = Path(run.checkpoints, f"step_{step:06d}")
        folder.mkdir(parents=True)
        if complete:
            (folder / "state.json").write_text("{}")
    assert run.latest_checkpoint() == f"{run.checkpoints}/step_000010"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("data.train_batch_size=3", r"data\.train_batch_size 4, this run has 3"),
        ("run.seed=7", r"run\.seed 42, this run has 7"),
        ("data.heldout_fraction=0.25", r"records of data\.train_file"),
    ],
)
def test_a_resumption_with_other_batches_is_refused_by_key_and_changes_nothing(
    make_stage1, tmp_path: Path, change: str, named: str
):
    run = train_stage1(make_stage1(tmp_path, "trainer.total_steps=1"))
    before = {file: file.read_bytes() for file in run.root.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError, match=named):
        train_stage1(make_stage1(tmp_path, "trainer.total_steps=2", change))
    assert {file: file.read_bytes() for file in run.root.rglob("*") if file.is_file()} == before


def test_a_run_may_be_prolonged(make_stage1, tmp_path: Path):
    train_stage1(make_stage1(tmp_path, "trainer.total_steps=1"))
    run = train_stage1(make_stage1(tmp_path, "trainer.total_steps=2", "optim.lr=1e-4"))
    assert run.latest_checkpoint() == f"{run.checkpoints}/step_000002"
