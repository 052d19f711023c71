"""The example of a reward term of one's own; tests/trainers/test_grpo.py runs it in a training run."""

from __future__ import annotations

import pytest
import torch

from configs.schema import TermConfig
from rewards import RewardBatch, load_terms

PATH = "examples.custom_reward:follows_pattern"


def batch_of(rationales: list[str]) -> RewardBatch:
    """One query, one candidate; the example reads the rationales alone."""
    count = len(rationales)
    return RewardBatch(
        query_ids=["q"],
        queries=["draw it"],
        rationales=rationales,
        lengths=torch.ones(count, dtype=torch.long),
        group=torch.zeros(count, dtype=torch.long),
        document_ids=["a"],
        query_embeddings=torch.ones(1, 1),
        rollout_embeddings=torch.ones(count, 1),
        document_embeddings=torch.ones(1, 1),
        positive=torch.zeros(1, dtype=torch.long),
        negatives=torch.ones(1, 1, dtype=torch.bool),
    )


def sentence(words: int) -> str:
    return "The user needs skills for " + " ".join(["charts"] * (words - 5)) + "."


@pytest.mark.parametrize(
    ("rationale", "value"),
    [
        ("The user needs skills for drawing charts.", 1.0),
        (sentence(31), 1.0),
        (sentence(32), 0.0),
        ("The user needs skills for drawing charts", 0.0),
        ("The user needs skills for charts. And for forms.", 0.0),
        ("Skills for drawing charts.", 0.0),
        ("", 0.0),
    ],
)
def test_it_rewards_one_short_sentence_of_the_taught_pattern(rationale: str, value: float):
    (term,) = load_terms({"pattern": TermConfig(function=PATH)})
    assert term(batch_of([rationale])).tolist() == [value]


def test_its_parameter_comes_from_the_configuration():
    (term,) = load_terms({"pattern": TermConfig(function=PATH, params={"longest": 8})})
    assert term(batch_of([sentence(7), sentence(8), sentence(7)])).tolist() == [1.0, 0.0, 1.0]
