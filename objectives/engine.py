"""One model, its optimizer and the processes that train it together, whatever the strategy that shards them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from configs.parallel import optimizer_conflict, resolve_strategy
from configs.schema import OptimizerConfig, ParallelConfig
from models.backbone import Backbone
from models.batching import pad_right
from objectives.collectives import Collectives, SingleProcess, TorchCollectives

StateValue = torch.Tensor | int | float


class Engine(ABC):
    """What a training loop sees of a model, in every process of the group that trains it.

    Losses are normalized for the whole batch of all processes. Gradients add up over calls of :meth:`backward` and over ranks,
    and a parameter that no loss has reached has gradient zero, so an update does not depend on the strategy or on the number of
    processes. The model stays in evaluation mode.

    Attributes:
        backbone: the model; shards of it under ZeRO-3 and FSDP2, so its faces are called through the engine alone.
        collectives: what connects the ranks.
        shapes: the full shape of every parameter by transformers' name, tied ones once.
        optimizer: the torch optimizer of this rank's share; none for a frozen model.
        needs_equal_passes: every rank must run the same number of forward and of backward passes; where a rank has nothing left
            to do it calls :meth:`dummy_pass`.
    """

    needs_equal_passes = False
    optimizer: torch.optim.Optimizer | None = None

    def __init__(self, backbone: Backbone, collectives: Collectives):
        self.backbone = backbone.eval()
        self.collectives = collectives
        self.shapes = {name: tuple(p.shape) for name, p in backbone.model.named_parameters()}

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def optimizer_name(self) -> str:
        """Class of the optimizer; empty for a frozen model."""
        return type(self.optimizer).__name__ if self.optimizer is not None else ""

    # -- forward ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _forward(self, face: str, *args: Any) -> Any:
        """Call a face of the backbone through whatever wraps it."""

    def embed(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """See :meth:`Backbone.embed`."""
        return self._forward("embed", input_ids, attention_mask)

    def embed_sequences(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """See :meth:`Backbone.embed_sequences`."""
        return self._forward("embed_sequences", sequences)

    def pair_scores(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """See :meth:`models.reranker.Reranker.pair_scores`; the backbone must be such a one."""
        return self._forward("pair_scores", input_ids, attention_mask)

    def response_log_probs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See :meth:`Backbone.response_log_probs`."""
        return self._forward("response_log_probs", prompts, responses, temperature)

    def response_log_probs_compared(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], temperature: float, other: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """See :meth:`Backbone.response_log_probs_compared`."""
        return self._forward("response_log_probs_compared", prompts, responses, temperature, other)

    def dummy_pass(self, face: str, *, backward: bool) -> None:
        """Take part in the others' pass without adding to it; nothing happens where ranks need not run equal passes.

        Args:
            face: ``embed`` or ``response_log_probs``, as on the other ranks.
            backward: also run the backward pass, with a loss of zero.
        """
        if not self.needs_equal_passes:
            return
        token = self.backbone.tokenizer.pooling_token_id
        with torch.set_grad_enabled(backward):
            if face == "embed":
                ids, mask = pad_right([[token]], self.backbone.tokenizer.pad_id, self.device)
                out = self.embed(ids, mask)
            else:
                out, _, _ = self.response_log_probs([[token]], [[token]])
        if backward:
            self.backward(out[:0].sum())  # zero, and zero gradients, whatever the weights are

    def encode(
        self, sequences: Sequence[Sequence[int]], token_budget: int, progress: Callable[[int], Any] | None = None
    ) -> torch.Tensor:
        """Embed token sequences without gradients, in their order: ``[N, d]`` on the CPU of every rank. Collective.

        Args:
            progress: called with the number of sequences of each micro-batch of this rank.
        """
        plan = self.backbone.plan(sequences, token_budget, self.collectives.size)
        parts = [torch.empty(0, self.backbone.hidden_size, device=self.device)]
        with torch.no_grad():
            for rows in plan[self.collectives.rank]:
                if not rows:
                    self.dummy_pass("embed", backward=False)
                    continue
                parts.append(self.embed_sequences([sequences[r] for r in rows]))
                if progress is not None:
                    progress(len(rows))
        out = torch.empty(len(sequences), self.backbone.hidden_size)
        out[[row for passes in plan for rows in passes for row in rows]] = self.collectives.gather_rows(
            torch.cat(parts)
        ).cpu()
        return out

    # -- training ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of ``loss``, this rank's part of the batch's loss."""

    @abstractmethod
    def step(self, clip_grad: float) -> float:
        """Clip the gradients' global norm to ``clip_grad`` (0: no clipping), update, and drop the gradients. Collective.

        Returns:
            The norm before clipping.

        Raises:
            FloatingPointError: on every rank, where the norm is not finite. The weights stay, the gradients are dropped.
        """

    @abstractmethod
    def zero_grad(self) -> None:
        """Drop the gradients. Collective."""

    def set_learning_rate(self, rate: float) -> None:
        """The learning rate of the updates to come."""
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    # -- weights and optimizer state as a whole ---------------------------------------------------------------------------

    @abstractmethod
    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter, whole and float32, by transformers' name, tied ones once, in the order of :attr:`shapes`.

        Collective: every rank exhausts it, and gets each tensor. One is gathered at a time. A tensor may be the parameter's own
        memory: copy what is kept.
        """

    @abstractmethod
    def load_parameter(self, name: str, value: torch.Tensor) -> None:
        """Overwrite a parameter with a whole tensor, the same on every rank. Collective."""

    @abstractmethod
    def full_optimizer_state(self) -> Iterator[tuple[str, dict[str, StateValue]]]:
        """The whole optimizer state of each parameter that has one; collective, as :meth:`full_parameters`."""

    @abstractmethod
    def load_optimizer_state(self, name: str, state: Mapping[str, StateValue]) -> None:
        """Set a parameter's optimizer state from whole tensors, the same on every rank. Collective."""

    def gather_backbone(self) -> Backbone | None:
        """A whole copy of the model on rank 0's CPU, None on the other ranks. Collective; what exports are written from."""
        copy = self.backbone.blank_copy() if self.collectives.rank == 0 else None
        for name, value in self.full_parameters():
            if copy is not None:
                copy.load_parameter(name, value)
        return copy


def build_engine(
    backbone: Backbone,
    optim: OptimizerConfig | None,
    parallel: ParallelConfig,
    *,
    default_strategy: str,
    optim_key: str = "optim",
    parallel_key: str = "parallel",
) -> Engine:
    """The engine of this process; every process of the default ``torch.distributed`` group calls it with the same model.

    Args:
        backbone: the whole model, on the device that it is to compute on.
        optim: None for a frozen model, which has forward passes alone.
        default_strategy: what ``parallel.strategy=auto`` means for several processes.
        optim_key, parallel_key: the sections' names in the configuration, for errors.

    Raises:
        ValueError: an optimizer that the strategy cannot run, or a strategy for one process in a group of several.
    """
    joined = dist.is_available() and dist.is_initialized()
    workers = dist.get_world_size() if joined else 1
    if parallel.workers > 1 and not joined:
        raise ValueError(
            f"{parallel_key}.workers is {parallel.workers}, and this process is in no torch.distributed group"
        )
    strategy = resolve_strategy(parallel, default_strategy, workers)
    if optim is not None:
        conflict = optimizer_conflict(optim, strategy, parallel.zero_stage, optim_key, parallel_key)
        if conflict:
            raise ValueError(conflict)
    if strategy == "single" and workers > 1:
        raise ValueError(
            f"{parallel_key}.strategy is 'single' in a group of {workers} processes; expected deepspeed or fsdp2"
        )
    collectives: Collectives = TorchCollectives(backbone.device) if workers > 1 else SingleProcess()
    if strategy == "fsdp2":
        from objectives.engine_fsdp2 import Fsdp2Engine

        return Fsdp2Engine(backbone, optim, collectives)
    # ZeRO shards optimizer state from stage 1, gradients from 2 and weights from 3: nothing is left of it at 0, or below 3 where
    # nothing is trained
    if strategy == "deepspeed" and (parallel.zero_stage == 3 or (parallel.zero_stage > 0 and optim is not None)):
        from objectives.engine_deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(backbone, optim, collectives, parallel.zero_stage)
    from objectives.engine_torch import ReplicaEngine

    return ReplicaEngine(backbone, optim, collectives)
