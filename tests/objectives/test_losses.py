"""Eqs. 2-6 against their formulas written out term by term in float64."""

from __future__ import annotations

import math

import pytest
import torch

from objectives.losses import alignment_loss, candidate_logits, contrastive_loss, rationale_lm_loss

TAU = 0.05
MASKED = torch.tensor([[False, False, True, False, False], [False] * 5, [True, False, False, False, True]])
POSITIVE = torch.tensor([1, 4, 2])
WEIGHTS = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)


def unit(rows: int, seed: int) -> torch.Tensor:
    values = torch.randn(rows, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    # close to one direction, as real embeddings are, so that no softmax saturates at temperature 0.05
    values = values * 0.2 + 1.0
    return values / values.norm(dim=1, keepdim=True)


def probabilities(queries: torch.Tensor, documents: torch.Tensor, temperature: float) -> list[dict[int, float]]:
    """Eq. 4 by its definition: for each query the probability of every candidate that is not masked."""
    rows = []
    for i, query in enumerate(queries):
        exps = {
            j: math.exp(sum(float(a) * float(b) for a, b in zip(query, document, strict=True)) / temperature)
            for j, document in enumerate(documents)
            if not MASKED[i, j]
        }
        rows.append({j: value / sum(exps.values()) for j, value in exps.items()})
    return rows


def weighted_mean(values: list[float]) -> float:
    return sum(w * v for w, v in zip(WEIGHTS.tolist(), values, strict=True)) / sum(WEIGHTS.tolist())


def test_candidate_logits_are_cosines_over_the_temperature_and_masked_ones_minus_infinity():
    queries, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8], [0.0, 1.0]])
    logits = candidate_logits(queries, documents, torch.tensor([[False, True]]), 0.05)
    torch.testing.assert_close(logits, torch.tensor([[12.0, float("-inf")]]))


def test_the_contrastive_loss_is_eq_2():
    queries, documents = unit(3, 0), unit(5, 1)
    rows = probabilities(queries, documents, TAU)
    expected = weighted_mean([-math.log(p[int(t)]) for p, t in zip(rows, POSITIVE, strict=True)])
    loss = contrastive_loss(queries, documents, POSITIVE, MASKED, TAU, WEIGHTS)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_the_contrastive_loss_in_float32_is_eq_2_to_five_digits():
    queries, documents = unit(3, 0), unit(5, 1)
    rows = probabilities(queries, documents, TAU)
    expected = weighted_mean([-math.log(p[int(t)]) for p, t in zip(rows, POSITIVE, strict=True)])
    loss = contrastive_loss(queries.float(), documents.float(), POSITIVE, MASKED, TAU, WEIGHTS.float())
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_contrastive_loss_by_hand():
    # cosines 1 and 0 at temperature 0.5: -log(e^2 / (e^2 + 1)) = log(1 + e^-2)
    loss = contrastive_loss(
        torch.tensor([[1.0, 0.0]]),
        torch.eye(2),
        torch.tensor([0]),
        torch.zeros(1, 2, dtype=torch.bool),
        0.5,
        torch.ones(1),
    )
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-6)


def test_a_masked_document_gets_no_gradient_from_the_query_that_masks_it():
    queries, documents = unit(1, 0), unit(3, 1).requires_grad_()
    mask = torch.tensor([[False, True, False]])
    contrastive_loss(queries, documents, torch.tensor([0]), mask, TAU, torch.ones(1, dtype=torch.float64)).backward()
    assert documents.grad is not None
    assert documents.grad.abs().sum(1).gt(0).tolist() == [True, False, True]


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_the_alignment_loss_is_eq_5_over_eq_4(temperature: float):
    raw, teacher, documents = unit(3, 0), unit(3, 2), unit(5, 1)
    student = probabilities(raw, documents, TAU * temperature)
    target = probabilities(teacher, documents, TAU * temperature)
    divergences = [
        temperature**2 * sum(p[j] * math.log(p[j] / q[j]) for j in p) for p, q in zip(target, student, strict=True)
    ]
    loss = alignment_loss(raw, teacher, documents, MASKED, TAU, temperature, WEIGHTS)
    assert loss.item() == pytest.approx(weighted_mean(divergences), rel=1e-10)
    assert loss.item() > 0.01


def test_the_alignment_loss_of_equal_views_is_zero():
    raw, documents = unit(3, 0), unit(5, 1)
    assert alignment_loss(raw, raw.clone(), documents, MASKED, TAU, 2.0, WEIGHTS).item() == pytest.approx(0, abs=1e-14)


def test_the_alignment_gradient_stops_at_the_teacher_view():
    raw, teacher, documents = unit(3, 0).requires_grad_(), unit(3, 2).requires_grad_(), unit(5, 1)
    alignment_loss(raw, teacher, documents, MASKED, TAU, 1.0, WEIGHTS).backward()
    assert teacher.grad is None
    assert raw.grad is not None
    assert raw.grad.abs().sum() > 0


def test_the_alignment_gradient_of_the_documents_comes_from_the_student_alone():
    raw, teacher, documents = unit(3, 0), unit(3, 2), unit(5, 1).requires_grad_()
    alignment_loss(raw, teacher, documents, MASKED, TAU, 2.0, WEIGHTS).backward()
    # d KL / d logit = student - target, d logit / d document = query / (tau T), times T^2 and the query's share of weight
    student = probabilities(raw, documents.detach(), TAU * 2)
    target = probabilities(teacher, documents.detach(), TAU * 2)
    expected = torch.zeros(5, 6, dtype=torch.float64)
    for i in range(3):
        for j in student[i]:
            factor = 4 * WEIGHTS[i] / WEIGHTS.sum() / (TAU * 2) * (student[i][j] - target[i][j])
            expected[j] += factor * raw[i]
    torch.testing.assert_close(documents.grad, expected, rtol=1e-9, atol=1e-12)


def test_masked_candidates_leave_the_alignment_gradient_finite():
    raw, teacher, documents = unit(3, 0).requires_grad_(), unit(3, 2), unit(5, 1).requires_grad_()
    alignment_loss(raw, teacher, documents, MASKED, TAU, 1.0, WEIGHTS).backward()
    for tensor in (raw, documents):
        assert tensor.grad is not None
        assert torch.isfinite(tensor.grad).all()


LOG_PROBS = torch.tensor([[-1.0, -2.0, -4.0], [-0.5, 9.0, 9.0]])
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])


def test_the_lm_loss_as_a_mean_over_the_tokens_of_the_batch():
    assert rationale_lm_loss(LOG_PROBS, MASK, "token_mean", 4.0, 2).item() == pytest.approx(7.5 / 4)


def test_the_lm_loss_as_eq_6_literally_a_sum_per_rationale():
    assert rationale_lm_loss(LOG_PROBS, MASK, "sum", 4.0, 2).item() == pytest.approx(7.5 / 2)


@pytest.mark.parametrize("reduction", ["token_mean", "sum"])
def test_the_lm_losses_of_micro_batches_add_up(reduction: str):
    whole = rationale_lm_loss(LOG_PROBS, MASK, reduction, 4.0, 2)
    parts = [rationale_lm_loss(LOG_PROBS[i : i + 1], MASK[i : i + 1], reduction, 4.0, 2) for i in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(whole.item())


def test_an_unknown_lm_reduction_is_refused_by_key():
    with pytest.raises(ValueError, match=r"loss\.lm_reduction is 'mean'; expected 'token_mean' or 'sum'"):
        rationale_lm_loss(LOG_PROBS, MASK, "mean", 4.0, 2)
