"""The table, results.json and report.md."""

from __future__ import annotations

import json

import pytest

from evaluation import format_table, write_report, write_results_json


def metrics(value: float) -> dict[str, float]:
    return {"recall@1": value, "recall@5": value, "recall@10": value, "ndcg@10": value, "mrr": 0.5}


SYSTEMS = {
    "all-MiniLM-L6-v2": metrics(0.875),
    "hybrid": metrics(0.9),
    "stage2": metrics(0.7),
    "stage1": metrics(0.65),
    "bm25": metrics(1.0),
    "untrained": metrics(0.0125),
}


def test_the_table_is_aligned_markdown_in_percent_in_the_order_of_the_stages():
    table = format_table(SYSTEMS).splitlines()
    assert [line.split("|")[1].strip() for line in table] == [
        *("System", "-" * 16, "BM25", "Untrained", "Stage I", "Stage II", "Hybrid", "all-MiniLM-L6-v2"),
    ]
    assert table[0] == "| System           |   R@1 |   R@5 |  R@10 | NDCG@10 |"
    assert table[2] == "| BM25             | 100.0 | 100.0 | 100.0 |   100.0 |"
    assert table[3] == "| Untrained        |   1.2 |   1.2 |   1.2 |     1.2 |"


def test_the_reward_stands_under_the_table():
    text = format_table({"bm25": metrics(0.5)}, {"start": -0.25, "end": 0.125})
    assert text.endswith("Mean reward in Stage II: -0.2500 at the start, 0.1250 at the end (+0.3750).")
    assert "reward" not in format_table({"bm25": metrics(0.5)}, {"start": None, "end": None})


def test_results_json_holds_the_four_metrics_and_the_reward(tmp_path):
    write_results_json(tmp_path / "results.json", {"bm25": metrics(0.5)}, {"start": 0.1, "end": 0.2})
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "systems": {"bm25": {"recall@1": 0.5, "recall@5": 0.5, "recall@10": 0.5, "ndcg@10": 0.5}},
        "reward": {"start": 0.1, "end": 0.2},
    }


def test_results_json_without_stage_two_has_no_reward(tmp_path):
    write_results_json(tmp_path / "results.json", {"bm25": metrics(0.5)})
    assert json.loads((tmp_path / "results.json").read_text())["reward"] == {"start": None, "end": None}


def test_a_missing_metric_is_named(tmp_path):
    with pytest.raises(ValueError, match="'bm25' has no recall@5"):
        write_results_json(tmp_path / "results.json", {"bm25": {"recall@1": 0.5}})


def test_a_number_that_is_not_finite_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_results_json(tmp_path / "results.json", {"bm25": metrics(float("nan"))})
    assert list(tmp_path.iterdir()) == []


def test_no_system_is_an_error():
    with pytest.raises(ValueError, match="no system to report"):
        format_table({})


def test_the_report_has_table_notes_plots_and_configuration(tmp_path):
    path = write_report(
        tmp_path,
        title="Demo",
        systems={"bm25": metrics(0.5)},
        plots={"Reward terms": tmp_path / "plots" / "reward.png"},
        config={"data": {"train_batch_size": 112}, "note": "a|b"},
        notes=["108 skills, 108 requests."],
        sections={"Hard requests": "| a |"},
    )
    text = path.read_text()
    assert path == tmp_path / "report.md"
    assert text.startswith("# Demo\n\n## Results\n\n| System | ")
    assert "- 108 skills, 108 requests." in text
    assert "## Hard requests\n\n| a |" in text
    assert "![Reward terms](plots/reward.png)" in text
    assert "| `data.train_batch_size` | 112" in text
    assert "a\\|b" in text
