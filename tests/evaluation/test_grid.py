"""Grids of retrievers and rerankers: every cell as evaluate writes it, first stages shared, finished cells kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from configs.load import ConfigError, load_config
from evaluation import evaluate
from evaluation.grid import GridConfig, pairs_of, run_grid, validate_grid
from retrieval import BM25Index
from retrieval.reranked import RerankedRetriever


def load(*overrides: str) -> GridConfig:
    return load_config(GridConfig, None, list(overrides), check=validate_grid)


@pytest.fixture
def config(corpus_file: Path, bench_file: Path, tmp_path: Path) -> GridConfig:
    bench = [f"benches.lib.bench={bench_file}", f"benches.lib.corpus={corpus_file}"]
    rerankers = ["rerankers.by-length.model=by-length", "rerankers.by-name.model=by-name", "rerank_depth=3"]
    return load(f"out={tmp_path / 'grid'}", "retrievers.words.model=bm25", *rerankers, *bench)


@pytest.fixture(autouse=True)
def rerankers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two rerankers without a model, and the list of those that were loaded."""
    loaded: list[str] = []

    class Scorer:
        def __init__(self, name: str) -> None:
            self.name = name

        def score(self, query, documents):
            return np.array([len(d) if self.name == "by-length" else -ord(d[0]) for d in documents], dtype=float)

    def rerank(first, reranker, corpus, depth, **options):
        loaded.append(str(reranker))
        return RerankedRetriever(first, Scorer(str(reranker)), lambda skill_id: corpus.get(skill_id).name, depth)

    monkeypatch.setattr("evaluation.run.with_reranker", rerank)
    return loaded


def test_each_cell_is_what_evaluate_writes(config: GridConfig, corpus_file: Path, bench_file: Path, tmp_path: Path):
    run_grid(config)
    for name, options in {
        "none": {},
        "by-length": {"rerank": "by-length", "rerank_depth": 3},
        "by-name": {"rerank": "by-name", "rerank_depth": 3},
    }.items():
        alone = evaluate("bm25", corpus_file, bench_file, tmp_path / "alone.json", **options)
        cell = json.loads((tmp_path / "grid" / "results" / "lib" / f"words x {name}.json").read_text())
        del alone["seconds"], cell["seconds"]
        assert cell == alone


def test_rerankers_of_a_retriever_share_its_search(config: GridConfig, monkeypatch: pytest.MonkeyPatch):
    searches = []
    original = BM25Index.search
    monkeypatch.setattr(
        BM25Index, "search", lambda self, queries, k, **kw: searches.append(k) or original(self, queries, k, **kw)
    )
    run_grid(config)
    assert searches == [100]


def test_finished_cells_are_kept_and_lost_ones_made_again(config: GridConfig, rerankers: list[str], tmp_path: Path):
    first = run_grid(config)
    assert rerankers == ["by-length", "by-name"]
    (tmp_path / "grid" / "results" / "lib" / "words x by-name.json").unlink()
    assert run_grid(config) == first
    assert rerankers == ["by-length", "by-name", "by-name"]
    config.rerank_depth = 2  # another pipeline: those with a reranker are evaluated again
    run_grid(config)
    assert rerankers[3:] == ["by-length", "by-name"]


def test_an_interrupted_grid_leaves_the_table_of_what_is_done(
    config: GridConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from evaluation import run

    original = run.with_reranker

    def broken(first, reranker, *rest, **options):
        if reranker == "by-name":
            raise ValueError("no such model")
        return original(first, reranker, *rest, **options)

    monkeypatch.setattr("evaluation.run.with_reranker", broken)
    with pytest.raises(ValueError, match="no such model"):
        run_grid(config)
    rows = json.loads((tmp_path / "grid" / "grid.json").read_text())["rows"]
    assert [(row["reranker"], row["benches"]["lib"]["n"]) for row in rows] == [
        *(("none", 1), ("by-length", 1), ("by-name", 0))
    ]
    assert "words × by-length" in (tmp_path / "grid" / "grid.md").read_text()


def test_the_shipped_grid_has_the_rows_of_table_4_with_its_figures():
    config = load_config(GridConfig, "grid_table4", ["out=x"], check=validate_grid)
    from evaluation.paper_figures import TABLES

    ours = {f"{retriever} x {reranker}" for retriever, reranker in pairs_of(config)}
    assert ours == TABLES["table4"].keys() - {"skillrouter-0.6b x skillrouter-0.6b"}
    assert config.rerank_depth == 20


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("benches.a.bench=x",), "retrievers is empty"),
        (("retrievers.a.model=bm25",), "benches is empty"),
        (("retrievers.a.model=bm25", "benches.a.label=x"), r"benches\.a\.bench is ''"),
        (("retrievers.a.model=bm25", "benches.a.bench=x", "pairs=[a x b]"), "pairs has 'a x b'"),
        (("retrievers.a.modle=bm25", "benches.a.bench=x"), "modle"),
    ],
)
def test_a_grid_that_cannot_run_is_refused_by_key(overrides: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        load("out=x", *overrides)
