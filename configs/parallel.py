"""Which strategy trains a model on several processes, and which optimizers each of them can run."""

from __future__ import annotations

from configs.schema import OptimizerConfig, ParallelConfig


def resolve_strategy(parallel: ParallelConfig, default: str, workers: int | None = None) -> str:
    """``single``, ``deepspeed`` or ``fsdp2``, where ``auto`` is ``single`` for one worker and ``default`` for several.

    Args:
        workers: processes that there really are, where an elastic run has another number than ``parallel.workers``.
    """
    if parallel.strategy != "auto":
        return parallel.strategy
    return default if (workers or parallel.workers) > 1 else "single"


def optimizer_conflict(
    optim: OptimizerConfig, strategy: str, zero_stage: int, optim_key: str = "optim", parallel_key: str = "parallel"
) -> str:
    """Why this optimizer cannot run with this strategy, naming both keys; empty where it can.

    Adafactor keeps row and column means of whole matrices. ZeRO 1-3 hands optimizers flat shards, FSDP2 DTensors that
    transformers' Adafactor does not take: it runs in one process and on replicas alone.

    Args:
        strategy: a resolved one, see :func:`resolve_strategy`.
        optim_key, parallel_key: the sections' names in the configuration.
    """
    replicas = strategy == "single" or (strategy == "deepspeed" and zero_stage == 0)
    if optim.name != "adafactor" or replicas:
        return ""
    given = f"{parallel_key}.strategy is {strategy!r}"
    if strategy == "deepspeed":
        given += f" with {parallel_key}.zero_stage {zero_stage}"
    return (
        f"{optim_key}.name is 'adafactor' and {given}, which shards the optimizer's state; expected {optim_key}.name=adamw, or "
        f"{parallel_key}.strategy=deepspeed with {parallel_key}.zero_stage=0, or one worker"
    )
