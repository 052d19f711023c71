"""The whole demo: everything it promises is there, and Stage I has learned something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from evaluation import evaluate
from models.backbone import Backbone
from objectives.checkpoint import list_checkpoints, read_checkpoint_state
from skillreason.demo import EXAMPLE_REQUESTS, run_demo
from trainers.tracking import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1800)]

SYSTEMS = ("bm25", "untrained", "stage1", "stage2", "hybrid")
METRICS = ("recall@1", "recall@5", "recall@10", "ndcg@10")


@pytest.fixture(scope="module")
def demo(ray_cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "run"
    return out, run_demo(out)


def test_results_hold_every_number_of_the_table(demo: tuple[Path, dict[str, Any]]):
    out, returned = demo
    results = json.loads((out / "results.json").read_text())
    assert results == returned
    assert results.keys() == {"systems", "reward"}
    assert tuple(results["systems"]) == SYSTEMS
    for metrics in results["systems"].values():
        assert tuple(metrics) == METRICS
        assert all(0 <= value <= 1 for value in metrics.values())
        assert metrics["recall@1"] <= metrics["recall@5"] <= metrics["recall@10"]
    assert results["reward"].keys() == {"start", "end"}
    assert all(np.isfinite(value) for value in results["reward"].values())


def test_stage_one_beats_the_untrained_backbone_by_thirty_points(demo: tuple[Path, dict[str, Any]]):
    systems = demo[1]["systems"]
    assert systems["stage1"]["recall@10"] >= systems["untrained"]["recall@10"] + 0.30


def test_stage_two_loses_no_recall_beyond_noise(demo: tuple[Path, dict[str, Any]]):
    # 114 requests: two standard errors of a proportion are below ten points
    systems = demo[1]["systems"]
    assert systems["stage2"]["recall@10"] >= systems["stage1"]["recall@10"] - 0.10


def test_the_report_has_the_table_and_its_plots(demo: tuple[Path, dict[str, Any]]):
    out, results = demo
    report = (out / "report.md").read_text()
    for label in ("BM25", "Untrained", "Stage I", "Stage II", "Hybrid"):
        assert f"| {label} " in report
    for metrics in results["systems"].values():
        assert f"{100 * metrics['recall@10']:.1f}" in report
    for name in ("losses.png", "rewards.png", "policy.png", "recall.png"):
        assert f"plots/{name}" in report
        assert (out / "plots" / name).read_bytes().startswith(b"\x89PNG")


def test_the_configuration_of_both_stages_is_kept(demo: tuple[Path, dict[str, Any]]):
    config = yaml.safe_load((demo[0] / "config.yaml").read_text())
    assert config["stage1"]["run"]["name"] == "stage1"
    assert config["grpo"]["run"]["name"] == "stage2"
    assert config["grpo"]["reward"]["terms"].keys() >= {"margin", "gain", "length"}


def test_every_update_of_both_stages_is_in_the_metrics(demo: tuple[Path, dict[str, Any]]):
    rows = read_metrics(demo[0] / "metrics.jsonl")
    for stage, key in (("stage1", "loss/total"), ("stage2", "reward/total/mean")):
        steps = [row["step"] for row in rows if row["stage"] == stage]
        assert steps == list(range(1, len(steps) + 1))
        assert all(key in row for row in rows if row["stage"] == stage)


def test_checkpoints_of_both_stages_are_whole(demo: tuple[Path, dict[str, Any]]):
    rows = read_metrics(demo[0] / "metrics.jsonl")
    for stage in ("stage1", "stage2"):
        newest = list_checkpoints(demo[0] / "checkpoints" / stage)[-1]
        assert read_checkpoint_state(newest)["step"] == max(row["step"] for row in rows if row["stage"] == stage)


def test_the_export_is_the_retriever_of_the_table(demo: tuple[Path, dict[str, Any]], tmp_path: Path):
    out, results = demo
    data, model = out / "data", out / "export"
    found = evaluate(model, data / "corpus.jsonl", data / "bench.jsonl", cache_dir=tmp_path / "cache")["metrics"]
    assert found["recall@10"] == pytest.approx(results["systems"]["stage2"]["recall@10"])
    hybrid = evaluate(f"hybrid:{model}", data / "corpus.jsonl", data / "bench.jsonl", cache_dir=tmp_path / "cache")
    assert hybrid["metrics"]["recall@10"] == pytest.approx(results["systems"]["hybrid"]["recall@10"])
    Backbone.load(model / "causal_lm")


def test_the_example_requests_are_no_copies_of_the_benchs(demo: tuple[Path, dict[str, Any]]):
    bench = [json.loads(line)["query"] for line in (demo[0] / "data" / "bench.jsonl").read_text().splitlines()]
    assert len(EXAMPLE_REQUESTS) == 3
    assert not set(EXAMPLE_REQUESTS) & set(bench)
