"""Margins, reward terms and their sum (eqs. 8-13) against independent float64 computations, and bad custom terms."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.schema import TermConfig
from rewards import RewardBatch, RewardError, RewardTerm, gain, length, load_terms, margin, total_reward
from rewards.terms import BUILTIN_TERMS


def margins(batch: RewardBatch) -> tuple[list[float], list[float]]:
    """m([q; c]) of every rollout and m(q) of every query, eq. 8, one inner product at a time."""
    documents = batch.document_embeddings.double().numpy()

    def m(vector: np.ndarray, query: int) -> float:
        scores = [float(np.dot(vector, document)) for document in documents]
        hardest = max(s for s, kept in zip(scores, batch.negatives[query].tolist(), strict=True) if kept)
        return scores[int(batch.positive[query])] - hardest

    rollouts = [
        m(vector, query)
        for vector, query in zip(batch.rollout_embeddings.double().numpy(), batch.group.tolist(), strict=True)
    ]
    return rollouts, [m(vector, query) for query, vector in enumerate(batch.query_embeddings.double().numpy())]


def test_margins_are_eq_8_over_the_pool(make_batch):
    batch = make_batch()
    rollouts, baseline = margins(batch)
    assert batch.margin.tolist() == pytest.approx(rollouts, abs=1e-6)
    assert batch.baseline_margin.tolist() == pytest.approx(baseline, abs=1e-6)


@pytest.mark.parametrize("tau", [0.05, 0.2])
def test_the_margin_term_is_eq_9(make_batch, tau: float):
    batch = make_batch()
    expected = [math.tanh(m / tau) for m in margins(batch)[0]]
    assert margin(batch, tau=tau).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("tau", [0.05, 0.001])
def test_the_gain_term_is_eq_10_against_the_rollouts_own_request(make_batch, tau: float):
    batch = make_batch()
    rollouts, baseline = margins(batch)
    raw = [(m - baseline[query]) / tau for m, query in zip(rollouts, batch.group.tolist(), strict=True)]
    expected = [min(1.0, max(-1.0, value)) for value in raw]
    assert gain(batch, tau=tau).tolist() == pytest.approx(expected, abs=1e-4)
    assert (max(map(abs, raw)) > 1) is (tau == 0.001)


def test_the_length_term_is_eq_13_by_hand(make_batch):
    batch = make_batch(lengths=torch.tensor([1, 128, 129, 168, 500]))
    assert length(batch).tolist() == pytest.approx([0.0, 0.0, -0.01, -0.4, -0.4], abs=1e-7)


def test_a_length_within_the_budget_costs_exactly_nothing(make_batch):
    assert length(make_batch(lengths=torch.tensor([0, 1, 64, 127, 128]))).tolist() == [0.0] * 5


def test_budget_rate_and_cap_are_parameters(make_batch):
    batch = make_batch(lengths=torch.tensor([10, 11, 15, 16, 99]))
    values = length(batch, budget=10, rate=0.1, cap=0.5).tolist()
    assert values == pytest.approx([0.0, -0.1, -0.5, -0.5, -0.5], abs=1e-6)


def test_an_empty_rationale_is_scored_as_the_others(make_batch):
    batch = make_batch()
    assert batch.rationales[2] == ""
    expected = math.tanh(margins(batch)[0][2] / 0.05)
    assert margin(batch)[2].item() == pytest.approx(expected, abs=1e-5)


def test_the_default_terms_have_the_papers_parameters(make_batch):
    # E.3: both temperatures 0.05, budget 128, rate 0.01, cap 0.4
    batch = make_batch()
    assert torch.equal(margin(batch), margin(batch, tau=0.05))
    assert torch.equal(gain(batch), gain(batch, tau=0.05))
    assert torch.equal(length(batch), length(batch, budget=128, rate=0.01, cap=0.4))


def test_the_total_is_the_weighted_sum_of_eq_12(make_batch):
    batch = make_batch()
    terms = load_terms({"margin": TermConfig(1.0), "gain": TermConfig(0.5), "length": TermConfig(2.0)})
    total, values = total_reward(batch, terms)
    rollouts, baseline = margins(batch)
    expected = [
        math.tanh(m / 0.05)
        + 0.5 * min(1.0, max(-1.0, (m - baseline[query]) / 0.05))
        - 2.0 * min(0.4, 0.01 * max(0, tokens - 128))
        for m, query, tokens in zip(rollouts, batch.group.tolist(), batch.lengths.tolist(), strict=True)
    ]
    assert total.tolist() == pytest.approx(expected, abs=1e-4)
    assert set(values) == {"margin", "gain", "length"}
    assert torch.equal(values["length"], length(batch))


# -- custom terms -------------------------------------------------------------------------------------------------------


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], str]:
    """Make a function importable and return its path."""

    def install(function: Callable) -> str:
        module = types.ModuleType("my_rewards")
        module.mine = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "my_rewards", module)
        return "my_rewards:mine"

    return install


def test_a_custom_term_is_found_by_its_import_path_and_gets_its_parameters(make_batch, custom):
    path = custom(lambda batch, *, factor: [factor * len(r) for r in batch.rationales])
    (term,) = load_terms({"mine": TermConfig(weight=3.0, function=path, params={"factor": 2})})
    assert (term.name, term.weight) == ("mine", 3.0)
    assert term(make_batch()).tolist() == [2.0, 2.0, 0.0, 2.0, 2.0]


def test_a_custom_function_may_take_the_name_of_a_built_in(make_batch, custom):
    path = custom(lambda batch: torch.full((5,), 7.0))
    (term,) = load_terms({"margin": TermConfig(function=path)})
    assert term(make_batch()).tolist() == [7.0] * 5


def test_what_a_term_changes_in_its_batch_no_other_term_sees(make_batch):
    def vandal(batch: RewardBatch) -> torch.Tensor:
        batch.rationales[:] = ["gone"] * 5
        batch.lengths.zero_()
        batch.margin.fill_(7.0)
        batch.document_embeddings.numpy()[:] = 0.0
        return torch.zeros(5)

    def alone(batch: RewardBatch) -> list[float]:
        texts = sum(len(r) for r in batch.rationales)
        return (
            batch.margin + batch.lengths + batch.document_embeddings.sum() + batch.similarity.sum() + texts
        ).tolist()

    batch = make_batch()
    expected = alone(make_batch())
    _, values = total_reward(batch, [RewardTerm("vandal", vandal), RewardTerm("honest", alone)])
    assert values["honest"].tolist() == pytest.approx(expected, abs=1e-6)
    assert alone(batch) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_names_term_query_and_rationale(make_batch, bad: float):
    term = RewardTerm("mine", lambda batch: [0.0, 0.0, 0.0, bad, bad])
    with pytest.raises(
        RewardError,
        match=r"'mine' gave (nan|inf|-inf) for rollout 3 of query 'q-two' \(rationale 'd'\); 2 of 5 values are not finite",
    ):
        term(make_batch())


@pytest.mark.parametrize(
    ("values", "shape"), [([1.0, 2.0], r"\(2,\)"), (torch.zeros(5, 1), r"\(5, 1\)"), (1.0, r"\(\)"), ([], r"\(0,\)")]
)
def test_another_number_of_values_names_the_term_and_both_shapes(make_batch, values, shape: str):
    with pytest.raises(RewardError, match=rf"'mine' returned shape {shape}; expected one float per rollout, \(5,\)"):
        RewardTerm("mine", lambda batch: values)(make_batch())


@pytest.mark.parametrize("values", [None, ["a"] * 5, [[1.0], [1.0, 2.0], 3.0, 4.0, 5.0]], ids=str)
def test_values_that_are_no_numbers_name_the_term(make_batch, values):
    with pytest.raises(RewardError, match="'mine'"):
        RewardTerm("mine", lambda batch: values)(make_batch())


def test_a_term_that_raises_is_named_with_its_error(make_batch):
    def fails(batch: RewardBatch) -> list[float]:
        return [1 / len(rationale) for rationale in batch.rationales]

    with pytest.raises(RewardError, match="reward term 'mine' raised ZeroDivisionError: division by zero") as caught:
        RewardTerm("mine", fails)(make_batch())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_term_with_gradients_is_detached(make_batch):
    term = RewardTerm("mine", lambda batch: torch.ones(5, requires_grad=True) * 2)
    assert not term(make_batch()).requires_grad


@pytest.mark.parametrize("name", BUILTIN_TERMS)
def test_a_parameter_that_a_term_does_not_take_is_refused(name: str):
    with pytest.raises(RewardError, match=rf"reward\.terms\.{name}\.params is .*'taw'"):
        load_terms({name: TermConfig(params={"taw": 0.1})})


def test_an_unknown_built_in_is_refused_with_the_known_ones():
    with pytest.raises(RewardError, match=r"reward\.terms\.bonus: no built-in of this name; .* margin, gain, length"):
        load_terms({"bonus": TermConfig()})


@pytest.mark.parametrize("path", ["no_such_module:f", "math:no_such_function", "math", "math:", ":f"])
def test_an_import_path_that_leads_nowhere_is_refused_with_the_path(path: str):
    with pytest.raises(RewardError, match=rf"reward\.terms\.mine\.function is '{path}'"):
        load_terms({"mine": TermConfig(function=path)})


def test_something_that_is_no_function_is_refused():
    with pytest.raises(RewardError, match="'math:pi': float is not callable"):
        load_terms({"mine": TermConfig(function="math:pi")})


def test_a_module_that_cannot_be_imported_is_named_whatever_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_terms.py").write_text("def follows_pattern(batch:\n")
    (tmp_path / "undefined_terms.py").write_text("LIMIT = unknown_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module, raised in (("broken_terms", "SyntaxError"), ("undefined_terms", "NameError")):
        with pytest.raises(RewardError, match=rf"reward.terms.mine.function is '{module}:follows_pattern': {raised}"):
            load_terms({"mine": TermConfig(function=f"{module}:follows_pattern")})
