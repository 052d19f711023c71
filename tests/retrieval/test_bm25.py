"""BM25 against the written-out formula, and the behaviour at the edges of a corpus."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus import SkillCorpus
from retrieval import BM25Index
from retrieval.bm25 import tokenize

TEXTS = ["red apple pie apple", "green apple", "blue sky over the sea today"]


def lucene_bm25(query: list[str], texts: list[str], k1: float, b: float) -> list[float]:
    """Σ idf · tf / (tf + k1 (1 - b + b len/avglen)), idf = ln(1 + (N - df + 0.5)/(df + 0.5)), in float64."""
    documents = [text.split() for text in texts]
    average = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in query:
            df = sum(word in other for other in documents)
            tf = document.count(word)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(document) / average))
        scores.append(score)
    return scores


def test_scores_are_those_of_the_formula():
    expected = lucene_bm25(["apple", "sea", "apple"], TEXTS, k1=1.2, b=0.6)
    index = BM25Index(["a", "b", "c"], TEXTS, k1=1.2, b=0.6)
    np.testing.assert_allclose(index.scores("Apple SEA apple"), expected, rtol=1e-5)


def test_ranking_is_best_first_with_its_scores():
    expected = lucene_bm25(["apple", "pie"], TEXTS, k1=1.5, b=0.75)
    ranking = BM25Index(["a", "b", "c"], TEXTS).search(["apple pie"], 3)
    assert ranking.ids == [["a", "b", "c"]]
    np.testing.assert_allclose(ranking.scores, [expected], rtol=1e-5)


def test_tokens_are_lower_cased_letters_and_digits_of_any_script():
    assert tokenize("CI/CD-Pipeline v2.0_beta für Überblick") == [
        *("ci", "cd", "pipeline", "v2", "0", "beta", "für", "überblick"),
    ]


def test_equal_scores_keep_corpus_order():
    ids = [f"s{i}" for i in (5, 3, 9, 1, 7)]
    ranking = BM25Index(ids, ["same text"] * 5).search(["text"], 3)
    assert ranking.ids == [["s5", "s3", "s9"]]


def test_k_is_clipped_to_the_corpus():
    ranking = BM25Index(["a", "b", "c"], TEXTS).search(["apple", "sky"], 50)
    assert [len(row) for row in ranking.ids] == [3, 3]
    assert ranking.scores.shape == (2, 3)


@pytest.mark.parametrize("query", ["", "  ", "?!", "zzz unknown"])
def test_a_query_without_known_words_scores_zero_in_corpus_order(query):
    ranking = BM25Index(["c", "a", "b"], TEXTS).search([query], 2)
    assert ranking.ids == [["c", "a"]]
    assert ranking.scores.tolist() == [[0.0, 0.0]]


def test_matched_only_leaves_out_documents_without_a_shared_word():
    ranking = BM25Index(["a", "b", "c"], TEXTS).search(["apple", "", "sky"], 3, matched_only=True)
    assert [sorted(row) for row in ranking.ids] == [["a", "b"], [], ["c"]]
    assert np.isneginf(ranking.scores[1]).all()


def test_a_search_within_some_documents_keeps_the_scores_of_the_whole_corpus():
    expected = lucene_bm25(["apple", "sky"], TEXTS, k1=1.5, b=0.75)
    ranking = BM25Index(["a", "b", "c"], TEXTS).search(["apple sky"], 5, within=np.array([1, 2]))
    assert [sorted(row) for row in ranking.ids] == [["b", "c"]]
    np.testing.assert_allclose(ranking.scores[0], sorted(expected[1:], reverse=True), rtol=1e-5)


def test_matched_only_holds_within_some_documents():
    ranking = BM25Index(["a", "b", "c"], TEXTS).search(["apple"], 5, matched_only=True, within=np.array([1, 2]))
    assert ranking.ids == [["b"]]


def test_a_saved_index_gives_the_same_scores(tmp_path):
    index = BM25Index(["a", "b", "c"], TEXTS, k1=1.2, b=0.6)
    index.save(tmp_path / "bm25")
    loaded = BM25Index.load(tmp_path / "bm25", ["a", "b", "c"])
    for query in ("apple pie apple", "sea today", "unknown", ""):
        assert loaded.scores(query).tolist() == index.scores(query).tolist()


def test_a_saved_index_of_a_corpus_without_words_can_be_searched(tmp_path):
    BM25Index(["a", "b"], ["", "--"]).save(tmp_path / "bm25")
    assert BM25Index.load(tmp_path / "bm25", ["a", "b"]).search(["apple"], 2).ids == [["a", "b"]]


def test_a_saved_index_of_other_documents_is_refused(tmp_path):
    BM25Index(["a", "b", "c"], TEXTS).save(tmp_path / "bm25")
    with pytest.raises(ValueError, match="BM25 index of 3 documents for 2 ids"):
        BM25Index.load(tmp_path / "bm25", ["a", "b"])


@pytest.mark.parametrize("name", ["data.csc.index.npy", "vocab.index.json", "params.index.json"])
def test_a_damaged_saved_index_is_named(tmp_path, name):
    BM25Index(["a", "b", "c"], TEXTS).save(tmp_path / "bm25")
    (tmp_path / "bm25" / name).write_bytes(b"{")
    with pytest.raises(ValueError, match="bm25: not a BM25 index that bm25s wrote"):
        BM25Index.load(tmp_path / "bm25", ["a", "b", "c"])


def test_a_corpus_without_words_can_be_searched():
    assert BM25Index(["a", "b"], ["", "--"]).search(["apple"], 2).ids == [["a", "b"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": ["a", "a"], "texts": ["x", "y"]}, "'a' occurs twice"),
        ({"ids": ["a"], "texts": ["x", "y"]}, "1 ids for 2 texts"),
        ({"ids": [], "texts": []}, "at least one document"),
        ({"ids": ["a"], "texts": ["x"], "b": 1.5}, "b is 1.5"),
        ({"ids": ["a"], "texts": ["x"], "k1": -1}, "k1 is -1"),
    ],
)
def test_impossible_indexes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BM25Index(**arguments)


def test_k_below_one_is_refused():
    with pytest.raises(ValueError, match="k is 0"):
        BM25Index(["a"], ["x"]).search(["x"], 0)


@pytest.mark.data
@pytest.mark.parametrize(
    ("bench", "expected"), [("dev_bench", (66.7, 85.8, 89.2)), ("dev_bench_hard", (1.7, 8.3, 8.3))]
)
def test_reproduces_the_published_figures_on_real_skills(data_dir: Path, bench, expected):
    corpus = SkillCorpus.from_jsonl(data_dir / "skills.jsonl.gz")
    rows = [json.loads(line) for line in (data_dir / f"{bench}.jsonl").read_text().splitlines()]
    ranking = BM25Index(corpus.ids, corpus.documents()).search([row["query"] for row in rows], 10)
    found = [
        100 * np.mean([row["skill_id"] in ids[:k] for row, ids in zip(rows, ranking.ids, strict=True)])
        for k in (1, 5, 10)
    ]
    assert tuple(np.round(found, 1)) == expected
