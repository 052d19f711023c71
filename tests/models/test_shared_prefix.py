"""Packed sequences: values and gradients of each by itself, whatever they share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from models import shared_prefix
from models.backbone import Backbone
from models.batching import pad_right
from models.shared_prefix import PROVEN_MODEL_TYPES, can_pack, distinct_tokens, pack, packed_hidden_states

SHAPE: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
OF_TYPE: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "starcoder2": {"sliding_window": None},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "smollm3": {"no_rope_layer_interval": 2},
}


def draw(length: int, seed: int) -> list[int]:
    return torch.randint(3, 100, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


PROMPT, DEEPER = draw(20, 0), draw(10, 1)
SEQUENCES = {
    "one": [PROMPT],
    "nothing shared, lengths 1 to 40": [draw(n, n) for n in (7, 1, 40, 12, 3, 40)],
    "a prompt and three responses": [PROMPT + draw(n, n) for n in (5, 30, 9)],
    "a prefix in a prefix": [PROMPT + draw(4, 2), PROMPT + DEEPER + draw(6, 3), PROMPT + DEEPER + draw(2, 4)],
    "one is the prefix of another": [PROMPT + draw(5, 5), PROMPT, PROMPT + DEEPER],
    "equal ones": [PROMPT, draw(9, 6), PROMPT, PROMPT + draw(3, 7), PROMPT],
    "two groups and strangers": [[*PROMPT, 3], [*DEEPER, 4, 5], draw(3, 8), [*PROMPT, 6, 7], DEEPER, draw(30, 9)],
}


def model_of(kind: str, **settings: Any) -> Any:
    config = AutoConfig.for_model(kind, **{**SHAPE, **OF_TYPE.get(kind, {}), **settings})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # biases and norms are 0 and 1 when made: a mistake in them would not show
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


class DoubleNorm(nn.Module):
    """RMSNorm in float64; transformers' own computes in float32 whatever it is given."""

    def __init__(self, norm: Any):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def in_float64(model: Any) -> Any:
    model = model.double()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, DoubleNorm(child))
    return model


def values_and_gradients(model: Any, hidden: list[torch.Tensor]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Hidden states, and the gradients of their sum with fixed weights, through the head as well."""
    total = torch.zeros((), dtype=hidden[0].dtype)
    for index, states in enumerate(hidden):
        generator = torch.Generator().manual_seed(index)
        total = total + (states * torch.randn(states.shape, generator=generator, dtype=states.dtype)).sum()
        total = total + torch.log_softmax(model.get_output_embeddings()(states), dim=-1)[:, 5].sum()
    model.zero_grad()
    total.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return [states.detach() for states in hidden], gradients


def packed(model: Any, sequences: list[list[int]], **options: Any):
    batch = pack(sequences, **options)
    states = packed_hidden_states(model, batch)
    return values_and_gradients(model, [states[torch.from_numpy(rows)] for rows in batch.rows])


def plain(model: Any, sequences: list[list[int]]):
    """Each sequence by itself, by the model's own attention."""
    return values_and_gradients(
        model, [model.base_model(input_ids=torch.tensor([s]), use_cache=False).last_hidden_state[0] for s in sequences]
    )


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_values_and_gradients_are_those_of_each_sequence_by_itself(kind: str, sequences: list[list[int]]):
    model = in_float64(model_of(kind))
    assert can_pack(model)
    torch.testing.assert_close(packed(model, sequences), plain(model, sequences), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", sorted(PROVEN_MODEL_TYPES))
def test_every_architecture_that_is_packed_gives_its_own_values_and_gradients(kind: str):
    model = model_of(kind)
    assert can_pack(model)
    sequences = [s for case in SEQUENCES.values() for s in case]
    values, gradients = packed(model, sequences)
    expected_values, expected_gradients = plain(model, sequences)
    torch.testing.assert_close(values, expected_values, rtol=1e-5, atol=1e-5)
    scale = torch.cat([g.flatten() for g in expected_gradients.values()]).abs().max()
    assert expected_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient / scale, expected_gradients[name] / scale, rtol=1e-4, atol=1e-5)


def test_a_shared_prefix_is_computed_once(monkeypatch: pytest.MonkeyPatch):
    sequences = SEQUENCES["a prompt and three responses"]
    batch = pack(sequences)
    assert batch.input_ids.shape == batch.position_ids.shape == (1, 20 + 5 + 30 + 9)
    assert sorted(np.unique(np.concatenate(batch.rows))) == list(range(64))
    assert all((rows[:20] == batch.rows[0][:20]).all() for rows in batch.rows)


def test_rows_give_back_tokens_and_positions():
    sequences = [s for case in SEQUENCES.values() for s in case]
    batch = pack(sequences)
    for sequence, rows in zip(sequences, batch.rows, strict=True):
        assert batch.input_ids[0, rows].tolist() == sequence
        assert batch.position_ids[0, rows].tolist() == list(range(len(sequence)))
    assert batch.input_ids[0, batch.last_rows].tolist() == [s[-1] for s in sequences]


def test_a_prefix_shorter_than_the_least_is_not_shared():
    first, second = [1, 2, 3, 4], [1, 2, 3, 5]
    assert pack([first, second], min_shared=4).input_ids.tolist() == [[1, 2, 3, 4, 1, 2, 3, 5]]
    assert pack([first, second], min_shared=3).input_ids.tolist() == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
def test_distinct_tokens_counts_what_packing_computes(sequences: list[list[int]]):
    assert distinct_tokens(sequences) == pack(sequences).input_ids.shape[1]


def test_the_padding_of_attention_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_prefix, "SMALL_AREA", 0)
    sequences = [draw(n, n) for n in range(1, 60)]
    buckets = pack(sequences).buckets
    assert 1 < len(buckets) < 30
    for bucket in buckets[:-1]:
        lengths = (bucket.queries != 0).sum(1)
        assert bucket.queries.numel() * bucket.keys.shape[1] <= 1.3 * float((lengths + 1).square().sum())


def test_the_models_own_attention_is_back_afterwards_whatever_happens():
    model = model_of("llama")
    before = model.config._attn_implementation
    packed_hidden_states(model, pack([PROMPT]))
    assert model.config._attn_implementation == before
    with pytest.raises(IndexError):
        packed_hidden_states(model, pack([[1000]]))
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("mistral", {"sliding_window": 16}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
        ("gemma2", {}),
        ("gpt2", {}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}}),
    ],
    ids=str,
)
def test_what_is_not_known_to_be_exact_is_not_packed(kind: str, settings: dict[str, Any]):
    config = AutoConfig.for_model(kind, **{**SHAPE, **settings})
    assert not can_pack(SimpleNamespace(config=config))


@pytest.mark.parametrize("sequences", [[], [[]], [[1, 2], []]], ids=str)
def test_no_tokens_are_refused(sequences: list[list[int]]):
    with pytest.raises(ValueError, match="cannot pack"):
        pack(sequences)


# -- a backbone's faces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", SEQUENCES.values(), ids=SEQUENCES)
def test_a_backbone_gives_the_same_embeddings_packed_and_padded(backbone: Backbone, sequences: list[list[int]]):
    padded = backbone.embed(*pad_right(sequences, backbone.tokenizer.pad_id))
    assert backbone.packs
    torch.testing.assert_close(backbone.embed_sequences(sequences), padded, rtol=0, atol=1e-5)
    torch.testing.assert_close(backbone.encode(sequences, 30), padded.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_rows_lead_to_each_sequences_tokens(backbone: Backbone, monkeypatch: pytest.MonkeyPatch, share: bool):
    monkeypatch.setattr(backbone, "share_prefixes", share)
    sequences = SEQUENCES["a prefix in a prefix"]
    states, rows = backbone.token_states(sequences)
    assert len(states) == (20 + 4 + 10 + 6 + 2 if share else 3 * 36)
    for sequence, own in zip(sequences, rows, strict=True):
        alone = backbone.hidden_states(torch.tensor([sequence]), torch.ones(1, len(sequence), dtype=torch.long))[0]
        torch.testing.assert_close(states[torch.from_numpy(own)], alone, rtol=0, atol=1e-4)


def test_dropout_and_a_switch_keep_a_backbone_from_packing(tiny_folder: Path):
    assert Backbone.load(tiny_folder).eval().packs
    assert not Backbone.load(tiny_folder).train().packs
    assert not Backbone.load(tiny_folder, share_prefixes=False).eval().packs


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_log_probs_of_responses_to_one_prompt_are_those_of_each_alone(backbone: Backbone, temperature: float):
    responses = [draw(5, 1), draw(3, 2), [], draw(1, 3), draw(5, 1)]
    together = backbone.response_log_probs([PROMPT] * 5, responses, temperature)
    for row, response in enumerate(responses):
        alone = backbone.response_log_probs([PROMPT], [response], temperature)
        for values, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(values[row, : len(response)], expected[0, : len(response)], rtol=0, atol=1e-5)
