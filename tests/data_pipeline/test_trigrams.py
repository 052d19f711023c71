"""Trigram Jaccard against plain Python sets."""

from __future__ import annotations

import random

import pytest

from data_pipeline import Skill
from data_pipeline.trigrams import TrigramSets, copy_text


def test_by_hand() -> None:
    # abc bcd cde | bcd cde def: two shared of four
    assert TrigramSets(["abcde", "bcdef"]).jaccard_to(0, [0, 1]).tolist() == [1.0, 0.5]


def test_texts_below_three_characters_share_nothing() -> None:
    assert TrigramSets(["ab", "ab", "abc"]).jaccard_to(0, [1, 2]).tolist() == [0.0, 0.0]


def test_equals_python_sets_on_random_texts() -> None:
    generator = random.Random(0)
    texts = ["".join(generator.choices("ab é技🙂", k=generator.randint(0, 60))) for _ in range(40)]
    sets = [{text[i : i + 3] for i in range(len(text) - 2)} for text in texts]
    trigrams = TrigramSets(texts)
    for left in range(40):
        expected = [len(sets[left] & other) / len(sets[left] | other) if sets[left] | other else 0.0 for other in sets]
        assert trigrams.jaccard_to(left, range(40)).tolist() == pytest.approx(expected, abs=1e-15)


def test_the_compared_text_is_folded_and_cut() -> None:
    skill = Skill("a", "My  Skill", "Does\nTHINGS", " A\t\tb " + "c" * 5000)
    assert copy_text(skill) == "my skill does things a b " + "c" * 3996
