"""Gradient caching: the same gradients as the uncut computation, in the memory of one micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from objectives.collectives import SingleProcess
from objectives.gradient_cache import cached_backward

VIEWS = {
    "queries": [[1, 2, 3], [4], [5, 6]],
    "documents": [[7, 8], [9, 1, 2, 3], [4, 4], [6]],
    "teacher": [[2], [3, 4]],
}


class Encoder(nn.Module):
    """A float64 bag-of-tokens encoder with optional dropout that notes the shape of every call."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(10, 4, dtype=torch.float64))
        self.dropout = nn.Dropout(dropout)
        self.calls: list[tuple[int, int]] = []
        self.with_gradient: list[bool] = []

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.calls.append((ids.shape[0], ids.shape[1]))
        self.with_gradient.append(torch.is_grad_enabled())
        summed = (self.dropout(self.table[ids]) * mask[..., None]).sum(1).tanh()
        return summed / summed.norm(dim=1, keepdim=True)


def engine_of(encoder: Encoder) -> Any:
    """The part of an engine that the gradient cache uses."""
    return SimpleNamespace(
        embed=encoder,
        backward=torch.Tensor.backward,
        collectives=SingleProcess(),
        device=torch.device("cpu"),
        needs_equal_passes=False,
        backbone=SimpleNamespace(tokenizer=SimpleNamespace(pad_id=0), hidden_size=4, packs=False),
    )


def loss_of(embedded: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    scores = embedded["queries"] @ embedded["documents"].T
    loss = torch.logsumexp(scores / 0.1, dim=1).mean() + (embedded["teacher"] @ embedded["queries"].T).square().sum()
    return loss, {"spread": scores.detach().std().item()}


def run(encoder: Encoder, budget: int, cache: bool, stop: frozenset[str] = frozenset()):
    encoder.zero_grad()
    loss, metrics = cached_backward(
        engine_of(encoder), VIEWS, loss_of, token_budget=budget, cache=cache, stop_gradient=stop
    )
    assert encoder.table.grad is not None
    return loss, metrics, encoder.table.grad.clone()


def direct(encoder: Encoder, stop: frozenset[str] = frozenset()):
    """Every sequence embedded by itself and the loss backpropagated in one graph."""
    encoder.zero_grad()
    embedded = {
        name: torch.cat([encoder(torch.tensor([s]), torch.ones(1, len(s), dtype=torch.long)) for s in sequences])
        for name, sequences in VIEWS.items()
    }
    loss, metrics = loss_of({name: e.detach() if name in stop else e for name, e in embedded.items()})
    loss.backward()
    assert encoder.table.grad is not None
    return loss.detach(), metrics, encoder.table.grad.clone()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("budget", [1, 4, 6, 10, 0])
def test_loss_metrics_and_gradients_equal_the_uncut_computation(budget: int, cache: bool):
    encoder = Encoder()
    torch.testing.assert_close(run(encoder, budget, cache), direct(encoder), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cache", [True, False])
def test_a_stop_gradient_view_gives_no_gradient(cache: bool):
    encoder, stop = Encoder(), frozenset({"teacher"})
    torch.testing.assert_close(run(encoder, 4, cache, stop), direct(encoder, stop), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(run(encoder, 4, cache, stop)[2], run(encoder, 4, cache)[2])


def test_a_stop_gradient_view_is_embedded_once():
    encoder = Encoder()
    run(encoder, 0, True, frozenset({"teacher"}))
    assert encoder.calls == [(2, 2), (7, 4)]
    encoder = Encoder()
    run(encoder, 4, True, frozenset({"teacher"}))
    teacher, *others = encoder.calls
    assert teacher == (2, 2)
    kept, _ = others[len(others) // 2]
    assert sum(rows for rows, _ in others) == 2 * 7 - kept


def test_no_micro_batch_exceeds_the_token_budget():
    encoder = Encoder()
    run(encoder, 4, True)
    assert max(rows * width for rows, width in encoder.calls) <= 4
    assert len(encoder.calls) > 4


def test_the_first_pass_keeps_the_activations_of_the_last_micro_batch_alone():
    encoder = Encoder()
    run(encoder, 4, True)
    passes = (len(encoder.with_gradient) + 1) // 2
    assert encoder.with_gradient == [False] * (passes - 1) + [True] + [True] * (passes - 1)
    assert encoder.calls[passes:] == encoder.calls[: passes - 1]  # and it alone is not embedded again


def test_gradients_accumulate_into_those_already_there():
    encoder = Encoder()
    _, _, once = run(encoder, 4, True)
    cached_backward(engine_of(encoder), VIEWS, loss_of, token_budget=4)
    torch.testing.assert_close(encoder.table.grad, 2 * once)


@pytest.mark.parametrize("budget", [1, 4, 10])
def test_dropout_is_the_same_in_both_passes(budget: int):
    encoder = Encoder(dropout=0.5).train()
    torch.manual_seed(5)
    cached = run(encoder, budget, True)
    torch.manual_seed(5)
    uncached = run(encoder, budget, False)
    torch.testing.assert_close(cached, uncached, rtol=1e-12, atol=1e-12)
    torch.manual_seed(6)
    assert not torch.allclose(run(encoder, budget, True)[2], cached[2])  # or dropout was not active


def test_the_random_stream_goes_on_as_if_every_sequence_had_been_embedded_once():
    encoder = Encoder(dropout=0.5).train()
    following = []
    for cache in (True, False):
        torch.manual_seed(5)
        run(encoder, 4, cache)
        following.append(torch.rand(3))
    assert torch.equal(*following)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_raises_with_its_terms_before_any_gradient(value: float):
    encoder = Encoder()
    with pytest.raises(FloatingPointError, match=r"the retrieval loss is (nan|-inf).*'raw': 1\.5"):
        cached_backward(
            engine_of(encoder),
            VIEWS,
            lambda embedded: (embedded["queries"].sum() * value, {"raw": 1.5}),
            token_budget=4,
        )
    assert encoder.table.grad is None
