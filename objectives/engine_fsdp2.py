"""PyTorch's FSDP2 behind the engine interface: every parameter is a float32 DTensor, sharded over all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from configs.schema import OptimizerConfig
from models.backbone import Backbone
from objectives.collectives import Collectives, ensure_process_group
from objectives.engine import Engine, StateValue
from objectives.optimizers import build_optimizer, check_norm


class Fsdp2Engine(Engine):
    """Weights, gradients and optimizer state sharded; transformer layers are gathered one at a time, the rest at once."""

    needs_equal_passes = True

    def __init__(self, backbone: Backbone, optim: OptimizerConfig | None, collectives: Collectives):
        super().__init__(backbone, collectives)
        ensure_process_group(backbone.device)
        if optim is None:
            backbone.requires_grad_(False)
        mesh = init_device_mesh(backbone.device.type, (collectives.size,))
        for module in (*_layers(backbone), backbone):
            fully_shard(module, mesh=mesh)
        self._sharded = [module for module in backbone.modules() if isinstance(module, FSDPModule)]
        for module in self._sharded:  # add gradients up: losses are normalized for all ranks already
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other kind
        self._parameters = dict(backbone.model.named_parameters())
        if optim is not None:
            self.optimizer = build_optimizer(self._parameters.values(), optim)

    def _forward(self, face: str, *args: Any) -> Any:
        return self.backbone(face, *args)

    # -- training ---------------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, clip_grad: float) -> float:
        assert self.optimizer is not None
        try:
            for parameter in self._parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            norm = torch.nn.utils.clip_grad_norm_(
                self._parameters.values(), clip_grad if clip_grad > 0 else float("inf")
            )
            norm = check_norm(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
            self.optimizer.step()
        finally:
            self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    # -- weights and optimizer state as a whole ---------------------------------------------------------------------------

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._parameters.items():
            yield name, parameter.detach().full_tensor()

    def load_parameter(self, name: str, value: torch.Tensor) -> None:
        for module in self._sharded:
            module.reshard()  # a forward pass without a backward leaves the outermost weights gathered, and they would be used on
        parameter = self._parameters[name]
        with torch.no_grad():
            parameter.copy_(_like(parameter, value))

    def full_optimizer_state(self) -> Iterator[tuple[str, dict[str, StateValue]]]:
        if self.optimizer is not None:
            for name, parameter in self._parameters.items():
                if state := self.optimizer.state.get(parameter):
                    yield name, {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}

    def load_optimizer_state(self, name: str, state: Mapping[str, StateValue]) -> None:
        assert self.optimizer is not None
        parameter = self._parameters[name]
        own: dict[str, StateValue] = {}
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                value = _like(parameter, value) if value.dim() else value.cpu().clone()
            own[key] = value
        self.optimizer.state[parameter] = own


def _layers(backbone: Backbone) -> list[torch.nn.Module]:
    """The transformer's layers: the modules of the classes that transformers must not split."""
    names = set(backbone.model._no_split_modules or ())
    return [module for module in backbone.model.modules() if type(module).__name__ in names]


def _like(parameter: torch.nn.Parameter, value: torch.Tensor) -> DTensor:
    """A whole tensor, the same on every rank, sharded like a parameter; each rank cuts out its own piece."""
    assert isinstance(parameter, DTensor)
    value = value.to(parameter.device, torch.float32)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
