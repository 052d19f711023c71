"""Reading the released answers: what a checker needs is there, and what it could never be right about is named."""

from __future__ import annotations

import json

import pytest

from evaluation.end_to_end.tasks import read_tasks


def test_tasks_have_questions_skills_and_answers(sra_folder):
    read = read_tasks(sra_folder)
    assert read.suites() == ["theoremqa", "logicbench", "toolqa", "medcalcbench", "champ", "bigcodebench"]
    task = next(task for task in read.tasks if task.suite == "medcalcbench")
    assert (task.gold_ids, task.question) == (("mc/crcl",), "What is the clearance?")
    assert task.answer == {
        "answer": "50.0", "output_type": "decimal", "calculator_id": 2, "lower_limit": 47.5, "upper_limit": 52.5,
    }  # fmt: skip


def test_a_folder_may_carry_the_benchmarks_name(sra_folder):
    assert len(read_tasks(f"sra-bench={sra_folder}").tasks) == 9


def test_a_limit_is_spread_over_the_file(sra_folder):
    file = sra_folder / "instances" / "toolqa.json"
    (row,) = json.loads(file.read_text())
    file.write_text(json.dumps([{**row, "instance_id": f"toolqa_{i}"} for i in range(10)]))
    kept = [task.instance_id for task in read_tasks(sra_folder, "toolqa").first(3).tasks]
    assert kept == ["toolqa_0", "toolqa_3", "toolqa_6"]


def test_toolqa_may_have_an_empty_answer(sra_folder):
    file = sra_folder / "instances" / "toolqa.json"
    file.write_text(file.read_text().replace("8:00 PM", ""))
    assert read_tasks(sra_folder, "toolqa").tasks[0].answer["answer"] == ""


@pytest.mark.parametrize(
    ("suite", "eval_data", "message"),
    [
        ("champ", None, "champ.json:1: eval_data = None: expected an object with the released answer"),
        ("champ", {"answer": " "}, "champ.json:1: eval_data.answer = ' ': expected text that is not blank"),
        (
            "theoremqa",
            {"answer": "7"},
            "theoremqa.json:1: eval_data.answer_type = None: expected one of integer, float",
        ),
        ("logicbench", {"answer": "yes", "task_type": "XQA"}, "task_type = 'XQA': expected one of BQA, MCQA"),
        ("medcalcbench", {"answer": "1", "output_type": "decimal"}, "calculator_id = None: expected a whole number"),
        (
            "medcalcbench",
            {"answer": "1", "output_type": "decimal", "calculator_id": 2, "lower_limit": "low"},
            "lower_limit = 'low': expected a number",
        ),
        ("bigcodebench", {"test": "x"}, "missing column entry_point; this row has test"),
    ],
)
def test_a_broken_answer_is_named(sra_folder, suite, eval_data, message):
    file = sra_folder / "instances" / f"{suite}.json"
    rows = json.loads(file.read_text())
    rows[0]["eval_data"] = eval_data
    file.write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        read_tasks(sra_folder)


def test_a_suite_without_a_checker_is_refused(sra_folder):
    (sra_folder / "instances" / "chess.json").write_text(
        (sra_folder / "instances" / "champ.json").read_text().replace("champ_", "chess_")
    )
    with pytest.raises(ValueError, match="no checker for suite 'chess'; expected one of theoremqa, logicbench"):
        read_tasks(sra_folder)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; expected SRA-Bench's corpus/ and instances/"):
        read_tasks(tmp_path / "nothing")
