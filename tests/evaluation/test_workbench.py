"""What evaluations in a row share, and when a result on disk is the one that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation import evaluate
from evaluation.rationales import Augment
from evaluation.settings import is_current, result_settings
from evaluation.workbench import FirstStage, SearchedOnce, Workbench
from retrieval import BM25Index


class Counting:
    def __init__(self) -> None:
        self.index = BM25Index(["a", "b"], ["apple", "banana"])
        self.asked: list[tuple[list[str], int]] = []

    def search(self, queries, k):
        self.asked.append((list(queries), k))
        return self.index.search(queries, k)


def test_the_same_search_is_made_once_and_another_one_again():
    counting = Counting()
    retriever = SearchedOnce(counting)
    first, second = retriever.search(["apple"], 2), retriever.search(["apple"], 2)
    assert first is second
    retriever.search(["apple"], 1)
    retriever.search(["banana"], 1)
    assert counting.asked == [(["apple"], 2), (["apple"], 1), (["banana"], 1)]


def test_a_first_stage_is_forgotten_with_its_benchmark(corpus_file: Path, bench_file: Path, tmp_path: Path):
    workbench, made = Workbench(), []

    def make() -> FirstStage:
        made.append(1)
        return FirstStage(Counting(), {})

    workbench.benchmark(bench_file, corpus_file, None)
    workbench.first_stage("bm25", make)
    workbench.first_stage("bm25", make)
    assert len(made) == 1
    other = tmp_path / "other.jsonl"
    other.write_bytes(bench_file.read_bytes())
    workbench.benchmark(other, corpus_file, None)
    workbench.first_stage("bm25", make)
    assert len(made) == 2


def test_a_result_is_reused_until_a_setting_or_a_file_it_read_changes(
    corpus_file: Path, bench_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, searches = tmp_path / "out.json", []
    original = BM25Index.search
    monkeypatch.setattr(
        BM25Index, "search", lambda self, queries, k, **kw: searches.append(k) or original(self, queries, k, **kw)
    )
    arguments = ("bm25", corpus_file, bench_file, out)
    first = evaluate(*arguments, reuse=True)
    assert evaluate(*arguments, reuse=True) == first
    assert searches == [100]
    evaluate(*arguments, reuse=True, depth=50)  # another setting
    assert searches == [100, 50]
    bench_file.write_text("".join(bench_file.read_text().splitlines(keepends=True)[:2]))
    assert evaluate(*arguments, reuse=True, depth=50)["n_queries"] == 2  # another benchmark under the same name
    out.write_text("{half")
    assert evaluate(*arguments, reuse=True, depth=50)["n_queries"] == 2
    evaluate(*arguments)
    assert searches == [100, 50, 50, 50, 100]


def test_settings_follow_the_weights_of_local_models(tmp_path: Path):
    for name in ("encoder", "reranker/export"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"1")
    (tmp_path / "encoder" / "modules.json").write_text("[]")

    def settings(**options):
        return result_settings(str(tmp_path / "encoder"), "x", rerank=str(tmp_path / "reranker"), **options)

    before = settings()
    assert before["digests"].keys() == {"model", "rerank"}
    (tmp_path / "reranker" / "export" / "model.safetensors").write_bytes(b"2")
    assert settings()["digests"]["rerank"] != before["digests"]["rerank"]
    assert settings()["digests"]["model"] == before["digests"]["model"]
    (tmp_path / "encoder" / "model.safetensors").write_bytes(b"2")
    assert settings()["digests"]["model"] != before["digests"]["model"]


def test_a_hybrids_stored_weight_is_one_of_its_settings(tmp_path: Path):
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "retrieval.json").write_text('{"fusion_weight": 0.25}')
    assert result_settings(f"hybrid:{tmp_path}", "x")["fusion_weight"] == 0.25


def test_a_result_with_rationales_says_whose_and_keeps_them_beside_it(
    corpus_file: Path, bench_file: Path, tmp_path: Path
):
    given, out = tmp_path / "given.jsonl", tmp_path / "out.json"
    given.write_text(json.dumps({"query_id": "q3", "rationale": "summarizes a recording"}) + "\n")
    plain = evaluate("bm25", corpus_file, bench_file)
    found = evaluate("bm25", corpus_file, bench_file, out, augment=Augment("file", file=str(given)))
    # "zzz" matches nothing; the words of the rationale stand in the one skill that is its target
    assert plain["queries"][2]["scores"][0] == 0
    assert found["queries"][2]["ids"][0] == "meeting-notes"
    assert [row["ids"] for row in found["queries"][:2]] == [row["ids"] for row in plain["queries"][:2]]
    assert (found["augment"]["source"], found["augment"]["requests"]) == ("file", 1)
    assert found["seconds"]["generate"] == 0
    settings = json.loads(out.read_text())["settings"]
    assert settings["augment"] == {"source": "file", "file": str(given)}
    assert is_current(out, settings)
    assert not is_current(tmp_path / "none.json", settings)
