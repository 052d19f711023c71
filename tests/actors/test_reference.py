"""The frozen reference: the policy's own log-probabilities at version 0, and the same ones ever after."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.policy import equal_passes, response_log_probs
from actors.reference import Reference
from actors.retriever import RewardRetriever
from configs.schema import ModelConfig
from models.views import document_view, privileged_view, raw_view


@pytest.fixture
def reference(model_config: ModelConfig) -> Reference:
    return Reference(model_config, temperature=0.8, token_budget=30, threads=0, device="cpu")


def test_it_equals_the_policy_before_the_first_update(reference: Reference, make_policy, make_batch):
    policy = make_policy()
    batch = make_batch(policy)
    ours, seconds = reference.log_probs(batch.prompts, batch.responses)
    plan = equal_passes(policy.engine, batch.prompts, batch.responses, 30)
    theirs = response_log_probs(policy.engine, batch.prompts, batch.responses, policy.temperature, plan)
    for own, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(own, other)
    assert seconds >= 0


def test_one_value_a_response_token_at_the_sampling_temperature(reference: Reference, make_policy, make_batch):
    batch = make_batch(make_policy())
    values, _ = reference.log_probs(batch.prompts, batch.responses)
    for prompt, response, row in zip(batch.prompts, batch.responses, values, strict=True):
        with torch.no_grad():
            logits = reference.backbone.model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits.double() / 0.8, dim=-1)[range(len(response)), response]
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, expected.numpy(), atol=1e-5)


def test_with_it_the_kl_of_the_first_update_is_zero(reference: Reference, make_policy, make_batch):
    policy = make_policy()
    batch = make_batch(policy)
    own, _ = reference.log_probs(batch.prompts, batch.responses)
    metrics = policy.update(make_batch(policy, ref_log_probs=own))
    assert metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert policy.update(make_batch(policy, ref_log_probs=own))["actor/kl_loss"] > 1e-6


def test_its_parameters_are_frozen(reference: Reference, model_config: ModelConfig):
    retriever = RewardRetriever(model_config, token_budget=100, threads=0, device="cpu")
    for role in (reference, retriever):
        assert not any(p.requires_grad for p in role.backbone.parameters())
        assert role.ready() == sum(p.numel() for p in role.backbone.parameters())


def test_the_retriever_gives_unit_vectors_in_the_order_of_its_views(model_config: ModelConfig):
    retriever = RewardRetriever(model_config, token_budget=60, threads=0, device="cpu")
    views = [raw_view("Draw a chart"), document_view("sql"), document_view("form | Fills forms | " + "Reads it. " * 9)]
    together = retriever.encode(views, 64)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(together, np.concatenate([retriever.encode([v], 64) for v in views]), atol=1e-5)


def test_the_retriever_computes_what_the_views_of_a_request_share_once(model_config: ModelConfig):
    retriever = RewardRetriever(model_config, token_budget=1000, threads=0, device="cpu")
    request = "Sum the hours of each customer and write the total below the list."
    views = [raw_view(request), *(privileged_view(request, f"The user needs skills for {n}.") for n in "abcdefgh")]
    lengths = [len(ids) for ids in retriever.backbone.tokenizer.encode_views(views, 512)]
    counts: list[int] = []
    retriever.backbone.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: counts.append(args[0].numel())
    )
    embeddings = retriever.encode(views, 512)
    # instruction and request are the raw view without its pooling token
    shared = lengths[0] - 1
    assert sum(counts) < sum(lengths) - 8 * shared + 10
    retriever.backbone.share_prefixes = False
    np.testing.assert_allclose(embeddings, retriever.encode(views, 512), atol=1e-5)
