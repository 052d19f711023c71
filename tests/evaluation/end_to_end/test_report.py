"""Tables and plot of results that are written by hand, and what reading refuses."""

from __future__ import annotations

import json

import pytest

from evaluation.end_to_end import comparison_table, plot_end_to_end, read_end_to_end, suite_table, table5


def condition(name: str, kind: str, accuracy: float | None, missing: int = 0) -> dict:
    interval = None if accuracy is None else [accuracy - 0.1, accuracy + 0.1]
    part = {"suite": "champ", "n": 10, "accuracy": accuracy, "interval": interval}
    counts = {"unparsable": 1, "missing": missing}
    return {
        "name": name,
        "kind": kind,
        "accuracy": accuracy,
        "interval": interval,
        "gold_shown": 0.5,
        "suites": [part],
        **counts,
    }


@pytest.fixture
def result() -> dict:
    rows = [
        condition("No skills", "none", 0.3),
        condition("Qwen3-Emb-4B x Qwen3-Rank-4B", "retrieved", 0.625, 2),
        condition("mine", "retrieved", None),
    ]
    pair = {"first": "No skills", "second": "mine", "n": 10, "difference": 0.325, "interval": [0.1, 0.5], "p": 0.0004}
    none = {"first": "No skills", "second": "other", "n": 0, "difference": None, "interval": None, "p": None}
    return {"format": "skillreason-end-to-end-1", "model": "tiny", "conditions": rows, "comparisons": [pair, none]}


def rows_of(table: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in cells}


def test_the_papers_figures_stand_beside_ours(result):
    rows = rows_of(table5([result]))
    assert rows["Skill condition"][:2] == ["tiny", "Qwen3-4B (paper)"]
    assert rows["No skills"] == ["30.00 [20.0, 40.0]", "38.81", "50.75", "54.30", "44.17", "42.02"]
    assert rows["Qwen3-Emb-4B x Qwen3-Rank-4B"][:2] == ["62.50 [52.5, 72.5]*", "59.77"]
    assert rows["mine"] == ["–"] * 6
    assert rows["SkillReason-Emb-4B × SkillReason-Rank-4B"][:2] == ["–", "63.84"]


def test_several_models_are_columns(result):
    other = {**result, "model": "large", "conditions": result["conditions"][:1]}
    rows = rows_of(table5([result, other], paper=False))
    assert rows["Skill condition"] == ["tiny", "large"]
    assert rows["mine"] == ["–", "–"]


def test_suites_and_differences_are_tables(result):
    assert rows_of(suite_table(result))["No skills"] == ["30.00", "30.00", "50.00", "1", "0"]
    differences = rows_of(comparison_table(result))
    assert differences["mine − No skills"] == ["10", "+32.50", "[+10.00, +50.00]", "< 0.001"]
    assert differences["other − No skills"] == ["0", "–", "–", "–"]


def test_a_plot_is_a_png(result, tmp_path):
    for name, results in (("one", [result]), ("two", [result, {**result, "model": "b"}])):
        plot_end_to_end(results, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_without_an_accuracy_there_is_no_plot(result, tmp_path):
    assert plot_end_to_end([{**result, "conditions": result["conditions"][2:]}], tmp_path / "a.png") is None
    assert not (tmp_path / "a.png").exists()


def test_a_folder_stands_for_its_result(result, tmp_path):
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert read_end_to_end(tmp_path)["model"] == "tiny"


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not valid JSON"), ('{"queries": []}', "format is None"), ("[]", "format is None")]
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_end_to_end(tmp_path / "x.json")
