"""Last-token pooling: the embedding of a sequence is the same under any padding, batch and precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.backbone import Backbone
from models.batching import pad_left, pad_right
from models.views import document_view, privileged_view, raw_view

VIEWS = [
    raw_view("Draw a chart of my sales"),
    document_view(""),
    document_view("chart-maker | Makes charts | " + "It draws bars and lines. " * 20),
    privileged_view("Fill the form", "The user needs skills for PDF forms."),
    document_view("sql"),
]


def direct(backbone: Backbone, ids: list[int]) -> torch.Tensor:
    """The normalized last hidden state of one unpadded sequence, by transformers alone."""
    with torch.no_grad():
        output = backbone.model(torch.tensor([ids]), output_hidden_states=True)
    last = output.hidden_states[-1][0, -1].double()
    return (last / last.norm()).float()


@pytest.fixture(scope="module")
def sequences(backbone: Backbone) -> list[list[int]]:
    return backbone.tokenizer.encode_views(VIEWS, 80)


@pytest.fixture(scope="module")
def expected(backbone: Backbone, sequences) -> torch.Tensor:
    return torch.stack([direct(backbone, ids) for ids in sequences])


@pytest.mark.parametrize("pad", [pad_right, pad_left])
def test_padding_on_either_side_leaves_the_embedding(backbone: Backbone, sequences, expected, pad):
    with torch.no_grad():
        embedded = backbone.embed(*pad(sequences, backbone.tokenizer.pad_id))
    torch.testing.assert_close(embedded, expected, atol=1e-5, rtol=0)


def test_a_batch_without_padding(backbone: Backbone, sequences):
    equal = [s[:1] + s[-5:] for s in (sequences[0], sequences[2], sequences[3])]
    with torch.no_grad():
        embedded = backbone.embed(torch.tensor(equal), torch.ones(3, 6, dtype=torch.long))
    torch.testing.assert_close(embedded, torch.stack([direct(backbone, s) for s in equal]), atol=1e-5, rtol=0)


def test_the_padding_id_does_not_matter(backbone: Backbone, sequences, expected):
    other = next(i for i in range(400) if i != backbone.tokenizer.pad_id)
    with torch.no_grad():
        embedded = backbone.embed(*pad_left(sequences, other))
    torch.testing.assert_close(embedded, expected, atol=1e-5, rtol=0)


def test_a_pooling_token_that_also_pads_is_still_found_inside_the_padding(backbone: Backbone):
    pool = backbone.tokenizer.pooling_token_id
    assert backbone.tokenizer.pad_id == pool
    with torch.no_grad():
        # the second row's real tokens are a word and the pooling token; everything after them pads with the same id
        embedded = backbone.embed(*pad_right([[5, 6, 7, 8, pool], [5, pool]], pool))
    torch.testing.assert_close(embedded[1], direct(backbone, [5, pool]), atol=1e-5, rtol=0)
    assert (embedded[1] - direct(backbone, [5, pool, pool, pool, pool])).abs().max() > 1e-2


def test_a_truncated_input_pools_over_the_pooling_token(backbone: Backbone, sequences, expected):
    assert len(sequences[2]) == 80
    assert sequences[2][-1] == backbone.tokenizer.pooling_token_id
    full = backbone.tokenizer.hf(VIEWS[2].text, add_special_tokens=False)["input_ids"]
    torch.testing.assert_close(
        expected[2], direct(backbone, [*full[:79], backbone.tokenizer.pooling_token_id]), atol=1e-5, rtol=0
    )
    assert (expected[2] - direct(backbone, full[:80])).abs().max() > 1e-2


@pytest.mark.parametrize("pad", [pad_right, pad_left])
def test_the_gradient_of_a_padded_batch_is_that_of_its_sequences(tiny_folder: Path, pad):
    backbone = Backbone.load(tiny_folder)
    pool = backbone.tokenizer.pooling_token_id
    batch = [[5, 6, 7, pool], [8, pool]]
    direction = torch.linspace(-1, 1, 32)

    def gradients(*batches: list[list[int]]) -> dict[str, torch.Tensor]:
        for sequences in batches:
            (backbone.embed(*pad(sequences, pool)) @ direction).sum().backward()
        out = {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}
        backbone.zero_grad(set_to_none=True)
        return out

    # the padding shares the pooling token's embedding, and must neither add to its gradient nor switch it off
    together = gradients(batch)
    torch.testing.assert_close(together, gradients(batch[:1], batch[1:]), atol=1e-5, rtol=1e-4)
    assert together["model.model.embed_tokens.weight"][pool].abs().max() > 1e-3


@pytest.mark.parametrize("token_budget", [0, 1, 100])
def test_encode_gives_the_order_of_its_input_whatever_the_micro_batches(backbone, sequences, expected, token_budget):
    torch.testing.assert_close(backbone.encode(sequences, token_budget), expected, atol=1e-5, rtol=0)


def test_encode_reports_its_progress_in_sequences(backbone: Backbone, sequences):
    done: list[int] = []
    backbone.encode(sequences, 100, done.append)
    assert sum(done) == len(sequences)
    assert len(done) > 1


def test_encoding_nothing_gives_an_empty_matrix(backbone: Backbone):
    assert backbone.encode([], 100).shape == (0, 32)


def test_bfloat16_computes_float32_unit_vectors(tiny_folder: Path, sequences, expected):
    embedded = Backbone.load(tiny_folder, dtype="bfloat16").eval().encode(sequences, 0)
    assert embedded.dtype == torch.float32
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(len(sequences)), atol=1e-6, rtol=0)
    cosine = (embedded * expected).sum(1)
    assert cosine.min() > 0.98
    assert (embedded - expected).abs().max() > 1e-5  # or the transformer did not run in bfloat16
