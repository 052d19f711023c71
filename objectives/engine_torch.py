"""The engines whose backward and optimizer are plain torch's: replicas here, FSDP2's shards on top of the same base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from configs.schema import OptimizerConfig
from models.backbone import Backbone
from objectives.collectives import Collectives, SingleProcess
from objectives.engine import Engine, StateValue
from objectives.optimizers import build_optimizer, clip_gradients


class TorchEngine(Engine):
    """What replicas and FSDP2 share: torch's own parameters, gradients and optimizer, of plain tensors or of DTensors."""

    def __init__(self, backbone: Backbone, optim: OptimizerConfig | None, collectives: Collectives):
        super().__init__(backbone, collectives)
        if optim is None:
            backbone.requires_grad_(False)
        self._shard()
        self._parameters = dict(backbone.model.named_parameters())
        if optim is not None:
            self.optimizer = build_optimizer(self._parameters.values(), optim)

    def _shard(self) -> None:
        """Replace the model's parameters by shards of them; replicas keep them whole."""

    def _sum_gradients(self) -> None:
        """Add up the ranks' gradients, where their backward passes have not."""

    def _whole(self, value: torch.Tensor) -> torch.Tensor:
        """A parameter, or a tensor of its optimizer state, as one tensor. Collective."""
        return value

    def _part(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> torch.Tensor:
        """This rank's part of a whole tensor that belongs to a parameter, as memory of its own."""
        return value.to(parameter.device, copy=True)

    def _forward(self, face: str, *args: Any) -> Any:
        return self.backbone(face, *args)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, clip_grad: float) -> float:
        assert self.optimizer is not None
        try:
            for parameter in self._parameters.values():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self._sum_gradients()
            norm = clip_gradients(self._parameters.values(), clip_grad)
            self.optimizer.step()
        finally:
            self.zero_grad()
        return norm

    def zero_grad(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._parameters.items():
            yield name, self._whole(parameter.detach())

    def load_parameter(self, name: str, value: torch.Tensor) -> None:
        self.backbone.load_parameter(name, value)

    def full_optimizer_state(self) -> Iterator[tuple[str, dict[str, StateValue]]]:
        if self.optimizer is not None:
            for name, parameter in self._parameters.items():
                if state := self.optimizer.state.get(parameter):
                    yield name, {k: self._whole(v) if isinstance(v, torch.Tensor) else v for k, v in state.items()}

    def load_optimizer_state(self, name: str, state: Mapping[str, StateValue]) -> None:
        assert self.optimizer is not None
        parameter = self._parameters[name]
        own: dict[str, StateValue] = {}
        for key, value in state.items():
            if isinstance(value, torch.Tensor):  # torch keeps counters on the CPU
                value = self._part(parameter, value) if value.dim() else value.cpu().clone()
            own[key] = value
        self.optimizer.state[parameter] = own


class ReplicaEngine(TorchEngine):
    """The whole model and optimizer in every process: a single one, or replicas that add up their gradients (ZeRO-0)."""

    def __init__(self, backbone: Backbone, optim: OptimizerConfig | None, collectives: Collectives | None = None):
        super().__init__(backbone, optim, collectives or SingleProcess())

    def _sum_gradients(self) -> None:
        if self.collectives.size == 1:
            return
        handles = [dist.all_reduce(p.grad, async_op=True) for p in self._parameters.values()]
        for handle in handles:
            if handle is not None:
                handle.wait()

    def gather_backbone(self) -> Backbone | None:
        return self.backbone if self.collectives.rank == 0 else None
