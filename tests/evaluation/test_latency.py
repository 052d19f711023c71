"""Latency: the drawn requests, the phases of each path, statistics by hand, resuming, and what is found on the way."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline import SkillCorpus
from evaluation import latency
from evaluation.latency import LatencyConfig, draw, measure_latency, statistics, time_path
from evaluation.latency_paths import (
    InferencePath,
    LoadedModel,
    Setup,
    Stopwatch,
    applicable,
    rationale_path,
    rerank_path,
)
from evaluation.latency_report import latency_table, plot_latency
from retrieval.retriever import open_retriever

CPU = LatencyConfig(device="cpu")


@pytest.fixture(scope="module")
def model(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny retriever with its causal LM, exported as training does it."""
    from models.backbone import Backbone
    from models.export import export_causal_lm, export_retriever

    folder = tmp_path_factory.mktemp("exported") / "tiny"
    backbone = Backbone.load(tiny_folder)
    export_retriever(backbone, folder)
    export_causal_lm(backbone, folder / "causal_lm")
    return str(folder)


def sleeping_path(method: str, seconds: dict[str, float], answered: list[str]) -> InferencePath:
    def answer(request: str, watch: Stopwatch) -> list[str]:
        answered.append(request)
        for phase, duration in seconds.items():
            with watch.phase(phase):
                time.sleep(duration)
        return []

    return InferencePath(method, answer)


# -- the protocol -------------------------------------------------------------------------------------------------------


def test_the_draw_is_fixed_by_the_seed_and_takes_no_request_twice():
    requests = [f"r{i}" for i in range(250)]
    drawn, others = draw(requests, 100, 20260720)
    assert drawn == random.Random(20260720).sample(requests, 250)[:100]
    assert sorted(drawn + others) == sorted(requests)
    assert draw(requests, 100, 1)[0] != drawn


def test_a_small_benchmark_is_measured_whole():
    assert sorted(draw(["a", "b"], 100, 1)[0]) == ["a", "b"]


@pytest.mark.parametrize("method, warmups", [("encoder", 10), ("rerank", 2)])
def test_retrievers_warm_up_ten_times_and_rerankers_twice(method: str, warmups: int):
    answered: list[str] = []
    row = time_path(sleeping_path(method, {"search": 0.0}, answered), [f"r{i}" for i in range(40)], CPU, "cpu")
    assert row["warmups"] == warmups
    assert len(answered) == warmups + 40
    assert row["queries"] == 40


def test_warm_ups_are_other_requests_where_there_are_any():
    answered: list[str] = []
    config = LatencyConfig(queries=5, device="cpu")
    time_path(sleeping_path("bm25", {"search": 0.0}, answered), [f"r{i}" for i in range(15)], config, "cpu")
    assert not set(answered[:10]) & set(answered[10:])


def test_phases_and_total_are_milliseconds_of_single_requests():
    path = sleeping_path("rerank", {"encode": 0.004, "rank": 0.012}, [])
    row = time_path(path, ["a", "b", "c"], CPU, "cpu")
    measured = row["milliseconds"]
    assert [len(values) for values in measured.values()] == [3, 3, 3]
    assert min(measured["encode"]) >= 4
    assert min(measured["rank"]) >= 12
    for encode, rank, total in zip(measured["encode"], measured["rank"], measured["total"], strict=True):
        assert total >= encode + rank - 0.001  # both are rounded


def test_statistics_are_those_of_numpy():
    values = [3.0, 1.0, 2.0, 10.0]
    # linear between order statistics: p50 halfway between 2 and 3, p95 at place 2.85, p99 at place 2.97
    expected = {"mean": 4.0, "p50": 2.5, "p95": 3 + 0.85 * 7, "p99": 3 + 0.97 * 7}
    assert statistics(values) == pytest.approx(expected)


def test_a_slow_path_stops_early_and_says_how_many_requests_it_measured():
    config = LatencyConfig(device="cpu", max_seconds=0.01)
    row = time_path(sleeping_path("rerank", {"rank": 0.02}, []), [f"r{i}" for i in range(50)], config, "cpu")
    assert row["queries"] == 2


def test_a_gpu_is_synchronized_at_both_ends_of_a_phase(monkeypatch: pytest.MonkeyPatch):
    import torch

    called: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", called.append)
    with Stopwatch("cuda:1").phase("encode"):
        assert called == ["cuda:1"]
    assert called == ["cuda:1", "cuda:1"]


@pytest.mark.parametrize(
    "values, key",
    [
        ({"queries": 0}, "queries"),
        ({"depth": 0}, "depth"),
        ({"dtype": "int8"}, "dtype"),
        ({"max_seconds": -1}, "max_seconds"),
    ],
)
def test_a_bad_setting_is_named(values: dict[str, Any], key: str):
    with pytest.raises(ValueError, match=key):
        LatencyConfig(**values)


# -- the paths ----------------------------------------------------------------------------------------------------------


def test_all_that_model_and_reranker_allow_is_measured(model: str):
    assert applicable([model], None, []) == [("bm25", ""), ("encoder", model), ("hybrid", model), ("rationale", model)]
    assert applicable([model], "some-reranker", ["rerank"]) == [("rerank", model)]


@pytest.mark.parametrize(
    "methods, message",
    [(["rerank"], "--rerank"), (["encoder"], "--model"), (["magic"], "'magic'"), (["rationale"], "causal_lm")],
)
def test_a_method_that_nothing_here_can_do_is_refused(methods: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        applicable([], None, methods)


def test_timed_paths_find_what_search_finds(model: str, corpus_file: Path, tmp_path: Path):
    corpus = SkillCorpus.from_jsonl(corpus_file)
    setup = Setup(corpus, "cpu", depth=3, fusion_weight=0.3, cache_dir=tmp_path / "cache")
    loaded = LoadedModel(model, setup)
    for spec, path in (
        ("bm25", latency.bm25_path(setup)),
        (model, latency.encoder_path(loaded)),
        (f"hybrid:{model}", latency.hybrid_path(loaded)),
    ):
        retriever = open_retriever(
            spec, corpus.ids, corpus.documents(), cache_dir=tmp_path / "cache", fusion_weight=0.3
        )
        assert (
            path.answer("a slow query needs an index", Stopwatch("cpu"))
            == retriever.search(["a slow query needs an index"], 3).ids[0]
        )


def test_the_rationale_path_writes_encodes_and_searches(model: str, corpus_file: Path, tmp_path: Path):
    setup = Setup(SkillCorpus.from_jsonl(corpus_file), "cpu", depth=2, max_tokens=5, cache_dir=tmp_path)
    path, watch = rationale_path(LoadedModel(model, setup)), Stopwatch("cpu")
    assert len(path.answer("draw bar charts", watch)) == 2
    assert set(watch.seconds) == {"generate", "encode", "search"}
    assert 1 <= path.generated[0] <= 5


def test_the_rerank_path_orders_what_the_encoder_found(
    model: str, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The scorer is a stand-in that prefers long documents; 3 of 4 skills are candidates, scored in one batch."""
    import torch

    calls: list[tuple[int, int]] = []

    class Scorer:
        model = torch.nn.Identity()

        class form:
            max_length = 77

            @staticmethod
            def document(name: str, description: str, body: str) -> str:
                return description

        @staticmethod
        def score(query: str, documents: list[str], token_budget: int) -> np.ndarray:
            calls.append((len(documents), token_budget))
            return np.array([len(document) for document in documents])

    monkeypatch.setattr("evaluation.reranking.load_reranker", lambda *_, **__: Scorer())
    corpus = SkillCorpus.from_jsonl(corpus_file)
    setup = Setup(corpus, "cpu", depth=3, cache_dir=tmp_path)
    loaded, watch = LoadedModel(model, setup), Stopwatch("cpu")
    found = rerank_path(loaded, "any").answer("draw bar charts", watch)
    first = latency.encoder_path(loaded).answer("draw bar charts", Stopwatch("cpu"))
    assert found == sorted(first, key=lambda skill_id: -len(corpus.get(skill_id).description))
    assert calls == [(3, 0)]
    assert set(watch.seconds) == {"encode", "search", "rank"}


# -- the file, the table and the plot -----------------------------------------------------------------------------------


@pytest.fixture
def measure(corpus_file: Path, bench_file: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(models: list[str], **settings: Any) -> dict[str, Any]:
        config = LatencyConfig(device="cpu", max_tokens=3, **settings)
        cache = tmp_path / "cache"
        return measure_latency(models, bench_file, tmp_path / "out", corpus=corpus_file, config=config, cache_dir=cache)

    return run


def test_a_stopped_run_goes_on_where_it_was(
    measure: Callable[..., dict[str, Any]], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: Any) -> InferencePath:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(latency, "hybrid_path", stop)
        with pytest.raises(KeyboardInterrupt):
            measure([model])
    stored = json.loads((tmp_path / "out" / "latency.json").read_text())
    assert [row["method"] for row in stored["paths"]] == ["bm25", "encoder"]
    result = measure([model])
    assert [row["method"] for row in result["paths"]] == ["bm25", "encoder", "hybrid", "rationale"]
    assert result["paths"][:2] == stored["paths"]
    assert json.loads((tmp_path / "out" / "latency.json").read_text()) == result


def test_a_file_of_another_protocol_is_refused_by_key(measure: Callable[..., dict[str, Any]]):
    measure([])
    with pytest.raises(ValueError, match="depth 20, now it is 5"):
        measure([], depth=5)


def test_a_damaged_file_is_named(measure: Callable[..., dict[str, Any]], tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "latency.json").write_text("{")
    with pytest.raises(ValueError, match=r"latency\.json"):
        measure([])


def test_table_and_plot_show_every_path_and_the_papers_figures(
    measure: Callable[..., dict[str, Any]], model: str, tmp_path: Path
):
    result = measure([model])
    table = latency_table(result)
    for label in ("| BM25 ", "| Retrieval only: tiny ", "| Hybrid: tiny ", "| Generated rationale: tiny "):
        assert label in table
    assert "3,101.31" in table  # Table 11, SkillReason-0.6B
    assert "†" in table
    assert "1,911.84" not in table  # nothing was reranked
    assert plot_latency(result, tmp_path / "plot.png").stat().st_size > 5_000


def test_a_device_that_is_not_there_is_refused(corpus_file: Path, bench_file: Path, tmp_path: Path):
    config = LatencyConfig(device="tpu")
    with pytest.raises(ValueError, match="tpu"):
        measure_latency([], bench_file, tmp_path, corpus=corpus_file, config=config)
