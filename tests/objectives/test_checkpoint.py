"""Checkpoints: restored bit for bit, kept N deep, and refused by name when they are not whole or not ours."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import load_file

from configs.schema import OptimizerConfig
from models.backbone import Backbone
from models.tiny import TinyConfig, create_tiny
from objectives import checkpoint
from objectives.checkpoint import (
    CheckpointError,
    CheckpointWriteError,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint_state,
    save_checkpoint,
)
from objectives.engine_torch import ReplicaEngine


def train(engine: ReplicaEngine, steps: int) -> None:
    """Updates that depend on the global random state."""
    for _ in range(steps):
        log_probs, _, _ = engine.response_log_probs([torch.randint(2, 100, (4,)).tolist()], [[7, 8, 1]])
        engine.backward(-log_probs.sum())
        engine.step(1.0)


def fresh(folder: Path, name: str = "adamw") -> ReplicaEngine:
    return ReplicaEngine(Backbone.load(folder), OptimizerConfig(name=name, lr=1e-3))


@pytest.fixture(scope="module")
def saved(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    engine = fresh(tiny_folder)
    train(engine, 1)
    return save_checkpoint(tmp_path_factory.mktemp("run"), 7, engine, {"epoch": 2})


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one_bit_for_bit(tiny_folder, tmp_path, name):
    torch.manual_seed(3)
    unbroken = fresh(tiny_folder, name)
    train(unbroken, 2)
    save_checkpoint(tmp_path, 2, unbroken, {})
    train(unbroken, 2)
    torch.manual_seed(99)
    resumed = fresh(tiny_folder, name)
    load_checkpoint(tmp_path / "step_000002", resumed)
    train(resumed, 2)
    for key, value in unbroken.backbone.state().items():
        assert torch.equal(resumed.backbone.state()[key], value), key


def test_every_random_stream_goes_on_where_it_was(tiny_folder: Path, tmp_path: Path):
    engine = fresh(tiny_folder)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(11)
    np.random.standard_normal()  # noqa: NPY002 - leaves half of a Gaussian pair behind, which is state too
    random.gauss(0, 1)
    folder = save_checkpoint(tmp_path, 1, engine, {})

    def draw() -> tuple[object, ...]:
        return torch.rand(3).tolist(), random.gauss(0, 1), random.random(), np.random.standard_normal()  # noqa: NPY002

    expected = draw()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(12)
    load_checkpoint(folder, engine)
    assert draw() == expected


def test_the_random_state_is_left_alone_where_only_weights_are_wanted(saved: str, tiny_folder: Path):
    engine = ReplicaEngine(Backbone.load(tiny_folder), None)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    load_checkpoint(saved, engine, restore_rng=False)
    assert torch.equal(torch.rand(2), expected)


def test_progress_comes_back_with_the_step(saved: str, tiny_folder: Path):
    engine = fresh(tiny_folder)
    assert load_checkpoint(saved, engine) == {"epoch": 2, "step": 7}


def test_only_the_newest_checkpoints_are_kept(tiny_folder: Path, tmp_path: Path):
    engine = fresh(tiny_folder)
    for step in (5, 10, 15, 20):
        save_checkpoint(tmp_path, step, engine, {}, keep=2)
    assert [Path(p).name for p in list_checkpoints(tmp_path)] == ["step_000015", "step_000020"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000015", "step_000020"]


def test_checkpoints_are_listed_by_step_and_incomplete_folders_left_out(tmp_path: Path):
    for name in ("step_000010", "step_1000000", "step_999999", "step_000020", ".step_000030.x", "other"):
        (tmp_path / name).mkdir()
        if name != "step_000020":
            (tmp_path / name / "state.json").write_text("{}")
    assert [Path(p).name for p in list_checkpoints(tmp_path)] == ["step_000010", "step_999999", "step_1000000"]


def test_a_folder_that_does_not_exist_has_no_checkpoints(tmp_path: Path):
    assert list_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "rng.pt"])
def test_a_truncated_file_is_refused_by_name(saved: str, tmp_path: Path, name: str):
    folder = shutil.copytree(saved, tmp_path / "step_000007")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"{name}: {len(content) - 1} bytes, {len(content)} were written"):
        read_checkpoint_state(folder)


def test_beside_a_truncated_one_the_newest_older_whole_checkpoint_is_named(saved: str, tmp_path: Path):
    for step in (3, 5, 7, 9):
        shutil.copytree(saved, tmp_path / f"step_{step:06d}")
    for step in (5, 7):
        (tmp_path / f"step_{step:06d}" / "rng.pt").unlink()
    newest = tmp_path / "step_000007"
    with pytest.raises(CheckpointError, match=rf"rng\.pt: missing.* Delete {newest} to go on from .*step_000003$"):
        read_checkpoint_state(newest)
    shutil.rmtree(tmp_path / "step_000003")
    with pytest.raises(CheckpointError, match=r"rng\.pt: missing; the checkpoint is incomplete$"):
        read_checkpoint_state(newest)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "rng.pt"])
def test_a_missing_file_is_refused_by_name(saved: str, tmp_path: Path, name: str):
    folder = shutil.copytree(saved, tmp_path / "step_000007")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        read_checkpoint_state(folder)


def test_a_truncated_manifest_is_refused_by_name(saved: str, tmp_path: Path):
    folder = shutil.copytree(saved, tmp_path / "step_000007")
    text = (folder / "state.json").read_text()
    (folder / "state.json").write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match=r"state\.json: not JSON .* truncated"):
        read_checkpoint_state(folder)


def test_a_foreign_format_is_refused_with_both_names(saved: str, tmp_path: Path):
    folder = shutil.copytree(saved, tmp_path / "step_000007")
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": "verl-2"}))
    with pytest.raises(CheckpointError, match="format is 'verl-2', expected 'skillreason-checkpoint-2'"):
        read_checkpoint_state(folder)


def test_a_manifest_that_is_no_object_is_refused(saved: str, tmp_path: Path):
    folder = shutil.copytree(saved, tmp_path / "step_000007")
    (folder / "state.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="format is 'list'"):
        read_checkpoint_state(folder)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"no state\.json; expected a checkpoint folder"):
        read_checkpoint_state(tmp_path)


def test_the_first_format_is_refused_by_name(saved: str, tmp_path: Path):
    folder = Path(shutil.copytree(saved, tmp_path / "step_000007"))
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, "format": "skillreason-checkpoint-1"}))
    with pytest.raises(
        CheckpointError, match="format is 'skillreason-checkpoint-1', expected 'skillreason-checkpoint-2'"
    ):
        read_checkpoint_state(folder)


def test_the_weights_of_another_model_are_refused(saved: str, tmp_path: Path):
    shape = TinyConfig(vocab_size=280, hidden_size=16, intermediate_size=24, num_heads=2, num_key_value_heads=1)
    engine = fresh(create_tiny(["a b"], tmp_path / "other", shape))
    with pytest.raises(CheckpointError, match=r"step_000007: does not fit this run: weight .* shape"):
        load_checkpoint(saved, engine)


def test_the_state_of_another_optimizer_is_refused_before_anything_is_loaded(saved: str, tiny_folder: Path):
    engine = fresh(tiny_folder, "adafactor")
    before = {name: value.clone() for name, value in engine.backbone.state().items()}
    with pytest.raises(CheckpointError, match="written by AdamW, this run uses Adafactor"):
        load_checkpoint(saved, engine)
    assert all(torch.equal(engine.backbone.state()[name], value) for name, value in before.items())


def test_nothing_half_written_stays_when_saving_raises(tiny_folder: Path, tmp_path: Path, monkeypatch):
    engine = fresh(tiny_folder)
    save_checkpoint(tmp_path, 1, engine, {})

    def full_disk(*args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full_disk)
    with pytest.raises(CheckpointWriteError, match=r"step_000002 could not be written: .*No space left"):
        save_checkpoint(tmp_path, 2, engine, {}, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning(tiny_folder: Path, tmp_path: Path, monkeypatch, caplog):
    def forbidden(folder: str, marker: str) -> None:
        raise PermissionError(f"{folder}: operation not permitted")

    engine = fresh(tiny_folder)
    save_checkpoint(tmp_path, 1, engine, {})
    monkeypatch.setattr(checkpoint, "remove_folder", forbidden)
    save_checkpoint(tmp_path, 2, engine, {}, keep=1)
    assert [Path(p).name for p in list_checkpoints(tmp_path)] == ["step_000001", "step_000002"]
    assert "step_000001: operation not permitted" in caplog.text


def test_saving_the_same_step_again_replaces_it(tiny_folder: Path, tmp_path: Path):
    engine = fresh(tiny_folder)
    save_checkpoint(tmp_path, 1, engine, {"x": 1})
    save_checkpoint(tmp_path, 1, engine, {"x": 2})
    assert read_checkpoint_state(tmp_path / "step_000001")["progress"] == {"x": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_weights_that_are_not_finite_are_not_written(tiny_folder: Path, tmp_path: Path):
    engine = fresh(tiny_folder)
    with torch.no_grad():
        engine.backbone.model.base_model.norm.weight[3] = float("inf")
    with pytest.raises(FloatingPointError, match=r"weight model\.norm\.weight is not finite after update 4"):
        save_checkpoint(tmp_path, 4, engine, {})
    assert list(tmp_path.iterdir()) == []


# -- what the files hold ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("adamw", {"step", "exp_avg", "exp_avg_sq"}),
        ("adafactor", {"step", "RMS", "exp_avg_sq_row", "exp_avg_sq_col"}),
    ],
)
def test_the_optimizers_state_lies_by_parameter_in_whole_tensors(tiny_folder: Path, tmp_path: Path, name: str, keys):
    engine = fresh(tiny_folder, name)
    train(engine, 2)
    state = load_file(Path(save_checkpoint(tmp_path, 2, engine, {})) / "optimizer.safetensors")
    weight = "model.layers.0.mlp.up_proj.weight"  # 64 x 32
    found = {key.removeprefix(f"{weight}/"): value for key, value in state.items() if key.startswith(weight)}
    assert found.keys() == keys
    assert found["step"].item() == 2
    shapes = {"exp_avg": (64, 32), "exp_avg_sq": (64, 32), "exp_avg_sq_row": (64,), "exp_avg_sq_col": (32,)}
    assert all(value.shape == shapes.get(key, ()) for key, value in found.items())
    assert {key.rpartition("/")[0] for key in state} == engine.shapes.keys()


def test_weights_are_float32_by_transformers_names(saved: str, tiny_folder: Path):
    weights = load_file(Path(saved) / "model.safetensors")
    assert weights.keys() == Backbone.load(tiny_folder).state().keys()
    assert {value.dtype for value in weights.values()} == {torch.float32}


# -- other file systems -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"memory://{tmp_path.name}/checkpoints" if request.param == "memory" else f"file://{tmp_path}/checkpoints"
    if request.param == "memory":
        MemoryFileSystem.store.clear()


def test_a_checkpoint_at_a_url_comes_back(tiny_folder: Path, url: str):
    engine = fresh(tiny_folder)
    train(engine, 1)
    path = save_checkpoint(url, 3, engine, {"epoch": 1})
    assert path == f"{url}/step_000003"
    other = fresh(tiny_folder)
    assert load_checkpoint(path, other) == {"epoch": 1, "step": 3}
    assert all(torch.equal(value, dict(other.full_parameters())[name]) for name, value in engine.full_parameters())


def test_checkpoints_at_a_url_are_listed_and_only_the_newest_kept(tiny_folder: Path, url: str):
    assert list_checkpoints(url) == []
    engine = fresh(tiny_folder)
    for step in (5, 10, 10, 15):
        save_checkpoint(url, step, engine, {"at": step}, keep=2)
    assert list_checkpoints(url) == [f"{url}/step_000010", f"{url}/step_000015"]
    assert read_checkpoint_state(list_checkpoints(url)[0])["progress"] == {"at": 10}
    files, root = url_to_fs(url)
    assert {Path(str(p)).name for p in files.ls(root, detail=False)} == {"step_000010", "step_000015"}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "rng.pt"])
def test_a_truncated_or_missing_file_at_a_url_is_refused_by_name(tiny_folder: Path, url: str, name: str):
    path = save_checkpoint(url, 3, fresh(tiny_folder), {})
    files, root = url_to_fs(f"{path}/{name}")
    content = files.cat_file(root)
    files.pipe_file(root, content[:-1])
    with pytest.raises(CheckpointError, match=rf"{name}: {len(content) - 1} bytes, {len(content)} were written"):
        load_checkpoint(path, fresh(tiny_folder))
    files.rm_file(root)
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        load_checkpoint(path, fresh(tiny_folder))


def test_the_scratch_disk_holds_one_file_at_a_time(tiny_folder: Path, tmp_path: Path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    put, held = MemoryFileSystem.put_file, []

    def watched(self, source: str, target: str, **options: Any) -> None:
        held.append([path.name for path in scratch.rglob("*") if path.is_file()])
        put(self, source, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", watched)
    save_checkpoint(f"memory://{tmp_path.name}", 1, fresh(tiny_folder), {})
    assert held == [["model.safetensors"], ["optimizer.safetensors"], ["rng.pt"], ["state.json"]]
    assert list(scratch.iterdir()) == []
    MemoryFileSystem.store.clear()


@pytest.mark.parametrize("broken", ["model.safetensors", "rng.pt", "state.json"])
def test_an_upload_that_breaks_off_leaves_no_checkpoint_behind(tiny_folder: Path, monkeypatch, broken: str):
    url = "memory://broken/checkpoints"
    engine = fresh(tiny_folder)
    save_checkpoint(url, 1, engine, {"x": 1})
    put = MemoryFileSystem.put_file

    def failing(self, source: str, target: str, **options: Any) -> None:
        if target.endswith(broken):
            raise OSError("connection lost")
        put(self, source, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", failing)
    for step in (1, 2):  # the first is overwritten, and must not be taken for whole either
        with pytest.raises(CheckpointWriteError, match="connection lost"):
            save_checkpoint(url, step, engine, {"x": 2})
    assert list_checkpoints(url) == []
    assert MemoryFileSystem.store == {}  # what had been uploaded is gone too
