"""From the name of a model to a ranking, and the stored fusion weight."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retrieval import (
    BM25Index,
    DenseIndex,
    DenseRetriever,
    HybridRetriever,
    fuse,
    open_retriever,
    read_fusion_weight,
    write_fusion_weight,
)
from retrieval.retriever import split_model_spec

IDS = ["pdf", "chart", "table"]
TEXTS = ["convert a pdf document", "chart of a table", "find the table in a pdf"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("bm25", ("bm25", "")),
        ("runs/demo", ("dense", "runs/demo")),
        ("hybrid:runs/demo", ("hybrid", "runs/demo")),
        (Path("runs/demo"), ("dense", "runs/demo")),
    ],
)
def test_a_model_is_named_by_kind_and_folder(spec, expected):
    assert split_model_spec(spec) == expected


@pytest.mark.parametrize("spec", ["", "hybrid", "hybrid:"])
def test_an_incomplete_name_is_refused(spec):
    with pytest.raises(ValueError, match="expected bm25, a model folder, or hybrid:FOLDER"):
        split_model_spec(spec)


def test_bm25_needs_no_model():
    assert open_retriever("bm25", IDS, TEXTS).search(["chart"], 1).ids == [["chart"]]


def test_a_folder_is_searched_by_its_own_embeddings(tiny_model, tmp_path):
    from models.encoder import load_encoder

    folder = tiny_model()
    encoder = load_encoder(folder)
    scores = encoder.encode_queries(["find pdf"]) @ encoder.encode_documents(TEXTS).T
    ranking = open_retriever(folder, IDS, TEXTS, cache_dir=tmp_path).search(["find pdf"], 3)
    assert ranking.ids[0] == [IDS[i] for i in np.argsort(-scores[0])]
    np.testing.assert_allclose(ranking.scores[0], np.sort(scores[0])[::-1], atol=1e-6)


def test_a_hybrid_takes_the_weight_stored_with_the_model(tiny_model, tmp_path):
    folder = tiny_model()
    write_fusion_weight(folder, 0.3, metric="recall@10")
    retriever = open_retriever(f"hybrid:{folder}", IDS, TEXTS, cache_dir=tmp_path)
    assert isinstance(retriever, HybridRetriever)
    assert retriever.weight == 0.3


def test_a_hybrid_without_a_weight_says_how_to_give_one(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"retrieval\.json.*--fusion-weight"):
        open_retriever(f"hybrid:{tiny_model()}", IDS, TEXTS, cache_dir=tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing may be encoded before the weight is known"


def test_a_hybrid_fuses_its_two_lists(hash_encoder):
    encoder = hash_encoder()
    bm25, dense = (
        BM25Index(IDS, TEXTS),
        DenseRetriever(encoder, DenseIndex(IDS, encoder.encode_documents(TEXTS))),
    )
    queries = ["chart pdf", "no such word"]
    expected = fuse(dense.search(queries, 3), bm25.search(queries, 3, matched_only=True), 0.4, 2)
    found = HybridRetriever(dense, bm25, 0.4).search(queries, 2)
    assert found.ids == expected.ids
    assert found.ids[1] == dense.search(queries, 2).ids[1], "unmatched documents must not earn a lexical score"


def test_a_stored_weight_is_read_back_with_its_details(tmp_path):
    path = write_fusion_weight(tmp_path, 0.6, metric="recall@10")
    assert json.loads(path.read_text()) == {"fusion_weight": 0.6, "metric": "recall@10"}
    assert read_fusion_weight(tmp_path) == 0.6


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"fusion_weight": 2}', '{"fusion_weight": "half"}'])
def test_a_weight_that_is_missing_or_impossible_is_refused(tmp_path, content):
    (tmp_path / "retrieval.json").write_text(content)
    with pytest.raises(ValueError, match="--fusion-weight"):
        read_fusion_weight(tmp_path)


def test_importing_retrieval_loads_no_model_library():
    code = "import retrieval, sys; print([m for m in ('torch', 'sentence_transformers', 'faiss') if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert out.stdout.strip() == "[]", out.stderr
