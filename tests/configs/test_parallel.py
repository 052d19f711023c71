"""Strategies and the optimizers that they can run."""

from __future__ import annotations

import pytest

from configs.parallel import optimizer_conflict, resolve_strategy
from configs.schema import OptimizerConfig, ParallelConfig


@pytest.mark.parametrize(
    ("strategy", "workers", "really", "expected"),
    [
        ("auto", 1, None, "single"),
        ("auto", 4, None, "fsdp2"),
        ("auto", 4, 1, "single"),  # an elastic run that has lost three workers
        ("auto", 1, 2, "fsdp2"),
        ("deepspeed", 1, None, "deepspeed"),
        ("single", 1, None, "single"),
    ],
)
def test_auto_is_single_for_one_worker_and_the_default_for_several(strategy, workers, really, expected):
    parallel = ParallelConfig(strategy=strategy, workers=workers)
    assert resolve_strategy(parallel, "fsdp2", really) == expected


@pytest.mark.parametrize(("strategy", "stage"), [("single", 2), ("deepspeed", 0)])
def test_adafactor_runs_where_every_process_has_whole_matrices(strategy: str, stage: int):
    assert optimizer_conflict(OptimizerConfig(name="adafactor"), strategy, stage) == ""


@pytest.mark.parametrize(("strategy", "stage"), [("deepspeed", 1), ("deepspeed", 3), ("fsdp2", 0)])
def test_adamw_runs_everywhere_and_adafactor_on_shards_is_refused_by_both_keys(strategy: str, stage: int):
    assert optimizer_conflict(OptimizerConfig(name="adamw"), strategy, stage) == ""
    message = optimizer_conflict(OptimizerConfig(name="adafactor"), strategy, stage, "actor.optim", "actor.parallel")
    assert message.startswith(f"actor.optim.name is 'adafactor' and actor.parallel.strategy is '{strategy}'")
    assert (f"actor.parallel.zero_stage {stage}" in message) is (strategy == "deepspeed")
    assert "expected actor.optim.name=adamw" in message
