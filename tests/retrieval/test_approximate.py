"""IVF and HNSW against exact search: recall, the filter, the file, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.approximate import TARGET_RECALL, ApproximateIndex

D = 24


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def documents() -> np.ndarray:
    """Overlapping clusters: each document is one of 60 centers with as much noise again."""
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(60, D))
    return unit(centers[generator.integers(60, size=3000)] + generator.normal(size=(3000, D)))


@pytest.fixture(scope="module")
def requests(documents: np.ndarray) -> np.ndarray:
    generator = np.random.default_rng(1)
    return unit(documents[generator.integers(len(documents), size=80)] + 0.15 * generator.normal(size=(80, D)))


IDS = [f"s{i}" for i in range(3000)]


@pytest.fixture(scope="module", params=["ivf", "hnsw"])
def index(request: pytest.FixtureRequest, documents: np.ndarray) -> ApproximateIndex:
    return ApproximateIndex(IDS, documents, request.param)


def best(documents: np.ndarray, query: np.ndarray, k: int, among: np.ndarray | None = None) -> list[str]:
    """The ``k`` best of a full float64 product."""
    among = np.arange(len(documents)) if among is None else among
    scores = documents[among].astype(np.float64) @ query.astype(np.float64)
    return [IDS[i] for i in among[np.argsort(-scores, kind="stable")][:k]]


def test_the_tuned_effort_finds_what_it_says(index, documents, requests):
    measured = index.tune(requests)
    expected = [best(documents, query, 10) for query in requests[40:]]
    found = index.search(requests[40:], 10).ids
    recall = np.mean([len({*row} & {*exact}) / 10 for row, exact in zip(found, expected, strict=True)])
    assert measured == pytest.approx(recall)
    assert recall >= TARGET_RECALL - 0.02


def test_recall_of_ivf_is_total_when_it_looks_into_every_list(documents, requests):
    index = ApproximateIndex(IDS, documents, "ivf", effort=10_000)
    assert index.recall(requests) == 1.0


def test_recall_falls_with_the_effort(documents, requests):
    index = ApproximateIndex(IDS, documents, "ivf", effort=1)
    expected = [best(documents, query, 10) for query in requests]
    found = index.search(requests, 10).ids
    recall = np.mean([len({*row} & {*exact}) / 10 for row, exact in zip(found, expected, strict=True)])
    assert index.recall(requests) == pytest.approx(recall)
    assert recall < 0.9


def test_scores_are_the_exact_products_best_first(index, documents, requests):
    ranking = index.search(requests[:5], 10)
    for ids, scores, query in zip(ranking.ids, ranking.scores, requests, strict=False):
        rows = [int(skill_id[1:]) for skill_id in ids]
        np.testing.assert_allclose(scores, documents[rows].astype(np.float64) @ query.astype(np.float64), atol=1e-12)
        assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_search_within_some_documents_is_exact(index, documents, requests, size):
    within = np.sort(np.random.default_rng(size).choice(3000, size, replace=False))
    ranking = index.search(requests, 10, within=within)
    assert ranking.ids == [best(documents, query, 10, within) for query in requests]


def test_more_results_than_the_effort_reaches_are_found_exactly(documents, requests):
    index = ApproximateIndex(IDS, documents, "ivf", effort=1)
    assert index.search(requests[:3], 2000).ids == [best(documents, query, 2000) for query in requests[:3]]


def test_a_saved_index_finds_the_same(index, documents, requests, tmp_path):
    index.save(tmp_path / "vectors.faiss")
    loaded = ApproximateIndex.load(tmp_path / "vectors.faiss", IDS, documents, index.kind, index.effort)
    assert loaded.search(requests, 10).ids == index.search(requests, 10).ids
    assert loaded.parameters == index.parameters


def test_a_damaged_file_is_named(documents, tmp_path):
    path = tmp_path / "vectors.faiss"
    path.write_bytes(b"not FAISS")
    with pytest.raises(ValueError, match=r"vectors\.faiss: not an index that FAISS can read"):
        ApproximateIndex.load(path, IDS, documents, "ivf", 8)


def test_a_file_of_other_vectors_is_refused(documents, tmp_path):
    ApproximateIndex(IDS[:500], documents[:500], "ivf").save(tmp_path / "vectors.faiss")
    with pytest.raises(ValueError, match="of 500 vectors with 24 components; expected IndexIVFFlat of \\[3000, 24\\]"):
        ApproximateIndex.load(tmp_path / "vectors.faiss", IDS, documents, "ivf", 8)
    with pytest.raises(ValueError, match="expected IndexHNSWFlat"):
        ApproximateIndex.load(tmp_path / "vectors.faiss", IDS[:500], documents[:500], "hnsw", 8)


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_tiny_library_can_be_searched(kind, count, documents, requests):
    index = ApproximateIndex(IDS[:count], documents[:count], kind)
    assert index.tune(requests[:4]) == 1.0
    assert index.search(requests, 5).ids == [best(documents[:count], query, 5) for query in requests]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"kind": "lsh"}, "kind is 'lsh'; expected one of ivf, hnsw"), ({"kind": "ivf", "effort": 0}, "effort is 0")],
)
def test_impossible_indexes_are_refused(arguments, message, documents):
    with pytest.raises(ValueError, match=message):
        ApproximateIndex(IDS, documents, **arguments)


def test_one_request_is_too_few_to_measure_on(index, requests):
    with pytest.raises(ValueError, match="1 requests to measure recall on"):
        index.tune(requests[:1])
