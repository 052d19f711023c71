"""SkillBench as released: pools, generic tasks, core targets against grades, and scores as the release defines them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from evaluation.benchmarks import load_folder
from evaluation.results import score
from retrieval import Ranking


def test_generic_tasks_are_left_out_and_suites_follow_the_core_targets(skillbench_folder):
    bench = load_folder(skillbench_folder, split="easy")
    assert bench.name == "skillbench-easy"
    assert bench.suite_queries() == {"single": ["fix-radio"], "multi": ["cast-frame"]}
    assert "1 generic-only tasks were left out" in bench.notes


def test_targets_are_the_core_skills_and_grades_everything_in_the_pool(skillbench_folder):
    bench = load_folder(skillbench_folder, split="easy")
    assert bench.target_ids(bench.queries[1]) == ("gt/solder", "gt/resin")
    assert bench.qrels["cast-frame"] == {"gt/solder": 3, "gt/resin": 3, "gt/pdf": 3, "degraded/solder_1": 1}
    assert "1 grades of skills that are not in the pool were left out" in bench.notes


def test_a_pool_is_read_from_all_its_shards_in_order(skillbench_folder):
    bench = load_folder(skillbench_folder, split="easy")
    assert bench.corpus.ids == ["gt/solder", "gt/resin", "gt/pdf", "degraded/solder_1", "web/noise"]


def test_targets_are_cut_to_the_pool_but_the_suite_stays(skillbench_folder):
    bench = load_folder(skillbench_folder, split="hard")
    assert bench.target_ids(bench.queries[1]) == ("gt/solder",)
    assert bench.suites["cast-frame"] == "multi"


def test_counts_are_compared_with_the_paper_and_the_manifest(skillbench_folder):
    notes = load_folder(skillbench_folder, split="hard").notes
    source = "(B.4 and the release's manifest)"
    assert f"skillbench-hard: expected 75 queries {source}, found 2" in notes
    assert f"skillbench-hard: expected 79,141 skills {source}, found 4" in notes
    assert f"skillbench-hard: expected 51 queries of multi {source}, found 1" in notes


def test_a_pool_must_be_chosen(skillbench_folder):
    with pytest.raises(ValueError, match="pools easy and hard, found none; choose with --split"):
        load_folder(skillbench_folder)


def test_recall_and_coverage_count_core_targets_and_ndcg_the_grades(skillbench_folder):
    bench = load_folder(skillbench_folder, split="easy")
    lists = [
        ["degraded/solder_1", "gt/solder", "gt/pdf", "gt/resin", "web/noise"],
        ["gt/pdf", "gt/resin", "web/noise", "gt/solder", "degraded/solder_1"],
    ]
    scored = score(bench, Ranking(lists, np.zeros((2, 5))), (1, 10))
    # First: a degraded copy and no target on top. Second: on top a skill that is graded but no core target.
    assert scored["metrics"]["recall@1"] == 0.0
    assert scored["metrics"]["recall@10"] == 1.0
    assert scored["metrics"]["multi_fc@10"] == 1.0
    assert scored["metrics"]["mrr"] == pytest.approx((1 / 2 + 1 / 2) / 2)
    log = [math.log2(1 + rank) for rank in range(1, 6)]
    first = (1 / log[0] + 3 / log[1]) / (3 / log[0] + 1 / log[1])
    second = (3 / log[0] + 3 / log[1] + 3 / log[3] + 1 / log[4]) / (3 / log[0] + 3 / log[1] + 3 / log[2] + 1 / log[3])
    assert scored["metrics"]["ndcg@10"] == pytest.approx((first + second) / 2)
    ideal = 1 / log[0] + 1 / log[1]
    assert scored["metrics"]["binary_ndcg@10"] == pytest.approx((1 / log[1] + (1 / log[1] + 1 / log[3]) / ideal) / 2)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"relevance": {"gt/solder": "high"}}, r"relevance.json:1: fix-radio.relevance = .*expected an object"),
        (
            {"relevance": {"gt/solder": 0}},
            r"tasks.jsonl:1: task_id = 'fix-radio': .*'gt/solder' 0; expected at least 1",
        ),
        ({"core_gt_ids": []}, r"relevance.json:1: core_gt_ids = \[\]: expected a list"),
        ({"task_type": None}, r"relevance.json:1: missing column task_type; this row has gt_skill_ids"),
    ],
)
def test_a_broken_entry_is_named(skillbench_folder, edit, message):
    file = skillbench_folder / "relevance.json"
    value = json.loads(file.read_text())
    value["fix-radio"] |= edit
    file.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=message):
        load_folder(skillbench_folder, split="easy")


def test_a_task_without_relevance_is_named(skillbench_folder, change):
    change(skillbench_folder / "tasks.jsonl", lambda rows: rows[0].update(task_id="new-task"))
    with pytest.raises(ValueError, match=r"tasks.jsonl:1: task_id = 'new-task': .*relevance.json has no entry"):
        load_folder(skillbench_folder, split="easy")
