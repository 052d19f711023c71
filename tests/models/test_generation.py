"""Sampling: greedy against transformers, the nucleus against its definition, and reproducibility."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from models import generation
from models.backbone import Backbone
from models.generation import SamplingParams, sample_rollouts

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [40, 41], [60, 61, 62, 63], [90, 91, 92]]
SEEDS = [3, 1, 4, 1_000_003]
SAMPLING = SamplingParams(n=3, temperature=0.8, top_p=0.95, max_tokens=12, stop_token_ids=(0, 1))
GREEDY = SamplingParams(n=1, temperature=0.0, max_tokens=12)


def tokens(groups: list[list[generation.Rollout]]) -> list[list[list[int]]]:
    return [[rollout.tokens for rollout in group] for group in groups]


def choose(logits: torch.Tensor, params: SamplingParams, draws: int, seed: int = 0) -> np.ndarray:
    """``draws`` independent tokens of one logits row."""
    uniform = torch.from_numpy(np.random.default_rng(seed).random(draws))
    return generation._choose(logits.expand(draws, -1), params, uniform).numpy()


def nucleus(probabilities: np.ndarray, top_p: float) -> np.ndarray:
    """Renormalized probabilities of the smallest set of most likely tokens with a mass of at least ``top_p``."""
    kept, mass = np.zeros_like(probabilities), 0.0
    for token in np.argsort(-probabilities):
        if mass >= top_p:
            break
        kept[token] = probabilities[token]
        mass += probabilities[token]
    return kept / kept.sum()


# -- greedy -------------------------------------------------------------------------------------------------------------


def test_greedy_decoding_equals_transformers(backbone: Backbone):
    groups = sample_rollouts(backbone, PROMPTS, GREEDY, SEEDS)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        expected = backbone.model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=None,
            pad_token_id=0,
            use_cache=True,
        )[0, len(prompt) :]
        assert group[0].tokens == expected.tolist()


def test_a_stop_id_ends_the_rollout_and_is_its_last_token(backbone: Backbone):
    free = sample_rollouts(backbone, PROMPTS[:1], GREEDY, SEEDS[:1])[0][0].tokens
    stop = free[4]
    params = SamplingParams(n=1, temperature=0.0, max_tokens=12, stop_token_ids=(stop,))
    assert sample_rollouts(backbone, PROMPTS[:1], params, SEEDS[:1])[0][0].tokens == free[: free.index(stop) + 1]


def test_rollouts_that_end_early_leave_the_others_as_they_are(backbone: Backbone):
    free = tokens(sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS))
    stop = free[0][0][2]
    params = SamplingParams(n=3, temperature=0.8, top_p=0.95, max_tokens=12, stop_token_ids=(0, 1, stop))
    stopped = tokens(sample_rollouts(backbone, PROMPTS, params, SEEDS))
    expected = [[r[: r.index(stop) + 1] if stop in r else r for r in group] for group in free]
    assert stopped == expected
    assert len({len(r) for group in stopped for r in group}) > 1


def test_the_length_limit_cuts_a_rollout_without_an_end_token(backbone: Backbone):
    params = SamplingParams(n=2, temperature=0.8, max_tokens=3, stop_token_ids=())
    assert [len(r) for group in tokens(sample_rollouts(backbone, PROMPTS, params, SEEDS)) for r in group] == [3] * 8


# -- reproducibility ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_budget", [1, 100, 150])
def test_the_same_seeds_give_the_same_tokens_whatever_the_micro_batches(backbone: Backbone, token_budget: int):
    whole = sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS)
    assert tokens(sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS, token_budget)) == tokens(whole)


def test_the_same_seeds_give_the_same_tokens_whatever_the_order_of_prompts(backbone: Backbone):
    forward = tokens(sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS))
    backward = tokens(sample_rollouts(backbone, PROMPTS[::-1], SAMPLING, SEEDS[::-1]))
    assert backward == forward[::-1]


def test_another_seed_gives_other_tokens(backbone: Backbone):
    assert tokens(sample_rollouts(backbone, PROMPTS[:1], SAMPLING, [3])) != tokens(
        sample_rollouts(backbone, PROMPTS[:1], SAMPLING, [4])
    )


def test_the_samples_of_a_group_differ(backbone: Backbone):
    for group in tokens(sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS)):
        assert len({tuple(r) for r in group}) > 1


def test_a_shorter_limit_gives_the_beginning_of_the_same_rollouts(backbone: Backbone):
    short = SamplingParams(n=3, temperature=0.8, top_p=0.95, max_tokens=5, stop_token_ids=(0, 1))
    long = tokens(sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS))
    assert tokens(sample_rollouts(backbone, PROMPTS, short, SEEDS)) == [[r[:5] for r in group] for group in long]


# -- the nucleus --------------------------------------------------------------------------------------------------------


def test_only_tokens_of_the_nucleus_are_drawn_with_their_renormalized_frequencies():
    # 0.5 + 0.2 < 0.8 <= 0.5 + 0.2 + 0.15: tokens 3, 0 and 4, renormalized by 0.85
    logits = torch.tensor([0.2, 0.1, 0.05, 0.5, 0.15]).log()
    drawn = choose(logits, SamplingParams(temperature=1.0, top_p=0.8), 20_000)
    counts = np.bincount(drawn, minlength=5)
    assert counts[[1, 2]].tolist() == [0, 0]
    expected = np.array([0.5, 0.2, 0.15]) / 0.85 * 20_000
    assert chisquare(counts[[3, 0, 4]], expected).pvalue > 0.01


def test_the_temperature_acts_before_the_nucleus_is_cut():
    # squared and renormalized: 0.25, 0.04, 0.0225, 0.01, 0.0025 over 0.325; 0.769 < 0.8 <= 0.892: tokens 3 and 0
    logits = torch.tensor([0.2, 0.1, 0.05, 0.5, 0.15]).log()
    counts = np.bincount(choose(logits, SamplingParams(temperature=0.5, top_p=0.8), 20_000), minlength=5)
    assert counts[[1, 2, 4]].tolist() == [0, 0, 0]
    assert chisquare(counts[[3, 0]], np.array([0.25, 0.04]) / 0.29 * 20_000).pvalue > 0.01


def test_the_most_likely_token_is_drawn_even_when_it_alone_exceeds_top_p():
    logits = torch.tensor([0.9, 0.06, 0.04]).log()
    assert set(choose(logits, SamplingParams(temperature=1.0, top_p=0.5), 200)) == {0}


def test_top_p_of_one_draws_from_the_whole_vocabulary():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    counts = np.bincount(choose(logits, SamplingParams(temperature=1.0, top_p=1.0), 20_000), minlength=4)
    assert chisquare(counts, np.array([0.4, 0.3, 0.2, 0.1]) * 20_000).pvalue > 0.01


def test_a_nucleus_wider_than_the_sorted_candidates_is_drawn_from_whole():
    # 1,000 nearly equal tokens: the nucleus of 0.95 holds about 950 of them, far more than the 256 sorted first
    assert generation.NUCLEUS_CANDIDATES == 256
    logits = torch.linspace(0.0, 0.1, 1000)
    probabilities = torch.softmax(logits.double(), dim=-1).numpy()
    expected = nucleus(probabilities, 0.95)
    drawn = choose(logits, SamplingParams(temperature=1.0, top_p=0.95), 10_000)
    counts = np.bincount(drawn, minlength=1000)
    assert 900 < (expected > 0).sum() < 970
    assert counts[expected == 0].sum() == 0
    assert chisquare(counts[expected > 0], expected[expected > 0] * 10_000).pvalue > 0.01


def test_rows_with_a_wide_and_a_narrow_nucleus_mix_in_a_batch(monkeypatch):
    monkeypatch.setattr(generation, "NUCLEUS_CANDIDATES", 2)
    wide, narrow = torch.tensor([0.3, 0.28, 0.22, 0.2]).log(), torch.tensor([0.01, 0.01, 0.01, 0.97]).log()
    uniform = torch.tensor([0.99, 0.99, 0.0, 0.0], dtype=torch.float64)
    drawn = generation._choose(
        torch.stack([wide, narrow, wide, narrow]), SamplingParams(temperature=1.0, top_p=0.95), uniform
    )
    assert drawn.tolist() == [3, 3, 0, 3]


def test_rollouts_follow_the_models_nucleus(backbone: Backbone):
    prompt, draws = PROMPTS[2], 4000
    params = SamplingParams(n=draws, temperature=0.8, top_p=0.95, max_tokens=1)
    (group,) = sample_rollouts(backbone, [prompt], params, [7])
    with torch.no_grad():
        logits = backbone.model(torch.tensor([prompt])).logits[0, -1].double()
    expected = nucleus(torch.softmax(logits / 0.8, dim=-1).numpy(), 0.95)
    counts = np.bincount([rollout.tokens[0] for rollout in group], minlength=400)
    assert counts[expected == 0].sum() == 0
    common = expected * draws >= 5
    rest = expected[~common].sum() * draws
    observed = [*counts[common], counts[~common].sum()]
    assert chisquare(observed, [*(expected[common] * draws), rest]).pvalue > 0.01


def test_the_returned_log_probs_are_those_of_temperature_one_over_the_whole_vocabulary(backbone: Backbone):
    groups = sample_rollouts(backbone, PROMPTS, SAMPLING, SEEDS)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for rollout in group:
            with torch.no_grad():
                logits = backbone.model(torch.tensor([[*prompt, *rollout.tokens]])).logits[0].double()
            log_probs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
            expected = log_probs[range(len(rollout.tokens)), rollout.tokens].tolist()
            assert rollout.log_probs == pytest.approx(expected, abs=1e-4)
            assert all(math.isfinite(value) for value in rollout.log_probs)
