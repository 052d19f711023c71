"""A whole run against a scripted model: what is asked, what is kept, what is scored, and a run that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_pipeline.teacher import TeacherStopped
from evaluation.end_to_end import CodeConfig, EndToEndConfig, SandboxError, read_end_to_end, run_end_to_end
from evaluation.end_to_end.answers import AnswerFile

TEXT_TASKS, ALL_TASKS = 8, 9


def by_name(result: dict) -> dict[str, dict]:
    return {row["name"]: row for row in result["conditions"]}


def write_retrieved(path: Path, folder: Path, wrong: set[str]) -> Path:
    """A result as ``skillreason evaluate`` writes it: the right skill first, except for the instances in ``wrong``."""
    queries = []
    for file in (folder / "instances").glob("*.json"):
        for row in json.loads(file.read_text()):
            (gold,) = row["skill_annotations"]
            ids = ["web/other", gold] if row["instance_id"] in wrong else [gold, "web/other"]
            queries.append({"query_id": row["instance_id"], "ids": ids, "scores": [2.0, 1.0], "qrels": {gold: 1}})
    path.write_text(json.dumps({"model": "finder", "queries": queries}))
    return path


@pytest.fixture
def retrieved(tmp_path, sra_folder):
    """Wrong for one of the two LogicBench instances."""
    return write_retrieved(tmp_path / "retrieved.json", sra_folder, {"logicbench_00001"})


def test_conditions_are_scored_by_suite_and_on_average(model, downstream, sra_folder, retrieved, tmp_path):
    config = EndToEndConfig(str(sra_folder), systems=[f"Ours={retrieved}"])
    result = run_end_to_end(config, downstream(), tmp_path / "out")
    rows = by_name(result)
    assert rows["No skills"]["accuracy"] == 0.0
    assert rows["No skills"]["unparsable"] == TEXT_TASKS
    assert rows["Gold skills"]["accuracy"] == 1.0
    # Five suites, of which one has half of its two instances right.
    assert rows["Ours"]["accuracy"] == pytest.approx((1 + 0.5 + 1 + 1 + 1) / 5)
    assert rows["Ours"]["gold_shown"] == pytest.approx(7 / 8)
    assert {part["suite"]: part["n"] for part in rows["Ours"]["suites"]} == {
        "theoremqa": 3, "logicbench": 2, "toolqa": 1, "medcalcbench": 1, "champ": 1,
    }  # fmt: skip
    pair = next(p for p in result["comparisons"] if (p["first"], p["second"]) == ("No skills", "Ours"))
    assert pair["difference"] == pytest.approx(0.9)
    assert any("bigcodebench left out (1 instances)" in note for note in result["notes"])


def test_an_identical_prompt_is_asked_once(model, downstream, sra_folder, retrieved, tmp_path):
    config = EndToEndConfig(str(sra_folder), systems=[str(retrieved)])
    run_end_to_end(config, downstream(), tmp_path / "out")
    # Without skills, with the gold skill, and the one wrong skill: the retriever's seven right ones are the gold prompts.
    assert len(model.bodies) == 2 * TEXT_TASKS + 1
    assert max(model.answered.values()) == 1


def test_the_same_run_again_asks_nothing_and_says_the_same(model, downstream, sra_folder, tmp_path):
    config = EndToEndConfig(str(sra_folder))
    first = run_end_to_end(config, downstream(), tmp_path / "out")
    asked = len(model.bodies)
    second = run_end_to_end(config, downstream(), tmp_path / "out")
    assert len(model.bodies) == asked
    assert {**second, "usage": None} == {**first, "usage": None}


def test_the_file_of_answers_is_enough(model, downstream, sra_folder, tmp_path):
    config = EndToEndConfig(str(sra_folder))
    run_end_to_end(config, downstream(), tmp_path / "out")
    asked = len(model.bodies)
    (tmp_path / "out" / "cache" / "answers.sqlite3").unlink()
    run_end_to_end(config, downstream(), tmp_path / "out")
    assert len(model.bodies) == asked


@pytest.mark.parametrize(
    "change", [{"temperature": 0.7}, {"max_output_tokens": 99}, {"model": "other"}, {"extra": {"top_p": 0.5}}]
)
def test_another_decoding_is_another_question(model, downstream, sra_folder, tmp_path, change):
    config = EndToEndConfig(str(sra_folder), fixed=("none",))
    run_end_to_end(config, downstream(), tmp_path / "out")
    run_end_to_end(config, downstream(**change), tmp_path / "out")
    assert len(model.bodies) == 2 * TEXT_TASKS


def test_decoding_is_sent_and_recorded(model, downstream, sra_folder, tmp_path):
    config = EndToEndConfig(str(sra_folder), fixed=("none",), seed=7)
    result = run_end_to_end(config, downstream(temperature=0.5, max_output_tokens=64), tmp_path / "out")
    assert result["decoding"] == {"temperature": 0.5, "max_tokens": 64, "seed": 7}
    body = model.bodies[0]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 64, 7)
    assert "response_format" not in body


def test_a_server_that_fails_three_times_in_ten_is_survived(model, downstream, sra_folder, tmp_path):
    model.status = lambda number: 500 if number % 10 in (1, 4, 7) else 200
    result = run_end_to_end(EndToEndConfig(str(sra_folder)), downstream(), tmp_path / "out")
    assert by_name(result)["Gold skills"]["accuracy"] == 1.0
    assert all(row["missing"] == 0 for row in result["conditions"])
    assert result["usage"]["retries"] > 0


def test_answers_that_never_come_are_missing_not_wrong(model, downstream, sra_folder, tmp_path):
    model.status = lambda number: 500 if number > 3 else 200
    result = run_end_to_end(
        EndToEndConfig(str(sra_folder), fixed=("none",)), downstream(max_retries=0, concurrency=1), tmp_path / "out"
    )
    (row,) = result["conditions"]
    assert row["missing"] == TEXT_TASKS - 3
    assert row["accuracy"] is None  # whole suites have no answer
    assert any("5 of 8 instances have no answer" in note for note in result["notes"])
    model.status = lambda number: 200
    again = run_end_to_end(EndToEndConfig(str(sra_folder), fixed=("none",)), downstream(), tmp_path / "out")
    assert again["conditions"][0]["missing"] == 0


def test_a_budget_ends_the_asking(model, downstream, sra_folder, tmp_path):
    config = EndToEndConfig(str(sra_folder), fixed=("none",))
    result = run_end_to_end(
        config, downstream(budget_tokens=700, max_output_tokens=16, concurrency=1), tmp_path / "out"
    )
    assert result["usage"]["not_asked"] > 0
    assert result["conditions"][0]["missing"] == result["usage"]["not_asked"]


def test_a_refused_key_stops_and_keeps_what_was_answered(model, downstream, sra_folder, tmp_path):
    config = EndToEndConfig(str(sra_folder), fixed=("none",))
    model.status = lambda number: 401 if number > 3 else 200
    with pytest.raises(TeacherStopped, match="refused_access"):
        run_end_to_end(config, downstream(concurrency=1), tmp_path / "out")
    model.status = lambda number: 200
    result = run_end_to_end(config, downstream(), tmp_path / "out")
    assert result["conditions"][0]["missing"] == 0
    assert max(model.answered.values()) == 1


def test_a_torn_last_line_is_passed_over(model, downstream, sra_folder, tmp_path):
    config = EndToEndConfig(str(sra_folder))
    run_end_to_end(config, downstream(), tmp_path / "out")
    file = tmp_path / "out" / "answers.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    result = run_end_to_end(config, downstream(), tmp_path / "out")
    assert by_name(result)["Gold skills"]["accuracy"] == 1.0
    assert any("1 damaged lines passed over" in note for note in result["notes"])
    with AnswerFile(tmp_path / "out") as read:
        assert read.damaged == 1  # the lines behind it are whole


def test_two_runs_do_not_write_to_one_file(model, downstream, sra_folder, tmp_path):
    with AnswerFile(tmp_path / "out"), pytest.raises(ValueError, match="another run is writing to it"):
        run_end_to_end(EndToEndConfig(str(sra_folder)), downstream(), tmp_path / "out")


def test_a_model_searches_on_the_fly(model, downstream, sra_folder, tmp_path):
    result = run_end_to_end(
        EndToEndConfig(str(sra_folder), systems=["bm25"], fixed=("none",)), downstream(), tmp_path / "o"
    )
    assert [row["kind"] for row in result["conditions"]] == ["none", "retrieved"]
    assert by_name(result)["bm25"]["source"] == "bm25"


def test_more_skills_are_shown_in_their_order(model, downstream, sra_folder, retrieved, tmp_path):
    config = EndToEndConfig(str(sra_folder), split="champ", fixed=(), systems=[str(retrieved)], top_k=2)
    run_end_to_end(config, downstream(), tmp_path / "out")
    message = model.bodies[0]["messages"][-1]["content"]
    assert message.index("Use ch/sum.") < message.index("Use web/other.") < message.index("Sum the first n numbers.")


def test_a_limit_takes_instances_of_every_suite(model, downstream, sra_folder, tmp_path):
    result = run_end_to_end(EndToEndConfig(str(sra_folder), limit=1), downstream(), tmp_path / "out")
    assert [part["n"] for part in result["conditions"][0]["suites"]] == [1] * 5


def test_code_is_run_when_asked_for(model, downstream, sra_folder, tmp_path, sandbox):
    config = EndToEndConfig(str(sra_folder), code=CodeConfig(limits=sandbox.limits))
    result = run_end_to_end(config, downstream(), tmp_path / "out")
    assert result["n_instances"] == ALL_TASKS
    gold = by_name(result)["Gold skills"]
    assert (gold["suites"][-1]["suite"], gold["suites"][-1]["correct"]) == ("bigcodebench", 1)
    assert result["code"]["isolated"]


def test_without_isolation_nothing_is_asked_or_run(model, downstream, sra_folder, tmp_path, monkeypatch):
    def refuse(self: object) -> None:
        raise SandboxError("the sandbox cannot be built on this machine: no namespaces")

    monkeypatch.setattr("evaluation.end_to_end.sandbox.Sandbox.check", refuse)
    with pytest.raises(SandboxError, match="no namespaces"):
        run_end_to_end(EndToEndConfig(str(sra_folder), code=CodeConfig()), downstream(), tmp_path / "out")
    assert model.bodies == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "bigcodebench"}, "nothing to ask: only bigcodebench was chosen, and that needs --run-code"),
        ({"fixed": ("golden",)}, "condition is 'golden'; expected one of none, gold"),
        ({"fixed": ()}, "no condition"),
        ({"systems": ["A=bm25", "A=bm25"]}, "two conditions are called 'A'"),
        ({"systems": ["=bm25"]}, "expected SOURCE or NAME=SOURCE"),
        ({"systems": ["bm25"], "top_k": 0}, "top-k is 0"),
        ({"skill_tokens": 5}, "expected tokenizer"),
        ({"skill_chars": 0}, "skill_chars is 0; expected at least 1"),
        ({"limit": -1}, "limit is -1; expected at least 0"),
        ({"split": "chess"}, "no suite 'chess'"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_asked(
    model, downstream, sra_folder, tmp_path, change, message
):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run_end_to_end(EndToEndConfig(str(sra_folder), **change), downstream(), tmp_path / "out")
    assert model.bodies == []


def test_a_result_of_other_requests_is_refused(downstream, sra_folder, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"model": "m", "queries": [{"query_id": "q", "ids": ["s"], "qrels": {"s": 1}}]}))
    with pytest.raises(ValueError, match=r"other.json: no request 'theoremqa_00000' \(8 of 8 instances are missing\)"):
        run_end_to_end(EndToEndConfig(str(sra_folder), systems=[str(other)]), downstream(), tmp_path / "out")


def test_a_result_on_another_corpus_is_refused(downstream, sra_folder, retrieved, tmp_path):
    retrieved.write_text(retrieved.read_text().replace("tq/tree", "tq/bush"))
    with pytest.raises(ValueError, match=r"lists skill 'tq/bush', which .*sra lacks"):
        run_end_to_end(EndToEndConfig(str(sra_folder), systems=[str(retrieved)]), downstream(), tmp_path / "out")


def test_a_killed_run_goes_on_where_it_was(model, sra_folder, tmp_path):
    model.delay = 0.2
    command = [
        sys.executable, "-c", "from skillreason.cli import main; main()", "end-to-end", "run", "model=m", f"base_url={model.url}",
        "concurrency=1", "--bench", str(sra_folder), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while sum(model.answered.values()) < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = sum(model.answered.values())
    assert 5 <= before < 2 * TEXT_TASKS
    model.delay = 0.0
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert sum(model.answered.values()) <= 2 * TEXT_TASKS + 1  # the one call that was under way when it was killed
    assert by_name(read_end_to_end(tmp_path / "out"))["Gold skills"]["accuracy"] == 1.0
    assert "| Gold skills" in ended.stdout
    assert (tmp_path / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
