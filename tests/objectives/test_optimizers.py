"""Optimizer steps by hand in float64, and gradient clipping."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from configs.schema import OptimizerConfig
from objectives.optimizers import build_optimizer, clip_gradients, learning_rate


def with_gradient(values: list, gradient: list) -> nn.Parameter:
    parameter = nn.Parameter(torch.tensor(values, dtype=torch.float64))
    parameter.grad = torch.tensor(gradient, dtype=torch.float64)
    return parameter


def test_two_adamw_steps_by_hand():
    parameter = with_gradient([1.0], [0.5])
    config = OptimizerConfig(name="adamw", lr=0.1, betas=[0.8, 0.9], weight_decay=0.01)
    optimizer = build_optimizer([parameter], config)
    optimizer.step()
    # first moments debias to the gradient itself, so the step is lr * sign
    first = 1.0 * (1 - 0.1 * 0.01) - 0.1 * 0.5 / (0.5 + 1e-8)
    assert parameter.item() == pytest.approx(first, rel=1e-12)
    parameter.grad = torch.tensor([-1.0], dtype=torch.float64)
    optimizer.step()
    m = (0.8 * 0.2 * 0.5 + 0.2 * -1.0) / (1 - 0.8**2)
    v = (0.9 * 0.1 * 0.25 + 0.1 * 1.0) / (1 - 0.9**2)
    second = first * (1 - 0.1 * 0.01) - 0.1 * m / (math.sqrt(v) + 1e-8)
    assert parameter.item() == pytest.approx(second, rel=1e-12)


def test_an_adafactor_step_by_hand():
    values, gradient = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.1, -0.2], [0.3, 0.4]])
    parameter = with_gradient(values.tolist(), gradient.tolist())
    build_optimizer([parameter], OptimizerConfig(name="adafactor", lr=0.1, weight_decay=0.01)).step()
    # Shazeer and Stern, algorithm 4, first step (second-moment decay 0): V = rows x columns / mean of rows
    squared = gradient**2 + 1e-30
    rows, columns = squared.mean(1, keepdims=True), squared.mean(0, keepdims=True)
    update = gradient / np.sqrt(rows @ columns / rows.mean())
    update /= max(1.0, np.sqrt((update**2).mean()))
    expected = values - 0.1 * 0.01 * values - 0.1 * update
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-6)


def test_adafactor_takes_the_learning_rate_from_outside_and_keeps_factored_moments():
    parameter = with_gradient([[1.0, 2.0], [3.0, 4.0]], [[0.1, -0.2], [0.3, 0.4]])
    optimizer = build_optimizer([parameter], OptimizerConfig(name="adafactor", lr=1e-5))
    optimizer.step()
    group = optimizer.param_groups[0]
    assert (group["lr"], group["scale_parameter"], group["relative_step"], group["warmup_init"]) == (
        1e-5,
        False,
        False,
        False,
    )
    state = optimizer.state[parameter]
    assert (state["exp_avg_sq_row"].shape, state["exp_avg_sq_col"].shape) == ((2,), (2,))
    assert "exp_avg_sq" not in state


def test_frozen_parameters_are_left_out():
    trained, frozen = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = build_optimizer([trained, frozen], OptimizerConfig())
    assert [p for group in optimizer.param_groups for p in group["params"]] == [trained]


def test_an_unknown_optimizer_is_refused_by_key():
    with pytest.raises(ValueError, match=r"optim\.name is 'sgd'; expected 'adamw' or 'adafactor'"):
        build_optimizer([nn.Parameter(torch.ones(1))], OptimizerConfig(name="sgd"))


def test_clipping_scales_the_gradients_and_returns_the_norm_before():
    first, second = with_gradient([0.0, 0.0], [3.0, 0.0]), with_gradient([0.0], [4.0])
    assert clip_gradients([first, second], 1.0) == pytest.approx(5.0)
    assert first.grad is not None
    assert second.grad is not None
    assert [*first.grad.tolist(), *second.grad.tolist()] == pytest.approx([0.6, 0.0, 0.8], rel=1e-5)


@pytest.mark.parametrize("limit", [5.5, 0.0])
def test_gradients_within_the_limit_or_without_one_stay(limit: float):
    parameter = with_gradient([0.0, 0.0], [3.0, 4.0])
    assert clip_gradients([parameter], limit) == pytest.approx(5.0)
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0, 4.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_raises_before_any_update(bad: float):
    parameter = with_gradient([1.0, 2.0], [bad, 1.0])
    with pytest.raises(FloatingPointError, match=r"the gradient norm is (nan|inf); the weights were left as they are"):
        clip_gradients([parameter], 1.0)
    assert parameter.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", [0.4, 0.4, 0.4, 0.4]), ("linear", [0.4, 0.3, 0.2, 0.1])]
)
def test_learning_rate_is_a_function_of_the_update_alone(schedule: str, expected: list[float]):
    config = OptimizerConfig(lr=0.4, schedule=schedule)
    assert [learning_rate(config, step, total=4) for step in (1, 2, 3, 4)] == pytest.approx(expected)
