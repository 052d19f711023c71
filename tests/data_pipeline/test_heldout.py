"""The held-out tenth: stable, by skill, of the right size."""

from __future__ import annotations

import hashlib

import pytest

from data_pipeline import is_heldout

IDS = [f"category{i % 7}/skill-{i}" for i in range(20_000)]


@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_share(fraction: float) -> None:
    # Four standard deviations of a binomial share over 20,000 ids are below 0.013.
    assert sum(is_heldout(i, fraction) for i in IDS) / len(IDS) == pytest.approx(fraction, abs=0.013)


def test_the_hash_is_the_same_on_every_machine() -> None:
    for skill_id in IDS[:200]:
        expected = int(hashlib.sha256(f"heldout:{skill_id}".encode()).hexdigest()[:16], 16) / 16**16 < 0.1
        assert is_heldout(skill_id) == expected


def test_a_larger_fraction_holds_out_a_superset() -> None:
    assert all(is_heldout(i, 0.2) for i in IDS if is_heldout(i, 0.1))


def test_extremes() -> None:
    assert not any(is_heldout(i, 0.0) for i in IDS[:100])
    assert all(is_heldout(i, 1.0) for i in IDS[:100])


def test_a_fraction_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match="fraction = 10"):
        is_heldout("a", 10)
