"""Retrieve, then rerank: what is reordered, what keeps its place, and ties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from retrieval.ranking import Ranking
from retrieval.reranked import RerankedRetriever, rerank_row


class Fixed:
    """Ranks the same documents for every request, as deep as it is asked."""

    def __init__(self, ids: str):
        self.ids = list(ids)
        self.asked: list[int] = []

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        self.asked.append(k)
        ids = self.ids[:k]
        return Ranking([list(ids) for _ in queries], np.tile(np.linspace(1, 0, len(ids)), (len(queries), 1)))


class Table:
    """Scores by a table, and notes what it was asked."""

    def __init__(self, **scores: float):
        self.scores = scores
        self.asked: list[tuple[str, list[str]]] = []

    def score(self, query: str, documents: Sequence[str]) -> np.ndarray:
        self.asked.append((query, list(documents)))
        return np.array([self.scores[d.removeprefix("text of ")] for d in documents], dtype=np.float32)


def reranked(first: Fixed, table: Table, depth: int) -> RerankedRetriever:
    return RerankedRetriever(first, table, lambda skill_id: f"text of {skill_id}", depth)


def test_the_first_results_are_ordered_by_score_and_the_rest_keep_their_order():
    first, table = Fixed("abcdef"), Table(a=-1.0, b=2.0, c=0.5)
    ranking = reranked(first, table, 3).search(["q"], 6)
    assert ranking.ids == [list("bcadef")]
    assert ranking.scores[0].tolist() == [2.0, 0.5, -1.0, -2.0, -3.0, -4.0]
    assert table.asked == [("q", ["text of a", "text of b", "text of c"])]


def test_as_many_are_scored_when_fewer_are_wanted():
    first, table = Fixed("abcdef"), Table(a=0, b=1, c=2, d=3)
    ranking = reranked(first, table, 4).search(["q", "r"], 2)
    assert first.asked == [4]
    assert ranking.ids == [["d", "c"], ["d", "c"]]
    assert ranking.scores.tolist() == [[3, 2], [3, 2]]


def test_equal_scores_keep_the_retrievers_order():
    ranking = reranked(Fixed("abcd"), Table(a=1, b=2, c=2, d=1), 4).search(["q"], 4)
    assert ranking.ids == [list("bcad")]


def test_a_library_smaller_than_the_depth_is_scored_whole():
    ranking = reranked(Fixed("ab"), Table(a=1, b=2), 20).search(["q"], 10)
    assert ranking.ids == [["b", "a"]]


def test_a_request_for_which_nothing_was_found_stays_empty():
    assert reranked(Fixed(""), Table(), 5).search(["q"], 3).ids == [[]]


def test_no_requests_give_no_rankings():
    assert reranked(Fixed("ab"), Table(), 5).search([], 3).ids == []


def test_scores_descend_over_random_rankings():
    generator = np.random.default_rng(0)
    for _ in range(50):
        ids = [str(i) for i in range(int(generator.integers(1, 30)))]
        scores = generator.integers(-3, 3, size=int(generator.integers(1, len(ids) + 1))).astype(float)
        found, values = rerank_row(ids, scores)
        assert sorted(found) == sorted(ids)
        assert found[len(scores) :] == ids[len(scores) :]
        assert (np.diff(values) <= 0).all()
        expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        assert found[: len(scores)] == [ids[i] for i in expected]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_names_its_document(bad: float):
    with pytest.raises(ValueError, match=r"scores document 'b' with (nan|inf)"):
        rerank_row(["a", "b"], np.array([1.0, bad]))


def test_a_depth_or_length_below_one_is_refused():
    with pytest.raises(ValueError, match="rerank depth is 0"):
        reranked(Fixed("ab"), Table(), 0)
    with pytest.raises(ValueError, match="k is 0"):
        reranked(Fixed("ab"), Table(), 5).search(["q"], 0)
