"""Checkpoints that any strategy and any number of processes can load: complete, atomic, kept N deep, on any file system."""

from __future__ import annotations

import contextlib
import json
import logging
import posixpath
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from fsspec.core import url_to_fs
from safetensors import safe_open
from safetensors.torch import save_file

from models.backbone import check_weights
from models.remote_folders import local_copy, published_folder, remove_folder
from objectives.collectives import Collectives
from objectives.engine import Engine, StateValue
from objectives.random_states import random_states, restore_random_states

FORMAT = "skillreason-checkpoint-2"
_NAME = re.compile(r"step_(\d+)$")
_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong."""


class CheckpointWriteError(OSError):
    """A checkpoint that could not be written, a full disk or a service that is away; the weights are as they were."""


def save_checkpoint(folder: str | Path, step: int, engine: Engine, progress: dict[str, Any], keep: int = 2) -> str:
    """Write ``folder/step_<step>`` and drop all but the newest ``keep``. Collective; rank 0 writes.

    It holds the float32 weights and the optimizer state of every parameter as whole tensors, random states and ``progress``
    (JSON: stage, data position, W&B run id). The manifest ``state.json`` lists every file with its size. A local folder appears
    only when complete; elsewhere the manifest is written last, and what has none is no checkpoint.

    Args:
        folder: a local path or any URL that fsspec knows.

    Raises:
        FloatingPointError: a weight is not finite; on every rank, and nothing is written.
        CheckpointWriteError: rank 0 could not write; on every rank.
    """
    start = time.perf_counter()
    target = posixpath.join(str(folder), f"step_{step:06d}")
    ranks = engine.collectives
    writes = ranks.rank == 0
    weights: dict[str, torch.Tensor] = {}
    bad = ""
    for name, weight in engine.full_parameters():
        if writes:
            bad = bad or ("" if torch.isfinite(weight).all() else name)
            weights[name] = weight.to("cpu", copy=True).contiguous()
    bad = ranks.broadcast(bad)
    if bad:
        raise FloatingPointError(f"weight {bad} is not finite after update {step}; no checkpoint was written")
    moments: dict[str, torch.Tensor] = {}
    for name, state in engine.full_optimizer_state():
        if writes:
            moments |= {f"{name}/{key}": _as_tensor(value) for key, value in state.items()}

    def write() -> None:
        try:
            with published_folder(target, marker="state.json") as published:
                published.add("model.safetensors", lambda file: save_file(weights, file))
                published.add("optimizer.safetensors", lambda file: save_file(moments, file))
                published.add("rng.pt", lambda file: torch.save(random_states(), file))
                manifest = {"format": FORMAT, "step": step, "optimizer": engine.optimizer_name}
                text = json.dumps({**manifest, "files": published.sizes, "progress": progress}, indent=1)
                published.add("state.json", lambda file: file.write_text(text, encoding="utf-8"))
        except Exception as error:
            raise CheckpointWriteError(f"{target} could not be written: {error!r}") from error
        _remove_old(folder, keep)

    _on_rank_zero(ranks, write, CheckpointWriteError)
    if writes:
        logger.info("checkpoint %s written in %.1f s", target, time.perf_counter() - start)
    return target


def _remove_old(folder: str | Path, keep: int) -> None:
    """Drop all but the newest ``keep``; one that stays costs space, not the run."""
    try:
        for old in list_checkpoints(folder)[:-keep] if keep > 0 else []:
            remove_folder(old, marker="state.json")
    except Exception as error:
        logger.warning("an old checkpoint in %s could not be deleted, and stays: %r", folder, error)


def list_checkpoints(folder: str | Path) -> list[str]:
    """Complete checkpoints of a run, oldest first."""
    files, root = url_to_fs(str(folder))
    files.invalidate_cache()
    if not files.isdir(root):
        return []
    names = {posixpath.basename(str(path).rstrip("/")) for path in files.ls(root, detail=False)}
    found = sorted((name for name in names if _NAME.match(name)), key=lambda name: int(name.split("_")[1]))
    return [posixpath.join(str(folder), n) for n in found if files.isfile(posixpath.join(root, n, "state.json"))]


def checkpoint_step(path: str | Path) -> int:
    """The update after which a checkpoint was written, by its name."""
    return int(posixpath.basename(str(path)).split("_")[1])


def read_checkpoint_state(path: str | Path) -> dict[str, Any]:
    """The checked manifest of a checkpoint.

    Raises:
        CheckpointError: no such folder, another format, or a file that is missing or has another size than recorded. Where an
            older checkpoint beside it is whole, the message names it.
    """
    try:
        return _read_state(path)
    except CheckpointError as error:
        older = _older_whole_one(str(path))
        if older is None:
            raise
        raise CheckpointError(f"{error}. Delete {path} to go on from {older}") from error


def _older_whole_one(path: str) -> str | None:
    folder, name = posixpath.split(path)
    others = list_checkpoints(folder) if _NAME.match(name) else []
    for other in reversed([other for other in others if checkpoint_step(other) < checkpoint_step(path)]):
        with contextlib.suppress(CheckpointError):
            _read_state(other)
            return other
    return None


def _read_state(path: str | Path) -> dict[str, Any]:
    files, root = url_to_fs(str(path))
    manifest = f"{path}/state.json"
    try:
        state = json.loads(files.cat_file(posixpath.join(root, "state.json")))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path}: no state.json; expected a checkpoint folder such as checkpoints/step_000100"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{manifest}: not JSON ({error}); the checkpoint is truncated") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(
            f"{manifest}: format is {found!r}, expected {FORMAT!r}: written by another program or version"
        )
    if not isinstance(state.get("files"), dict) or "progress" not in state or "step" not in state:
        raise CheckpointError(f"{manifest}: without files, step or progress; the checkpoint is incomplete")
    for name, size in state["files"].items():
        file = posixpath.join(root, name)
        if not files.isfile(file):
            raise CheckpointError(f"{path}/{name}: missing; the checkpoint is incomplete")
        if files.size(file) != size:
            raise CheckpointError(
                f"{path}/{name}: {files.size(file)} bytes, {size} were written; the file is truncated"
            )
    return state


def load_checkpoint(path: str | Path, engine: Engine, restore_rng: bool = True) -> dict[str, Any]:
    """Restore weights, and the optimizer's state where the engine has one, in place. Collective; rank 0 reads.

    Settings such as the learning rate are no state: the configuration of this run counts.

    Returns:
        ``progress`` with ``step``.

    Raises:
        CheckpointError: see :func:`read_checkpoint_state`; or weights or optimizer of another model. On every rank, and before
            anything is changed.
    """
    start = time.perf_counter()
    ranks = engine.collectives
    with contextlib.ExitStack() as stack:
        opened: list[Any] = []  # stays empty on every rank but 0

        def check() -> tuple[dict[str, Any], _Layout, _Layout, Any]:
            state = read_checkpoint_state(path)
            if engine.optimizer is not None and state.get("optimizer") != engine.optimizer_name:
                # one optimizer's state would be set in another, whose first step would fail on a missing key
                raise CheckpointError(f"{path}: written by {state['optimizer']}, this run uses {engine.optimizer_name}")
            local = stack.enter_context(local_copy(str(path)))
            try:
                for name in ("model.safetensors", "optimizer.safetensors"):
                    opened.append(stack.enter_context(safe_open(local / name, framework="pt")))
                weights, moments = (_layout(file) for file in opened)
                check_weights(engine.shapes, {name: shape for name, (shape, _) in weights.items()})
                return state, weights, moments, torch.load(local / "rng.pt", weights_only=True)
            except Exception as error:
                raise CheckpointError(f"{path}: does not fit this run: {error}") from error

        state, weights, moments, rng = _on_rank_zero(ranks, check)

        def receive(number: int, layout: _Layout, name: str) -> torch.Tensor:
            shape, dtype = layout[name]
            if opened:
                return ranks.broadcast_tensor(opened[number].get_tensor(name).to(engine.device))
            return ranks.broadcast_tensor(torch.empty(shape, dtype=dtype, device=engine.device))

        for name in engine.shapes:
            engine.load_parameter(name, receive(0, weights, name))
            if engine.optimizer is not None:
                keys = [key for key in moments if key.rpartition("/")[0] == name]
                values = {key.rpartition("/")[2]: _as_value(receive(1, moments, key)) for key in keys}
                if values:
                    engine.load_optimizer_state(name, values)
    if restore_rng:
        restore_random_states(rng)
    if ranks.rank == 0:
        logger.info("checkpoint %s loaded in %.1f s", path, time.perf_counter() - start)
    return {**state["progress"], "step": state["step"]}


_DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
_Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]


def _layout(file: Any) -> _Layout:
    """Shape and dtype of every tensor of an open safetensors file."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    return {name: (tuple(s.get_shape()), _DTYPES[s.get_dtype()]) for name, s in slices.items()}


def _as_tensor(value: StateValue) -> torch.Tensor:
    """Python numbers become int64 and float64 scalars, which no optimizer keeps as tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous() if value.dim() else value.detach().cpu().clone()
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


def _as_value(tensor: torch.Tensor) -> StateValue:
    if tensor.dim():
        return tensor
    return tensor.item() if tensor.dtype in (torch.int64, torch.float64) else tensor.cpu()


def _on_rank_zero(ranks: Collectives, work: Callable[[], _T], elsewhere: type[Exception] = CheckpointError) -> _T:
    """What ``work`` returns on rank 0, on every rank; where it raises, every rank does, the others ``elsewhere``."""
    result, failure = None, None
    if ranks.rank == 0:
        try:
            result = work()
        except Exception as error:
            failure = error
    message, result = ranks.broadcast((None if failure is None else str(failure), result))
    if failure is not None:
        raise failure
    if message is not None:
        raise elsewhere(message)
    return result  # type: ignore[return-value]
