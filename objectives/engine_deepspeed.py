"""DeepSpeed ZeRO 1-3 behind the engine interface: float32 shards, and any number of backward passes before an update."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from configs.schema import OptimizerConfig
from models.backbone import Backbone
from objectives.collectives import Collectives, ensure_process_group
from objectives.engine import Engine, StateValue
from objectives.optimizers import build_optimizer

REDUCE_BUCKET = 50_000_000
"""Gradients reduced at once, in elements: 200 MB; DeepSpeed's default would hold 2 GB of float32."""
PERSISTENT_ELEMENTS = 100_000
"""Weights of at most this many elements (norms, biases) stay whole on every rank under ZeRO-3."""


class DeepSpeedEngine(Engine):
    """A ZeRO engine that leaves it to the caller when to update.

    DeepSpeed's own counting wants one backward pass for each forward pass and a fixed number of them; a gradient cache has
    neither, and a parameter that gets gradients twice in one counted pass fails with "Gradient computed twice for this
    partition". Here ``managed_gradient_accumulation`` is off: every backward pass adds to the shards (ZeRO-1: to the local
    gradients), and ``step`` alone ends an update.
    """

    # Stage 3 gathers weights in every forward pass, 2 and 3 reduce gradients in every backward pass. Stage 1 reduces in step, but
    # only what has a gradient: a rank without a pass of its own would leave out what the others reduce.
    needs_equal_passes = True

    def __init__(self, backbone: Backbone, optim: OptimizerConfig | None, collectives: Collectives, stage: int):
        super().__init__(backbone, collectives)
        ensure_process_group(backbone.device)
        self._stage = stage
        self._parameters = dict(backbone.model.named_parameters())
        optimizer = None
        if optim is None:
            backbone.requires_grad_(False)
        else:
            optimizer = build_optimizer(self._parameters.values(), optim)
        deepspeed = _import_deepspeed(backbone.device)
        index = backbone.device.index or 0
        os.environ.setdefault("LOCAL_RANK", str(index))  # read by DeepSpeed, which puts the model on device_rank
        self._engine, self._zero, _, _ = deepspeed.initialize(
            args=SimpleNamespace(device_rank=index),
            model=backbone,
            optimizer=optimizer,
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": 1,  # of no consequence: DeepSpeed sees no data loader of ours
                "gradient_accumulation_steps": 1,
                "managed_gradient_accumulation": False,
                "zero_allow_untested_optimizer": True,
                "steps_per_print": None,
                "zero_optimization": {
                    "stage": stage,
                    "overlap_comm": False,
                    "reduce_bucket_size": REDUCE_BUCKET,
                    "stage3_param_persistence_threshold": PERSISTENT_ELEMENTS,
                },
            },
        )
        self.optimizer = optimizer
        self._forwarded = False

    def _forward(self, face: str, *args: Any) -> Any:
        self._forwarded = self._forwarded or torch.is_grad_enabled()
        return self._engine(face, *args)

    # -- training ---------------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor) -> None:
        if self._stage == 3 and not self._forwarded:
            # its gradients would overwrite those of the backward pass before it
            raise RuntimeError("under ZeRO-3 each backward pass needs a forward pass of its own since the last one")
        self._forwarded = False
        # DeepSpeed averages over the ranks; losses are normalized for all of them already
        self._engine.backward(loss * self.collectives.size)

    def step(self, clip_grad: float) -> float:
        self._zero.clip_grad = clip_grad
        self._engine.step()
        applied = self._engine.was_step_applied()
        norm = float(self._engine.get_global_grad_norm())
        self.zero_grad()
        if not applied:
            raise FloatingPointError(f"the gradient norm is {norm}; the weights were left as they are")
        return norm

    def zero_grad(self) -> None:
        self._zero.zero_grad()
        if self._stage == 3:
            # The first backward pass of an update overwrites the shards that it reaches and no others: a parameter that only a
            # later pass reaches (an untied head) would add to its gradient of the last update.
            self._zero.grad_partitions_flat_buffer.zero_()
            self._zero.averaged_gradients = {}
            return
        for group in range(len(self._zero.bit16_groups)):
            self._zero.averaged_gradients[group] = None
            self._zero.all_grad_tensors[group] = None

    # -- weights and optimizer state as a whole ---------------------------------------------------------------------------

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._parameters.items():
            with self._gathered(parameter):
                yield name, parameter.detach()

    def load_parameter(self, name: str, value: torch.Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

        parameter = self._parameters[name]
        value = value.to(self.device, torch.float32)
        with torch.no_grad(), self._gathered(parameter, modified=True):
            parameter.copy_(value)
        if self.optimizer is None:
            return
        if self._stage == 3:
            safe_set_local_fp32_param(parameter, self._shard(parameter, value))
        else:
            safe_set_full_fp32_param(parameter, value)

    def full_optimizer_state(self) -> Iterator[tuple[str, dict[str, StateValue]]]:
        from deepspeed.utils import safe_get_full_optimizer_state

        if self.optimizer is None or not self.optimizer.state.get(self._flat_shards()[0]):
            return
        sample = self.optimizer.state[self._flat_shards()[0]]
        for name, parameter in self._parameters.items():
            state: dict[str, Any] = {}
            for key, value in sample.items():
                state[key] = safe_get_full_optimizer_state(parameter, key) if _is_sharded(value) else value
            yield name, state

    def load_optimizer_state(self, name: str, state: Mapping[str, StateValue]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        assert self.optimizer is not None
        for flat in self._flat_shards():
            own = self.optimizer.state[flat]
            for key, value in state.items():
                if not _is_sharded(value):
                    own[key] = value.clone() if isinstance(value, torch.Tensor) else value
                elif key not in own:  # no update has been made that would have created it
                    own[key] = torch.zeros_like(flat)
        if self._stage < 3:
            self._zero._lazy_init_hp_params_optimizer_state()  # ties each parameter to its piece of the flat state
        parameter = self._parameters[name]
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and _is_sharded(value):
                if self._stage == 3:
                    safe_set_local_optimizer_state(parameter, self._shard(parameter, value), key)
                else:
                    safe_set_full_optimizer_state(parameter, value, key)

    def _flat_shards(self) -> list[torch.Tensor]:
        """This rank's flat pieces of the master weights, which the torch optimizer's state is kept by."""
        if self._stage == 3:
            return self._zero.fp32_partitioned_groups_flat
        return self._zero.single_partition_of_fp32_groups

    def _gathered(self, parameter: torch.nn.Parameter, modified: bool = False) -> Any:
        """Within it the parameter is whole; where it is modified, rank 0's values count."""
        import deepspeed

        return deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=0 if modified else None, enabled=self._stage == 3
        )

    def _shard(self, parameter: Any, value: torch.Tensor) -> torch.Tensor:
        """This rank's piece of a whole tensor; the last ranks' pieces are padded with zeros."""
        length = parameter.ds_tensor.numel()
        piece = value.flatten()[self.collectives.rank * length : (self.collectives.rank + 1) * length]
        return torch.nn.functional.pad(piece, (0, length - len(piece)))


def _is_sharded(value: StateValue) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _import_deepspeed(device: torch.device) -> Any:
    """DeepSpeed, which decides at import what device it computes on."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    import deepspeed
    from deepspeed import ops

    # DeepSpeed calls torch's collectives by their old names, several times a pass
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled at start, for inference on CPUs alone
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    return deepspeed
