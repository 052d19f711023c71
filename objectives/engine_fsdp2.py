"""PyTorch's FSDP2 behind the engine interface: every parameter is a float32 DTensor, sharded over all ranks."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from configs.schema import OptimizerConfig
from models.backbone import Backbone
from objectives.collectives import Collectives, ensure_process_group
from objectives.engine_torch import TorchEngine


class Fsdp2Engine(TorchEngine):
    """Weights, gradients and optimizer state sharded; transformer layers are gathered one at a time, the rest at once."""

    needs_equal_passes = True

    def __init__(self, backbone: Backbone, optim: OptimizerConfig | None, collectives: Collectives):
        ensure_process_group(backbone.device)
        super().__init__(backbone, optim, collectives)

    def _shard(self) -> None:
        backbone = self.backbone
        mesh = init_device_mesh(backbone.device.type, (self.collectives.size,))
        for module in (*_layers(backbone), backbone):
            fully_shard(module, mesh=mesh)
        self._sharded = [module for module in backbone.modules() if isinstance(module, FSDPModule)]
        for module in self._sharded:  # add gradients up: losses are normalized for all ranks already
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other kind

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        return value.full_tensor() if isinstance(value, DTensor) else value

    def _part(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        return _like(parameter, value)

    def load_parameter(self, name: str, value: torch.Tensor) -> None:
        for module in self._sharded:
            module.reshard()  # a forward pass without a backward leaves the outermost weights gathered, and they would be used on
        parameter = self._parameters[name]
        with torch.no_grad():
            parameter.copy_(_like(parameter, value))


def _layers(backbone: Backbone) -> list[torch.nn.Module]:
    """The transformer's layers: the modules of the classes that transformers must not split."""
    names = set(backbone.model._no_split_modules or ())
    return [module for module in backbone.model.modules() if type(module).__name__ in names]


def _like(parameter: torch.nn.Parameter, value: torch.Tensor) -> DTensor:
    """A whole tensor, the same on every rank, sharded like a parameter; each rank cuts out its own piece."""
    assert isinstance(parameter, DTensor)
    value = value.to(parameter.device, torch.float32)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
