"""From result files to the folder of tables and plots."""

from __future__ import annotations

import csv
import json
import os

import pytest

from evaluation.tables import report_tables
from evaluation.tables.names import Names


def read(folder, key):
    with (folder / f"{key}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_retrievers_side_by_side_with_the_papers_figures_where_they_are_the_same(tmp_path, write_result):
    write_result("in/a.json", "bm25", "skillreason-bench", 0.25)
    write_result("in/b.json", "bm25", "mine.jsonl", 0.5)
    write_result("in/c.json", "runs/x/export", "skillreason-bench", 0.75)
    report_tables([tmp_path / "in"], tmp_path / "out", names=["runs/x/export=SkillReason-0.6B"])
    rows = read(tmp_path / "out", "table2")
    assert [(row["Retriever"], row["source"]) for row in rows] == [
        ("BM25", "ours"), ("BM25, paper", "paper"), ("SkillReason-0.6B", "ours"), ("SkillReason-0.6B, paper", "paper"),
    ]  # fmt: skip
    assert [row["SkillReason-Bench R@10"] for row in rows] == ["25.0", "37.38", "75.0", "69.0"]
    assert [row["mine R@10"] for row in rows] == ["50.0", "", "", ""]


def test_a_folder_is_not_the_papers_model_by_its_name_alone(tmp_path, write_result):
    write_result("in/a.json", "models/SkillReason-0.6B", "skillreason-bench", 0.25)
    report_tables([tmp_path / "in"], tmp_path / "out")
    assert [row["source"] for row in read(tmp_path / "out", "table2")] == ["ours"]


def test_pipelines_and_retrievers_have_tables_of_their_own(tmp_path, write_result):
    write_result("in/a.json", "bm25", "skillret", 0.25)
    reranked = {"rerank": {"model": "Qwen/Qwen3-Reranker-0.6B", "depth": 20}}
    write_result("in/b.json", "Qwen/Qwen3-Embedding-0.6B", "skillret", 0.5, **reranked)
    report_tables([tmp_path / "in"], tmp_path / "out")
    assert [row["Retriever"] for row in read(tmp_path / "out", "table2")] == ["BM25", "BM25, paper"]
    pipelines = read(tmp_path / "out", "table4")
    assert [row["Pipeline"] for row in pipelines] == [
        "Qwen3-Embedding-0.6B × Qwen3-Reranker-0.6B",
        "Qwen3-Embedding-0.6B × Qwen3-Reranker-0.6B, paper",
    ]
    assert [row["SkillRet R@1"] for row in pipelines] == ["50.0", "46.56"]


def test_of_two_results_the_newer_is_shown_and_said(tmp_path, write_result):
    old = write_result("in/old.json", "bm25", "mine", 0.25)
    new = write_result("in/new.json", "bm25", "mine", 0.5)
    os.utime(old, (1, 1))
    written = report_tables([tmp_path / "in"], tmp_path / "out")
    assert [row["mine R@1"] for row in read(tmp_path / "out", "table2")] == ["50.0"]
    assert f"{new} is shown, {old} is older" in written[0].read_text()


def test_alternatives_of_a_benchmark_and_of_a_rescored_file(tmp_path, write_result):
    recall = [
        {"k": 1, "original": 0.25, "expanded": 0.5, "delta": 0.25},
        {"k": 5, "original": 0.5, "expanded": 0.5, "delta": 0.0},
    ]
    path = write_result("in/a.json", "bm25", "skillreason-bench", 0.25)
    entry = {"file": "alternatives.jsonl", "result": str(path), "recall": recall}
    (tmp_path / "in" / "rescored.json").write_text(json.dumps({"bm25": entry}))
    written = report_tables([tmp_path / "in"], tmp_path / "out")
    rows = read(tmp_path / "out", "table7")
    assert [row["Δ R@1"] for row in rows] == ["25.0", "1.61"]
    assert "+25.00" in written[0].read_text()


def test_studies_keep_seeds_blocks_and_the_papers_figures(tmp_path):
    cell = {"n": 2, "mean": {"recall@1": 0.5}, "sd": {"recall@1": 0.125}, "paper": {"recall@1": 0.3518}, "files": []}
    gap = {"n": 0, "mean": {}, "sd": {}, "paper": {}, "files": []}
    rows = [
        {"label": "Raw CL", "block": "Stage I", "benches": {"mine": cell}},
        {"label": "GRPO", "block": "Stage II", "benches": {"mine": gap}},
    ]
    (tmp_path / "study.json").write_text(json.dumps({"title": "T", "seeds": [1, 2], "tables": {"table3": rows}}))
    report_tables([tmp_path / "study.json"], tmp_path / "out")
    found = read(tmp_path / "out", "table3")
    assert [(row["block"], row["Configuration"], row["mine R@1"], row["mine R@1 sd"]) for row in found] == [
        ("Stage I", "Raw CL", "50.0", "12.5"),
        ("Stage I", "Raw CL, paper", "35.18", ""),
        ("Stage II", "GRPO", "", ""),
    ]


def test_end_to_end_and_latency(tmp_path):
    conditions = [
        {"name": "none", "kind": "none", "accuracy": 0.25},
        {"name": "gold", "kind": "gold", "accuracy": None},
        {"name": "mine", "kind": "retrieved", "accuracy": 0.5},
    ]
    value = {"format": "skillreason-end-to-end-1", "model": "Qwen/Qwen3-4B", "conditions": conditions, "notes": []}
    (tmp_path / "result.json").write_text(json.dumps(value))
    phases = {"encode": {"mean": 2.0}, "search": {"mean": 1.0}, "generate": {"mean": 30.0}}
    paths = [{"method": "rationale", "model": "m", "reranker": None, "phases": phases, "total": {"mean": 33.5}}]
    protocol = {"queries": 100, "skills": 7, "threads": 1, "dtype": "float32"}
    latency = {"paths": paths, "protocol": protocol, "environment": {"gpu": "", "cpu": "a CPU"}}
    (tmp_path / "latency.json").write_text(json.dumps(latency))
    report_tables([tmp_path], tmp_path / "out", names=["m=SkillReason-0.6B"])
    accuracy = read(tmp_path / "out", "table5")
    assert [(row["Skill condition"], row["Qwen/Qwen3-4B"]) for row in accuracy] == [
        ("No skills", "25.0"), ("No skills, paper", "38.81"), ("mine", "50.0"),
    ]  # fmt: skip
    times = read(tmp_path / "out", "table11")
    assert [(row["Retrieval"], row["Generation"], row["Total"]) for row in times] == [
        ("3.0", "30.0", "33.5"), ("49.79", "3101.31", "3151.1"),
    ]  # fmt: skip


def test_skillbench_stands_in_table_10(tmp_path, write_result):
    write_result("in/a.json", "Qwen/Qwen3-Embedding-4B", "skillbench-hard", 0.5)
    report_tables([tmp_path / "in"], tmp_path / "out")
    rows = read(tmp_path / "out", "table10")
    assert [row["Hard Multi FC@10"] for row in rows] == ["50.0", "31.37"]
    assert [row["Easy R@1"] for row in rows] == ["", "33.46"]
    assert not (tmp_path / "out" / "table2.csv").exists()


def test_plots_of_results_and_runs(tmp_path, write_result):
    row = {"slice": "law", "n_queries": 1, "metrics": {"recall@10": 0.5}, "intervals": {"recall@10": [0.25, 0.75]}}
    write_result("in/a.json", "bm25", "mine.jsonl", 0.5, slices={"domain": [row]})
    (tmp_path / "in" / "run").mkdir()
    (tmp_path / "in" / "run" / "metrics.jsonl").write_text("x")
    logged = [
        {"step": 1, "reward/margin/mean": 0.1, "retrieval/margin": 0.1, "retrieval/baseline_margin": 0.2},
        {"step": 2, "reward/margin/mean": 0.3, "retrieval/margin": 0.3, "retrieval/baseline_margin": 0.2},
    ]
    written = report_tables([tmp_path / "in"], tmp_path / "out", read_run=lambda path: logged)
    plots = {path.name for path in written if path.suffix == ".png"}
    assert plots == {"recall-mine.png", "domains-mine.png", "margins-run.png", "terms-run.png"}
    assert all((tmp_path / "out" / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in plots)


def test_names_that_cannot_be_meant(tmp_path, write_result):
    path = write_result("in/a.json", "bm25", "mine", 0.5)
    with pytest.raises(ValueError, match=r"name 'runs/y': no result of such a model; there are bm25"):
        report_tables([path], tmp_path / "out", names=["runs/y=Mine"])
    with pytest.raises(ValueError, match="expected MODEL=LABEL"):
        report_tables([path], tmp_path / "out", names=["Mine"])
    with pytest.raises(ValueError, match="paper is 'some'; expected one of matching, all, none"):
        report_tables([path], tmp_path / "out", paper="some")


def test_all_of_the_papers_rows_bring_its_benchmarks(tmp_path, write_result):
    write_result("in/a.json", "bm25", "mine", 0.5)
    report_tables([tmp_path / "in"], tmp_path / "out", paper="all")
    rows = {row["Retriever"]: row for row in read(tmp_path / "out", "table2")}
    assert rows["BM25"]["mine R@1"] == "50.0"
    assert rows["BM25"]["SkillRet R@1"] == ""
    assert rows["SkillReason-4B"]["SkillRet R@1"] == "52.03"


def test_labels_of_models():
    names = Names(["runs/x=Mine"])
    assert names.of_model("hybrid:runs/x") == "Hybrid (BM25 + Mine)"
    assert names.of_model("BM25") == "BM25"
    assert names.of_result({"model": "runs/x", "augment": {"source": "self"}}) == "Mine + rationales (self)"
