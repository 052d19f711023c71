"""Rescoring with validated alternatives: each target once, each alternative once, and files that do not fit."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.alternatives import covered, read_alternatives, rescore, rescoring_table
from evaluation.results import StoredResult
from retrieval import Ranking


def result(lists: dict[str, list[str]], qrels: dict[str, list[str]]) -> StoredResult:
    return StoredResult(
        Path("result.json"),
        "bm25",
        list(lists),
        Ranking(list(lists.values()), np.zeros((len(lists), 0))),
        {query_id: dict.fromkeys(targets, 1) for query_id, targets in qrels.items()},
        {},
    )


def decisions(path: Path, *rows: tuple[str, str, str, str]) -> Path:
    keys = ("query_id", "target_id", "skill_id", "decision")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


def test_one_target_is_hit_by_itself_or_by_a_valid_alternative(tmp_path):
    file = decisions(
        tmp_path / "a.jsonl",
        ("q1", "a", "fork", "positive"),
        ("q2", "b", "near", "hard_negative"),
        ("q3", "c", "half", "ignore"),
    )
    stored = result(
        {"q1": ["x", "fork", "a"], "q2": ["near", "y"], "q3": ["half", "c"], "q4": ["d"]},
        {"q1": ["a"], "q2": ["b"], "q3": ["c"], "q4": ["d"]},
    )
    found = rescore(stored, read_alternatives(file), (1, 2))
    assert [(row["k"], row["original"], row["expanded"], row["delta"]) for row in found["recall"]] == [
        (1, 0.25, 0.25, 0.0),
        (2, 0.5, 0.75, 0.25),
    ]
    assert found["valid"] == 1
    assert found["unjudged"] == 2  # x and y: nobody was asked about them


def test_a_target_is_credited_once_even_if_it_and_its_alternatives_are_listed():
    valid = {"fork": frozenset("a"), "copy": frozenset("a")}
    assert covered(["a", "fork", "copy"], ["a", "b"], valid) == 1
    assert covered(["fork", "copy"], ["a", "b"], valid) == 1


def test_an_alternative_covers_one_target_only():
    valid = {"both": frozenset("ab")}
    assert covered(["both"], ["a", "b"], valid) == 1
    assert covered(["a", "both"], ["a", "b"], valid) == 2  # a stands for itself, so the alternative covers b


def test_the_assignment_that_covers_most_counts():
    # "both" could take a, but then "only-a" would cover nothing.
    valid = {"both": frozenset("ab"), "only-a": frozenset("a")}
    assert covered(["both", "only-a"], ["a", "b"], valid) == 2
    assert covered(["only-a", "both"], ["a", "b"], valid) == 2


def test_random_lists_agree_with_trying_every_assignment():
    rng = np.random.default_rng(0)
    for _ in range(300):
        targets = list("abc")[: int(rng.integers(1, 4))]
        others = ["v", "w", "x", "y"]
        valid = {o: frozenset(t for t in targets if rng.random() < 0.4) for o in others}
        ids = [str(s) for s in rng.permutation([*targets, *others, "z"])[: int(rng.integers(0, 5))]]
        choices = [[s] if s in targets else [None, *valid.get(s, frozenset())] for s in ids]
        most = max(len({t for t in picked if t}) for picked in itertools.product(*choices))
        assert covered(ids, targets, valid) == most


def test_recall_of_several_targets_stays_fractional(tmp_path):
    file = decisions(tmp_path / "a.jsonl", ("q", "b", "fork", "positive"))
    found = rescore(result({"q": ["a", "fork"]}, {"q": ["a", "b", "c"]}), read_alternatives(file), (1, 2))
    assert [row["expanded"] for row in found["recall"]] == pytest.approx([1 / 3, 2 / 3])


def test_expanded_recall_never_falls_with_depth_or_below_the_original(tmp_path):
    rng = np.random.default_rng(1)
    rows = [(f"q{i}", f"t{i}", f"s{rng.integers(30)}", "positive") for i in range(60)]
    lists = {f"q{i}": [str(s) for s in rng.permutation([*(f"s{j}" for j in range(30)), f"t{i}"])] for i in range(60)}
    stored = result(lists, {f"q{i}": [f"t{i}"] for i in range(60)})
    found = rescore(stored, read_alternatives(decisions(tmp_path / "a.jsonl", *rows)), (1, 5, 10))
    expanded = [row["expanded"] for row in found["recall"]]
    assert expanded == sorted(expanded)
    assert all(row["expanded"] >= row["original"] for row in found["recall"])
    assert all(row["interval"][0] <= row["delta"] <= row["interval"][1] for row in found["recall"])


def test_the_table_has_the_columns_of_tables_7_and_8(tmp_path):
    file = decisions(tmp_path / "a.jsonl", ("q1", "a", "fork", "positive"))
    stored = result({"q1": ["fork", "x"], "q2": ["b"]}, {"q1": ["a"], "q2": ["b"]})
    table = rescoring_table({"bm25": rescore(stored, read_alternatives(file), (1, 5))}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert cells[0][1:] == ["Original R@1", "Expanded R@1", "Δ R@1", "Original R@5", "Expanded R@5", "Δ R@5"]
    assert cells[2] == ["bm25", "50.00", "100.00", "+50.00", "50.00", "100.00", "+50.00"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("q9", "a", "fork", "positive"), r"a.jsonl: query_id 'q9' is not in result.json"),
        (("q1", "z", "fork", "positive"), r"a.jsonl: query 'q1' has no target 'z' in result.json; expected one of a"),
    ],
)
def test_decisions_about_another_benchmark_are_refused(tmp_path, row, message):
    stored = result({"q1": ["a"]}, {"q1": ["a"]})
    with pytest.raises(ValueError, match=message):
        rescore(stored, read_alternatives(decisions(tmp_path / "a.jsonl", row)))


def test_a_broken_row_is_named(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"query_id": "q1", "target_id": "a", "skill_id": 3, "decision": "positive"}\n')
    with pytest.raises(ValueError, match=r"a.jsonl:1: skill_id = 3: expected text"):
        read_alternatives(file)


def test_depths_below_one_are_refused(tmp_path):
    stored = result({"q1": ["a"]}, {"q1": ["a"]})
    with pytest.raises(ValueError, match=r"depths are \[0\]"):
        rescore(stored, read_alternatives(decisions(tmp_path / "a.jsonl", ("q1", "a", "f", "ignore"))), [0])
