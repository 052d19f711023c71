"""Training-test isolation: normalization, exact matches, near neighbours and the table."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.isolation import audit_isolation, isolation_table, normalize

TRAINING = [
    ("t1", "Turn the meeting recording into minutes with decisions."),
    ("t2", "Find out why the nightly build of our mobile app fails."),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Hello,\tWORLD! ", "hello world"),
        ("ﬁle—name", "file name"),  # NFKC splits the ligature, the dash goes
        ("Straße", "strasse"),
        ("x²  +  y", "x2 y"),
    ],
)
def test_normalization(text: str, expected: str) -> None:
    assert normalize(text) == expected


def test_the_same_request_in_other_spelling_is_an_exact_match() -> None:
    report = audit_isolation("b", [("q", "turn the MEETING recording -- into minutes, with decisions")], TRAINING)
    assert (report.exact, report.near, report.pairs[0].record_id, report.pairs[0].similarity) == (1, 1, "t1", 1.0)
    assert report.max_similarity == 0.0  # of those that are no exact match: there are none


def test_a_lightly_rewritten_request_is_near_and_an_unrelated_one_is_not() -> None:
    test = [
        ("near", "Find out why the nightly builds of our mobile app failed."),
        ("far", "Suggest wines for a dinner with mushrooms."),
    ]
    report = audit_isolation("b", test, TRAINING)
    assert (report.exact, report.near) == (0, 1)
    assert [(p.query_id, p.record_id) for p in report.pairs] == [("near", "t2")]
    assert 0.85 <= report.max_similarity < 1.0


def test_the_similarity_is_the_cosine_of_weighted_3_to_5_grams() -> None:
    """Against a direct computation with dictionaries."""
    texts = ["abcde", "abcdf"]

    def grams(text: str) -> list[str]:
        return [text[i : i + n] for n in (3, 4, 5) for i in range(len(text) - n + 1)]

    vocabulary = sorted({g for t in texts for g in grams(t)})
    counts = np.array([[grams(t).count(g) for g in vocabulary] for t in texts], dtype=float)
    weights = np.log((1 + 2) / (1 + (counts > 0).sum(0))) + 1
    a, b = counts * weights
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    report = audit_isolation("b", [("q", "abcde")], [("t", "abcdf")], near=0.9, review=0.1)
    assert report.max_similarity == pytest.approx(expected, abs=1e-4)


def test_every_pair_above_the_review_threshold_is_listed_most_similar_first() -> None:
    test = [("q", "Find out why the nightly build of our mobile app fails today.")]
    report = audit_isolation("b", test, [*TRAINING, ("t3", "Find out why the build of our mobile app fails.")])
    assert [p.record_id for p in report.pairs] == ["t2", "t3"]
    assert report.pairs[0].similarity > report.pairs[1].similarity >= 0.70


def test_empty_sets_and_crossed_thresholds_are_refused() -> None:
    with pytest.raises(ValueError, match="b: 0 test and 2 training requests"):
        audit_isolation("b", [], TRAINING)
    with pytest.raises(ValueError, match=r"isolation.review is 0.9; expected at most isolation.near, 0.85"):
        audit_isolation("b", [("q", "x")], TRAINING, review=0.9)


def test_the_table_has_a_row_per_benchmark() -> None:
    report = audit_isolation("SkillBench", [("q", "Suggest wines for a dinner.")], TRAINING)
    assert isolation_table([report]).splitlines()[2].startswith("| SkillBench | 1 | 0 | 0 | ")


def test_the_table_names_the_threshold_that_was_used():
    assert "| ≥ 0.85 |" in isolation_table([])
    assert "| ≥ 0.90 |" in isolation_table([], 0.9)
