"""Stage I as a whole: it learns, switches its terms on when it should, and is exact across crashes and interrupts."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import trainers.loop
import trainers.run_folder
import trainers.stage1_loop
from configs import to_yaml
from data_pipeline.heldout import is_heldout
from data_pipeline.records import Stage1Record
from models.backbone import Backbone
from models.views import document_view, raw_view
from objectives.checkpoint import (
    CheckpointError,
    CheckpointWriteError,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from objectives.engine_torch import ReplicaEngine
from objectives.stage1 import Stage1Batch, Stage1Collator
from trainers.run_folder import RunFolder
from trainers.stage1 import train_stage1
from trainers.tracking import read_metrics

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60
"""Updates of the run that is stopped half-way: a few seconds, long enough to be caught in the middle."""


def column(run: RunFolder, key: str) -> dict[int, float]:
    """A curve: step to value, where the key is logged."""
    return {row["step"]: row[key] for row in read_metrics(run.metrics) if key in row}


def test_the_losses_fall(make_stage1, tmp_path: Path):
    config = make_stage1(tmp_path, "trainer.total_steps=40", "loss.lambda_kl=0", "optim.lr=3e-3", "trainer.save_freq=0")
    run = train_stage1(config)
    for key in ("loss/total", "loss/raw", "loss/cot", "loss/lm"):
        values = list(column(run, key).values())
        assert np.mean(values[-6:]) < 0.8 * np.mean(values[:6]), key
    assert np.mean(list(column(run, "train/accuracy_raw").values())[-6:]) > 0.5


def test_the_kl_term_joins_after_exactly_the_configured_updates(make_stage1, tmp_path: Path):
    run = train_stage1(make_stage1(tmp_path, "trainer.total_steps=5", "loss.kl_start_update=3", "loss.lambda_kl=5"))
    assert list(column(run, "loss/raw")) == [1, 2, 3, 4, 5]
    assert list(column(run, "loss/kl")) == [4, 5]
    for row in read_metrics(run.metrics):
        expected = row["loss/raw"] + row["loss/cot"] + 5 * row.get("loss/kl", 0.0) + 0.2 * row["loss/lm"]
        assert row["loss/total"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("updates", "warned"), [(3, True), (4, False)])
def test_a_run_too_short_for_the_kl_term_warns(
    make_stage1, tmp_path: Path, caplog: pytest.LogCaptureFixture, updates: int, warned: bool
):
    with caplog.at_level(logging.WARNING):
        run = train_stage1(make_stage1(tmp_path, f"trainer.total_steps={updates}", "loss.kl_start_update=3"))
    assert ("loss.kl_start_update is 3 and the run has 3 updates" in caplog.text) is warned
    assert bool(column(run, "loss/kl")) is not warned


def test_a_run_without_a_kl_term_does_not_warn(make_stage1, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        train_stage1(make_stage1(tmp_path, "trainer.total_steps=1", "loss.kl_start_update=3", "loss.lambda_kl=0"))
    assert "kl_start_update" not in caplog.text


def test_checkpoints_are_written_as_often_and_kept_as_deep_as_configured(make_stage1, tmp_path: Path):
    keys = ["trainer.total_steps=7", "trainer.save_freq=2", "trainer.max_ckpt_to_keep=3"]
    run = train_stage1(make_stage1(tmp_path, *keys))
    assert [Path(c).name for c in list_checkpoints(run.checkpoints)] == ["step_000004", "step_000006", "step_000007"]


def test_a_checkpoint_that_could_not_be_written_is_written_after_the_next_update_that_can(
    make_stage1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def sometimes_full(folder: str, step: int, *arguments: Any) -> str:
        if step in (2, 3):
            raise CheckpointWriteError(f"step_{step:06d} could not be written: quota exceeded")
        return save_checkpoint(folder, step, *arguments)

    monkeypatch.setattr(trainers.loop, "save_checkpoint", sometimes_full)
    keys = ["trainer.total_steps=5", "trainer.save_freq=2", "trainer.max_ckpt_to_keep=9"]
    run = train_stage1(make_stage1(tmp_path, *keys))
    assert [Path(c).name for c in list_checkpoints(run.checkpoints)] == ["step_000004", "step_000005"]
    assert [(row["event"], row["step"]) for row in read_metrics(run.events)] == [("save_failed", 2), ("save_failed", 3)]
    assert "quota exceeded" in read_metrics(run.events)[0]["detail"]


def test_a_last_checkpoint_that_could_not_be_written_ends_the_run(make_stage1, tmp_path: Path, monkeypatch):
    def full(folder: str, step: int, *arguments: Any) -> str:
        raise CheckpointWriteError(f"step_{step:06d} could not be written: quota exceeded")

    monkeypatch.setattr(trainers.loop, "save_checkpoint", full)
    with pytest.raises(CheckpointWriteError, match="step_000002 could not be written"):
        train_stage1(make_stage1(tmp_path, "trainer.total_steps=2", "trainer.save_freq=1"))


@pytest.mark.parametrize(("seen_after", "found"), [(40, "run/step_000020"), (1e6, "run/step_000010")])
def test_a_checkpoint_of_another_node_is_looked_for_until_the_file_system_shows_it(monkeypatch, seen_after, found):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(trainers.run_folder, "time", clock)
    monkeypatch.setattr(
        RunFolder,
        "latest_checkpoint",
        lambda self: "run/step_000020" if now[0] >= seen_after else "run/step_000010",
    )
    assert RunFolder(Path("run"), "run").newest_checkpoint(20) == found
    assert now[0] == min(seen_after, 90)


def test_in_training_recall_comes_from_requests_that_no_update_sees(
    make_stage1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trained: set[str] = set()

    class Collator(Stage1Collator):
        def __call__(self, records: Sequence[Stage1Record]) -> Stage1Batch:
            trained.update(r.positive_id for r in records)
            return super().__call__(records)

    monkeypatch.setattr(trainers.stage1_loop, "Stage1Collator", Collator)
    keys = ["trainer.total_steps=5", "trainer.test_freq=2", "data.heldout_fraction=0.25"]
    run = train_stage1(make_stage1(tmp_path, *keys))
    assert trained
    assert not any(is_heldout(skill_id, 0.25) for skill_id in trained)
    recall = column(run, "val/recall@10")
    assert list(recall) == [2, 4, 5]
    assert all(0 <= value <= 1 for value in recall.values())


def test_the_export_is_the_last_checkpoint_as_a_sentence_transformer(make_stage1, tmp_path: Path, tiny_folder: Path):
    from sentence_transformers import SentenceTransformer

    keys = ["trainer.total_steps=3", "trainer.export=true", "data.heldout_fraction=0.25"]
    run = train_stage1(make_stage1(tmp_path, *keys))
    backbone = Backbone.load(tiny_folder)
    load_checkpoint(list_checkpoints(run.checkpoints)[-1], ReplicaEngine(backbone, None), restore_rng=False)
    requests, documents = ["draw the sales", "plan our route"], ["charts | Can draw. | Draw.", "routes | Plans. | Go."]

    def encode(views: list) -> np.ndarray:
        return backbone.encode(backbone.tokenizer.encode_views(views, 256), 1024).numpy()

    model = SentenceTransformer(str(run.export), device="cpu")
    np.testing.assert_allclose(model.encode_query(requests), encode([raw_view(q) for q in requests]), atol=1e-5)
    np.testing.assert_allclose(
        model.encode_document(documents), encode([document_view(d) for d in documents]), atol=1e-5
    )
    exported = Backbone.load(run.causal_lm).state()
    assert all(torch.equal(value, exported[name]) for name, value in backbone.state().items())
    weight = json.loads((run.export / "retrieval.json").read_text())
    assert 0 <= weight["fusion_weight"] <= 1
    assert "held-out training requests" in weight["chosen_on"]


def test_a_run_leaves_its_configuration_and_a_plot(make_stage1, tmp_path: Path):
    config = make_stage1(tmp_path, "trainer.total_steps=1")
    run = train_stage1(config)
    assert (run.root / "config.yaml").read_text() == to_yaml(config)
    assert (run.plots / "losses.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("damage", ["truncated", "missing"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_damaged_checkpoint_is_refused_by_name(make_stage1, tmp_path: Path, name: str, damage: str):
    run = train_stage1(make_stage1(tmp_path, "trainer.total_steps=2"))
    file = Path(list_checkpoints(run.checkpoints)[-1], name)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        file.unlink()
    with pytest.raises(CheckpointError, match=rf"step_000002/{name}: .*(truncated|incomplete)"):
        train_stage1(make_stage1(tmp_path, "trainer.total_steps=3"))


def test_a_finished_run_is_left_as_it_is(make_stage1, tmp_path: Path):
    config = make_stage1(tmp_path, "trainer.total_steps=2")
    first = train_stage1(config)
    rows, weights = first.metrics.read_bytes(), final_weights(first)
    train_stage1(config)
    assert first.metrics.read_bytes() == rows
    assert all(torch.equal(value, weights[name]) for name, value in final_weights(first).items())


# -- crashes and interrupts ---------------------------------------------------------------------------------------------


def final_weights(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(Path(list_checkpoints(run.checkpoints)[-1], "model.safetensors"))


def optimizer_state(run: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(Path(list_checkpoints(run.checkpoints)[-1], "optimizer.safetensors"))


@pytest.fixture(scope="module")
def unbroken(make_stage1, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    threads = torch.get_num_threads()
    run = train_stage1(make_stage1(tmp_path_factory.mktemp("unbroken"), f"trainer.total_steps={STEPS}"))
    torch.set_num_threads(threads)
    return run


@pytest.fixture
def stop_half_way(make_stage1, tmp_path: Path) -> Callable[[signal.Signals], tuple[RunFolder, int, str]]:
    """Start the same run with ``python -m trainers.stage1``, saving every fourth update; signal it after its tenth."""

    def stop(number: signal.Signals) -> tuple[RunFolder, int, str]:
        config = make_stage1(tmp_path, f"trainer.total_steps={STEPS}", "trainer.save_freq=4")
        run = RunFolder.of(config.run)
        file = tmp_path / "stage1.yaml"
        file.write_text(to_yaml(config))
        process = subprocess.Popen(
            [sys.executable, "-m", "trainers.stage1", str(file)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            deadline = time.monotonic() + 120
            while (read_metrics(run.metrics) or [{"step": 0}])[-1]["step"] < 10:
                assert process.poll() is None, f"ended before its tenth update: {process.communicate()[0]}"
                assert time.monotonic() < deadline, "no tenth update within two minutes"
                time.sleep(0.005)
            process.send_signal(number)
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()
        return run, process.returncode, output

    return stop


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_stopped_and_resumed_run_ends_like_an_unbroken_one_bit_for_bit(
    unbroken: RunFolder, stop_half_way, make_stage1, tmp_path: Path, number: signal.Signals
):
    run, code, output = stop_half_way(number)
    stopped_at = int(list_checkpoints(run.checkpoints)[-1][-6:])
    assert 8 <= stopped_at < STEPS, output
    if number == signal.SIGINT:
        assert code == 130
        assert f"stopped at update {stopped_at} of {STEPS}; run it again to go on: {run.root}" in output
        assert "Traceback" not in output
    else:
        assert code == -signal.SIGKILL

    train_stage1(make_stage1(tmp_path, f"trainer.total_steps={STEPS}", "trainer.save_freq=4"))

    expected = final_weights(unbroken)
    found = final_weights(run)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    moments = optimizer_state(run)
    assert all(torch.equal(moments[key], value) for key, value in optimizer_state(unbroken).items())
    rows, whole = read_metrics(run.metrics), read_metrics(unbroken.metrics)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row, other in zip(rows, whole, strict=True):
        assert {k: v for k, v in row.items() if k != "time/step"} == {
            k: v for k, v in other.items() if k != "time/step"
        }
