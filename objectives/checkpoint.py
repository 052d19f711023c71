"""Checkpoints: atomic, complete, kept N deep, and refused by name when truncated or foreign."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from models.backbone import Backbone
from models.folders import atomic_folder

FORMAT = "skillreason-checkpoint-1"
_NAME = re.compile(r"step_(\d+)$")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong."""


def save_checkpoint(
    folder: str | Path,
    step: int,
    backbone: Backbone,
    optimizer: torch.optim.Optimizer,
    progress: dict[str, Any],
    keep: int = 2,
) -> Path:
    """Write ``folder/step_<step>`` and drop all but the newest ``keep``.

    It holds the float32 weights, optimizer state, random states and ``progress`` (JSON: stage, data position, W&B run id).
    The folder appears only when complete; the manifest in ``state.json`` lists every file with its size.
    """
    target = Path(folder) / f"step_{step:06d}"
    for name, weight in backbone.state().items():
        if not torch.isfinite(weight).all():
            raise FloatingPointError(f"weight {name} is not finite after update {step}; no checkpoint was written")
    with atomic_folder(target) as scratch:
        save_file({k: v.contiguous().cpu() for k, v in backbone.state().items()}, scratch / "model.safetensors")
        torch.save(optimizer.state_dict(), scratch / "optimizer.pt")
        torch.save(_random_states(), scratch / "rng.pt")
        files = {p.name: p.stat().st_size for p in sorted(scratch.iterdir())}
        kind = type(optimizer).__name__
        state = {"format": FORMAT, "step": step, "optimizer": kind, "files": files, "progress": progress}
        (scratch / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    for old in list_checkpoints(folder)[:-keep] if keep > 0 else []:
        shutil.rmtree(old)
    return target


def list_checkpoints(folder: str | Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    root = Path(folder)
    if not root.is_dir():
        return []
    found = [p for p in root.iterdir() if _NAME.search(p.name) and (p / "state.json").is_file()]
    return sorted(found, key=lambda p: int(_NAME.search(p.name).group(1)))  # type: ignore[union-attr]


def read_checkpoint_state(path: str | Path) -> dict[str, Any]:
    """The checked manifest of a checkpoint.

    Raises:
        CheckpointError: no such folder, another format, or a file that is missing or has another size than recorded.
    """
    folder = Path(path)
    manifest = folder / "state.json"
    if not manifest.is_file():
        raise CheckpointError(f"{folder}: no state.json; expected a checkpoint folder such as checkpoints/step_000100")
    try:
        state = json.loads(manifest.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{manifest}: not JSON ({error}); the checkpoint is truncated") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(
            f"{manifest}: format is {found!r}, expected {FORMAT!r}: written by another program or version"
        )
    if not isinstance(state.get("files"), dict) or "progress" not in state or "step" not in state:
        raise CheckpointError(f"{manifest}: without files, step or progress; the checkpoint is incomplete")
    for name, size in state["files"].items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing; the checkpoint is incomplete")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file}: {file.stat().st_size} bytes, {size} were written; the file is truncated")
    return state


def load_checkpoint(
    path: str | Path,
    backbone: Backbone,
    optimizer: torch.optim.Optimizer | None = None,
    restore_rng: bool = True,
) -> dict[str, Any]:
    """Restore weights, and optimizer and random states where given, in place; return ``progress`` with ``step``.

    Raises:
        CheckpointError: see :func:`read_checkpoint_state`; or weights or optimizer of another model.
    """
    state = read_checkpoint_state(path)
    folder = Path(path)
    # torch would load one optimizer's state into another, and the first step would fail on a missing key
    if optimizer is not None and state.get("optimizer") != type(optimizer).__name__:
        raise CheckpointError(f"{folder}: written by {state['optimizer']}, this run uses {type(optimizer).__name__}")
    try:
        backbone.load_state(load_file(folder / "model.safetensors"))
        if optimizer is not None:
            wanted = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu"))
            for group, settings in zip(optimizer.param_groups, wanted, strict=True):
                group.update(settings)  # learning rate, decay, ...: the configuration of this run counts
    except Exception as error:
        raise CheckpointError(f"{folder}: does not fit this run: {error}") from error
    if restore_rng:
        _restore_random_states(torch.load(folder / "rng.pt", weights_only=True))
    return {**state["progress"], "step": state["step"]}


def _random_states() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]  # noqa: NPY002
    return {
        "torch": torch.random.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(numbers), gauss],
        "numpy": [
            str(name),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            has_gauss,
            cached,
        ],
    }


def _restore_random_states(states: dict[str, Any]) -> None:
    torch.random.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
