"""A run's folder: where things lie, and which resumptions are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs import ConfigError
from configs.schema import RunConfig
from trainers.run_folder import RunFolder
from trainers.stage1 import train_stage1


def test_everything_lies_below_root_and_name():
    run = RunFolder.of(RunConfig(name="mine", root="somewhere"))
    root = Path("somewhere/mine").resolve()  # Ray actors run in folders of their own
    assert (run.root, run.metrics, run.plots) == (root, root / "metrics.jsonl", root / "plots")
    assert (run.export, run.causal_lm) == (root / "export", root / "export" / "causal_lm")
    assert run.checkpoints == root / "checkpoints"


def test_checkpoints_may_lie_elsewhere():
    assert RunFolder.of(RunConfig(name="mine", checkpoints="big/disk")).checkpoints == Path("big/disk").resolve()


def test_the_newest_complete_checkpoint_is_found(tmp_path: Path):
    run = RunFolder.of(RunConfig(name="mine", root=str(tmp_path)))
    assert run.latest_checkpoint() is None
    for step, complete in ((9, True), (10, True), (11, False)):
        folder = run.checkpoints / f"step_{step:06d}"
        folder.mkdir(parents=True)
        if complete:
            (folder / "state.json").write_text("{}")
    assert run.latest_checkpoint() == run.checkpoints / "step_000010"


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
    assert run.latest_checkpoint() == run.checkpoints / "step_000002"
