"""An engine in a single process: updates, state as a whole, and the combinations that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from configs.schema import OptimizerConfig, ParallelConfig
from models.backbone import Backbone
from objectives.engine import build_engine
from objectives.engine_torch import ReplicaEngine

SEQUENCES = [[5, 6, 7, 8, 0], [3, 0], [9, 8, 7, 0], [11, 0]]


@pytest.fixture
def engine(tiny_folder: Path) -> ReplicaEngine:
    return ReplicaEngine(Backbone.load(tiny_folder), OptimizerConfig(lr=1e-3))


def loss_of(engine: ReplicaEngine) -> torch.Tensor:
    return -engine.response_log_probs([[4, 5, 6]], [[7, 8, 1]])[0].sum()


def weights(engine: ReplicaEngine) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in engine.full_parameters()}


def test_an_update_is_clipping_then_torchs_adamw(engine: ReplicaEngine, tiny_folder: Path):
    other = Backbone.load(tiny_folder).eval()
    optimizer = torch.optim.AdamW(other.parameters(), lr=5e-4, betas=(0.9, 0.999), weight_decay=0.01)
    for _ in range(2):
        engine.backward(loss_of(engine))
        engine.set_learning_rate(5e-4)
        norm = engine.step(0.25)
        (-other.response_log_probs([[4, 5, 6]], [[7, 8, 1]])[0].sum()).backward()
        expected = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()
        assert norm == pytest.approx(float(expected), rel=1e-6)
    for name, value in engine.full_parameters():
        # ours is the fused one
        torch.testing.assert_close(value, other.model.get_parameter(name), rtol=2e-7, atol=1e-7)


def test_gradients_add_up_over_calls_until_the_update(engine: ReplicaEngine):
    engine.set_learning_rate(0.0)
    engine.backward(loss_of(engine))
    alone = engine.step(0.0)
    for _ in range(2):
        engine.backward(loss_of(engine))
    assert engine.step(0.0) == pytest.approx(2 * alone, rel=1e-5)


def test_the_model_is_in_evaluation_mode(tiny_folder: Path):
    engine = ReplicaEngine(Backbone.load(tiny_folder).train(), OptimizerConfig())
    assert not any(module.training for module in engine.backbone.modules())


def test_a_parameter_that_no_loss_has_reached_decays_like_one_with_gradient_zero(engine: ReplicaEngine):
    name = "model.layers.0.mlp.up_proj.weight"
    before = weights(engine)[name]
    engine.backward(engine.backbone.model.get_parameter("model.norm.weight").sum())
    engine.step(0.0)
    torch.testing.assert_close(weights(engine)[name], before * (1 - 1e-3 * 0.01))
    assert dict(engine.full_optimizer_state()).keys() == engine.shapes.keys()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_leaves_weights_and_drops_gradients(engine: ReplicaEngine, bad: float):
    before = weights(engine)
    engine.backward(loss_of(engine) * bad)
    with pytest.raises(FloatingPointError, match="the gradient norm is nan; the weights were left as they are"):
        engine.step(1.0)
    assert all(torch.equal(value, before[name]) for name, value in engine.full_parameters())
    engine.backward(loss_of(engine))
    assert engine.step(1.0) > 0


def test_a_dummy_pass_does_nothing_where_ranks_need_not_run_equal_passes(engine: ReplicaEngine, monkeypatch):
    monkeypatch.setattr(engine, "_forward", lambda *args: pytest.fail("ran"))
    engine.dummy_pass("embed", backward=True)


@pytest.mark.parametrize("face", ["embed", "response_log_probs"])
def test_a_dummy_pass_reaches_every_parameter_with_gradient_zero(engine: ReplicaEngine, face: str):
    engine.needs_equal_passes = True
    engine.dummy_pass(face, backward=True)
    for name, parameter in engine.backbone.model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any()


def test_encoding_keeps_the_order_and_counts_every_sequence(engine: ReplicaEngine):
    counts: list[int] = []
    encoded = engine.encode(SEQUENCES, 6, counts.append)
    expected = torch.cat([engine.backbone.encode([s], 0) for s in SEQUENCES])
    torch.testing.assert_close(encoded, expected, rtol=0, atol=1e-6)
    assert sum(counts) == 4
    assert len(counts) > 1
    assert engine.encode([], 6).shape == (0, 32)


def test_state_taken_from_one_engine_continues_in_another(engine: ReplicaEngine, tiny_folder: Path):
    engine.backward(loss_of(engine))
    engine.step(1.0)
    other = ReplicaEngine(Backbone.load(tiny_folder), OptimizerConfig(lr=1e-3))
    for name, value in engine.full_parameters():
        other.load_parameter(name, value)
    for name, state in engine.full_optimizer_state():
        other.load_optimizer_state(name, state)
    for each in (engine, other):
        each.backward(loss_of(each))
        each.step(1.0)
    assert all(torch.equal(value, weights(other)[name]) for name, value in engine.full_parameters())


def test_a_frozen_model_has_no_gradients_and_no_optimizer(tiny_folder: Path):
    engine = build_engine(Backbone.load(tiny_folder), None, ParallelConfig(), default_strategy="fsdp2")
    assert engine.optimizer_name == ""
    assert list(engine.full_optimizer_state()) == []
    assert not engine.response_log_probs([[4]], [[5]])[0].requires_grad


@pytest.mark.parametrize(
    ("parallel", "match"),
    [
        (ParallelConfig(strategy="deepspeed", zero_stage=2), r"optim\.name is 'adafactor' .*parallel\.zero_stage 2"),
        (ParallelConfig(strategy="fsdp2"), r"optim\.name is 'adafactor' and parallel\.strategy is 'fsdp2'"),
        (ParallelConfig(workers=2), r"parallel\.workers is 2, and this process is in no torch\.distributed group"),
    ],
)
def test_impossible_combinations_are_refused_by_key(tiny_folder: Path, parallel: ParallelConfig, match: str):
    with pytest.raises(ValueError, match=match):
        build_engine(
            Backbone.load(tiny_folder), OptimizerConfig(name="adafactor"), parallel, default_strategy="deepspeed"
        )


def test_adafactor_runs_on_replicas(tiny_folder: Path):
    parallel = ParallelConfig(strategy="deepspeed", zero_stage=0)
    engine = build_engine(
        Backbone.load(tiny_folder), OptimizerConfig(name="adafactor"), parallel, default_strategy="fsdp2"
    )
    assert engine.optimizer_name == "Adafactor"
