"""One request against a library."""

from __future__ import annotations

import importlib

import pytest

from data_pipeline.corpus import SkillCorpus
from evaluation import Hit, search
from retrieval import BM25Index


def test_hits_come_best_first_with_what_a_reader_needs(corpus_file):
    corpus = SkillCorpus.from_jsonl(corpus_file)
    scores = BM25Index(corpus.ids, corpus.documents()).scores("draw bar charts")
    hits = search("bm25", corpus_file, "draw bar charts", k=2)
    assert hits[0].score == pytest.approx(max(scores))
    assert hits[0] == Hit("chart-maker", "Make charts", hits[0].score, "Draws bar and line charts from a table.")
    assert len(hits) == 2
    assert hits[0].score > hits[1].score


def test_a_small_corpus_gives_all_it_has(corpus_file):
    assert len(search("bm25", corpus_file, "draw bar charts", k=50)) == 4


@pytest.mark.parametrize("request_text", ["", " \n"])
def test_an_empty_request_is_refused(corpus_file, request_text):
    with pytest.raises(ValueError, match="the request is empty"):
        search("bm25", corpus_file, request_text)


def test_hybrid_needs_a_model(corpus_file):
    with pytest.raises(ValueError, match="expected a model folder, not bm25"):
        search("bm25", corpus_file, "draw bar charts", hybrid=True)


def test_k_below_one_is_refused(corpus_file):
    with pytest.raises(ValueError, match="k is 0"):
        search("bm25", corpus_file, "draw bar charts", k=0)


@pytest.mark.parametrize(
    ("model", "hybrid", "spec"),
    [("run", False, "run"), ("run", True, "hybrid:run"), ("hybrid:run", True, "hybrid:run")],
)
def test_hybrid_asks_for_the_fusion_of_the_model_with_bm25(corpus_file, monkeypatch, model, hybrid, spec):
    opened = []

    def open_bm25(asked, ids, texts, **options):
        opened.append(asked)
        return BM25Index(ids, texts)

    # By import: the package gives the name of this module to its function.
    module = importlib.import_module("evaluation.search")
    monkeypatch.setattr(module, "open_retriever", open_bm25)
    monkeypatch.setattr(module, "document_format", lambda asked: "skillreason")
    search(model, corpus_file, "draw bar charts", hybrid=hybrid)
    assert opened == [spec]
