"""Log-probabilities and entropies of responses against a direct float64 computation."""

from __future__ import annotations

import contextlib
import copy
import math
from pathlib import Path

import pytest
import torch

from models import token_log_probs
from models.backbone import Backbone

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14]]
RESPONSES = [[20, 21, 1], [22, 23, 24, 25, 1], [1]]


def direct_distributions(backbone: Backbone, prompt: list[int], response: list[int], temperature: float):
    """float64 log-softmax ``[R, V]`` of one unpadded sequence at each response position."""
    with torch.no_grad():
        logits = backbone.model(torch.tensor([[*prompt, *response]])).logits[0].double()
    return torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_log_probs_are_the_tempered_log_softmax_of_each_response_token(backbone: Backbone, temperature: float):
    log_probs, _, mask = backbone.response_log_probs(PROMPTS, RESPONSES, temperature)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        expected = direct_distributions(backbone, prompt, response, temperature)[range(len(response)), response]
        torch.testing.assert_close(log_probs[row, : len(response)].double(), expected, atol=1e-5, rtol=0)
        assert mask[row].tolist() == [1.0] * len(response) + [0.0] * (5 - len(response))


def test_the_temperature_changes_the_values(backbone: Backbone):
    at_08, _, mask = backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)
    at_1, _, _ = backbone.response_log_probs(PROMPTS, RESPONSES, 1.0)
    assert ((at_08 - at_1).abs() * mask).sum() > 0.1


def test_padding_carries_nothing(backbone: Backbone):
    log_probs, entropy, mask = backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)
    assert log_probs.shape == entropy.shape == mask.shape == (3, 5)
    assert log_probs[mask == 0].abs().sum() == 0
    assert entropy[mask == 0].abs().sum() == 0


def test_a_row_alone_has_the_values_it_has_in_a_batch(backbone: Backbone):
    together, _, _ = backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)
    alone, _, _ = backbone.response_log_probs(PROMPTS[:1], RESPONSES[:1], 0.8)
    torch.testing.assert_close(together[:1, :3], alone, atol=1e-5, rtol=0)


def test_entropy_is_that_of_the_tempered_distribution(backbone: Backbone):
    _, entropy, _ = backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        distribution = direct_distributions(backbone, prompt, response, 0.8)
        expected = -(distribution.exp() * distribution).sum(-1)
        torch.testing.assert_close(entropy[row, : len(response)].double(), expected, atol=1e-4, rtol=0)
    assert not entropy.requires_grad


def test_a_head_of_zeros_gives_the_uniform_distribution(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    torch.nn.init.zeros_(backbone.model.get_output_embeddings().weight)
    log_probs, entropy, _ = backbone.response_log_probs([[5, 6]], [[7, 1]], 0.8)
    torch.testing.assert_close(log_probs, torch.full((1, 2), -math.log(400)))
    torch.testing.assert_close(entropy, torch.full((1, 2), math.log(400)))


def test_an_empty_response_has_no_entries(backbone: Backbone):
    log_probs, _, mask = backbone.response_log_probs([[5, 6], [7, 8]], [[], [1]])
    assert mask.tolist() == [[0.0], [1.0]]
    assert log_probs[0].item() == 0.0


def test_only_empty_responses_are_a_zero_that_can_be_backpropagated(backbone: Backbone):
    log_probs, _, mask = backbone.response_log_probs([[5, 6]], [[]])
    assert mask.sum() == 0
    log_probs.sum().backward()
    backbone.zero_grad(set_to_none=True)


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_logits_in_chunks_give_the_same_values_and_gradients(tiny_folder: Path, monkeypatch, chunk: int):
    backbone = Backbone.load(tiny_folder)
    weights = torch.arange(15.0).reshape(3, 5) / 10

    def values_and_gradients():
        log_probs, entropy, _ = backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)
        (log_probs * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}
        backbone.zero_grad(set_to_none=True)
        return log_probs.detach(), entropy, gradients

    whole = values_and_gradients()
    monkeypatch.setattr(token_log_probs, "LOGIT_CHUNK", chunk)
    chunked = values_and_gradients()
    torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)[0], whole[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [5, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradients_are_those_of_a_log_softmax_in_float64(monkeypatch: pytest.MonkeyPatch, rows: int, bias: bool):
    monkeypatch.setattr(token_log_probs, "LOGIT_CHUNK", rows)  # kept, or computed again
    monkeypatch.setattr(token_log_probs, "CPU_BLOCK", 3)
    torch.manual_seed(0)
    head = torch.nn.Linear(6, 11, bias=bias)
    hidden, targets, incoming = torch.randn(5, 6, requires_grad=True), torch.tensor([0, 10, 3, 3, 7]), torch.randn(5)
    selected, entropy, compared = token_log_probs.TokenLogProbs(head)(hidden, targets, 0.8, 1.0, contextlib.nullcontext)
    (selected * incoming).sum().backward()

    exact, states = copy.deepcopy(head).double(), hidden.detach().double().requires_grad_()
    exact.zero_grad()
    distribution = torch.log_softmax(exact(states) / 0.8, dim=-1)
    expected = distribution[range(5), targets]
    (expected * incoming).sum().backward()
    torch.testing.assert_close(selected, expected, atol=1e-5, rtol=0, check_dtype=False)
    torch.testing.assert_close(
        entropy, -(distribution.exp() * distribution).sum(-1), atol=1e-5, rtol=0, check_dtype=False
    )
    at_one = torch.log_softmax(exact(states), dim=-1)[range(5), targets]
    torch.testing.assert_close(compared, at_one, atol=1e-5, rtol=0, check_dtype=False)
    for ours, theirs in zip((hidden, *head.parameters()), (states, *exact.parameters()), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5, check_dtype=False)


def test_gradients_reach_the_transformer_through_the_log_probs(tiny_folder: Path):
    backbone = Backbone.load(tiny_folder)
    backbone.response_log_probs(PROMPTS, RESPONSES)[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in backbone.parameters())


def test_bfloat16_computes_float32_log_probs(tiny_folder: Path, backbone: Backbone):
    log_probs, entropy, _ = Backbone.load(tiny_folder, dtype="bfloat16").response_log_probs(PROMPTS, RESPONSES, 0.8)
    expected, _, _ = backbone.response_log_probs(PROMPTS, RESPONSES, 0.8)
    assert log_probs.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(log_probs, expected, atol=0.5, rtol=0.1)
