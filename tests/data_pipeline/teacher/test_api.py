"""Runs of many tasks: order, concurrency, repair, cache, budget, and what a caller may do in the middle."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.teacher import ApiTeacher, OfflineTeacher, TeacherConfig, TeacherTask, open_teacher

WordTask = Callable[[str], TeacherTask]
MakeTeacher = Callable[..., ApiTeacher]

pytestmark = pytest.mark.parametrize("kind", ["openai"], indirect=True)


def failures(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "cache" / "failures.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_results_come_in_the_order_of_the_tasks(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    generator = random.Random(0)

    def answer(prompt: str) -> str:
        time.sleep(generator.uniform(0, 0.03))
        return json.dumps({"word": prompt.split()[-1]})

    endpoint.answer = answer
    words = [f"w{i}" for i in range(60)]
    results = list(teacher(concurrency=12).run(word_task(word) for word in words))
    assert [r.value["word"] for r in results if r.value] == words


def test_no_more_calls_at_a_time_than_set(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    endpoint.delay = 0.05
    list(teacher(concurrency=3).run([word_task(f"w{i}") for i in range(20)]))
    assert endpoint.most == 3


def test_tasks_are_taken_as_they_are_needed(teacher: MakeTeacher, word_task: WordTask):
    taken = []

    def tasks() -> Iterator[TeacherTask]:
        for i in range(10_000):
            taken.append(i)
            yield word_task(f"w{i}")

    run = teacher(concurrency=2).run(tasks())
    for _ in range(3):
        next(run)
    run.close()
    assert len(taken) < 60


def test_the_same_question_is_asked_once(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    endpoint.delay = 0.05
    asked = teacher(concurrency=6)
    results = list(asked.run([word_task("apple") for _ in range(6)]))
    assert all(r.value == {"word": "apple"} for r in results)
    assert len(endpoint.requests) == 1
    assert (asked.usage.calls, asked.usage.cached) == (1, 5)


def test_a_second_run_asks_nothing(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    tasks = [word_task(f"w{i}") for i in range(5)]
    first = list(teacher().run(tasks))
    again = teacher()
    assert list(again.run(tasks)) == first
    assert len(endpoint.requests) == 5
    assert (again.usage.calls, again.usage.cached, again.usage.input_tokens) == (0, 5, 0)


def test_another_model_is_asked_anew(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    teacher().complete(word_task("apple"))
    teacher(model="another-model").complete(word_task("apple"))
    assert [body["model"] for body in endpoint.requests] == ["test-model", "another-model"]


def test_a_wrong_answer_is_repaired_with_its_problem(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    endpoint.answer = lambda prompt: '{"word": 5}' if "not accepted" not in prompt else '{"word": "apple"}'
    asked = teacher()
    result = asked.complete(word_task("apple"))
    assert (result.value, result.attempts) == ({"word": "apple"}, 2)
    assert asked.usage.repairs == 1
    told = endpoint.requests[1]["messages"]
    assert [m["role"] for m in told] == ["system", "user", "assistant", "user"]
    assert told[2]["content"] == '{"word": 5}'
    assert "$.word" in told[3]["content"]


@pytest.mark.parametrize(
    "answer, reason",
    [('{"word": 5}', "schema_violation"), ("sorry", "invalid_json"), ('{"word": "x', "invalid_json")],
)
def test_repairs_are_bounded_and_the_failure_is_kept(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, tmp_path: Path, answer: str, reason: str
):
    endpoint.answer = lambda prompt: answer
    result = teacher(max_repairs=2).complete(word_task("apple"))
    assert (result.status, result.reason, result.attempts) == ("failed", reason, 3)
    assert len(endpoint.requests) == 3
    (kept,) = failures(tmp_path)
    assert (kept["task_id"], kept["reason"], kept["attempts"]) == ("echo/apple", reason, 3)
    assert kept["raw"] == answer


def test_a_failure_met_again_costs_nothing_and_is_not_repeated(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, tmp_path: Path
):
    endpoint.answer = lambda prompt: "sorry"
    teacher(max_repairs=1).complete(word_task("apple"))
    teacher(max_repairs=1).complete(word_task("apple"))
    assert len(endpoint.requests) == 2
    assert len(failures(tmp_path)) == 1


def test_a_long_answer_is_kept_in_part(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, tmp_path: Path):
    endpoint.answer = lambda prompt: "x" * 50_000
    teacher(max_repairs=0).complete(word_task("apple"))
    assert len(failures(tmp_path)[0]["raw"]) == 2_000


def test_a_failure_line_torn_by_a_kill_spoils_no_other(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, tmp_path: Path
):
    endpoint.answer = lambda prompt: "sorry"
    teacher(max_repairs=0).complete(word_task("apple"))
    path = tmp_path / "cache" / "failures.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    teacher(max_repairs=0).complete(word_task("pear"))
    assert json.loads(path.read_text().splitlines()[1])["task_id"] == "echo/pear"


def test_the_budget_stops_before_it_is_exceeded(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    # 110 tokens a call by the server's count; a call is admitted at about 30 + 80.
    endpoint.delay = 0.02
    asked = teacher(budget_tokens=1_000, max_output_tokens=80, concurrency=4)
    results = list(asked.run([word_task(f"w{i}") for i in range(30)]))
    spent_input, spent_output, _ = asked.spent
    assert spent_input + spent_output <= 1_000
    counts = [sum(r.status == s for r in results) for s in ("ok", "not_asked", "failed")]
    assert counts == [len(endpoint.requests), 30 - len(endpoint.requests), 0]
    assert counts[0] in (8, 9)
    assert {r.reason for r in results if r.status == "not_asked"} == {"budget"}
    assert asked.usage.not_asked == counts[1]


def test_a_budget_counts_what_earlier_runs_spent(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    limits = {"budget_tokens": 500, "max_output_tokens": 80, "concurrency": 1}
    first = list(teacher(**limits).run([word_task(f"w{i}") for i in range(10)]))
    answered = [r for r in first if r.ok]
    assert 0 < len(answered) < 10
    again = list(teacher(**limits).run([word_task(f"w{i}") for i in range(10)]))
    assert [r.status for r in again] == [r.status for r in first]
    assert len(endpoint.requests) == len(answered)


def test_a_raised_budget_goes_on(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    tasks = [word_task(f"w{i}") for i in range(10)]
    list(teacher(budget_tokens=500, max_output_tokens=80).run(tasks))
    assert all(r.ok for r in teacher(max_output_tokens=80).run(tasks))
    assert len(endpoint.requests) == 10


def test_a_budget_in_money_stops_too(teacher: MakeTeacher, word_task: WordTask):
    prices = {"price_input_per_million": 10.0, "price_output_per_million": 100.0}
    asked = teacher(budget_usd=0.01, max_output_tokens=20, concurrency=1, **prices)
    results = list(asked.run([word_task(f"w{i}") for i in range(10)]))
    # A call costs 100 x 10 + 10 x 100 = 0.002 $; the fifth would end at 0.010 $ but is admitted at more.
    assert sum(r.ok for r in results) == 4
    assert asked.usage.cost_usd == pytest.approx(0.008)


def test_a_cost_without_prices_is_unknown(teacher: MakeTeacher, word_task: WordTask):
    asked = teacher()
    asked.complete(word_task("apple"))
    assert asked.usage.cost_usd is None


def test_a_repair_that_the_budget_leaves_over_is_not_a_failure(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any
):
    endpoint.answer = lambda prompt: "sorry"
    result = teacher(budget_tokens=120, max_output_tokens=60).complete(word_task("apple"))
    assert (result.status, result.reason, result.attempts) == ("not_asked", "budget", 1)


def test_the_rate_limit_holds_back_what_is_too_much(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    run = teacher(requests_per_minute=3, concurrency=5).run([word_task(f"w{i}") for i in range(5)])
    assert [next(run).ok for _ in range(3)] == [True] * 3
    time.sleep(0.2)
    assert len(endpoint.requests) == 3
    run.close()


def test_calls_in_flight_are_kept_when_the_caller_stops(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, tmp_path: Path
):
    endpoint.delay = 0.3
    asked = teacher(concurrency=4)
    run = asked.run([word_task(f"w{i}") for i in range(40)])
    next(run)
    run.close()
    assert asked.usage.calls == len(endpoint.requests) == sum(endpoint.paid.values())
    assert 4 <= asked.usage.calls <= 8


def test_an_error_of_the_callers_tasks_reaches_the_caller(teacher: MakeTeacher, word_task: WordTask):
    def tasks() -> Iterator[TeacherTask]:
        yield word_task("apple")
        raise ZeroDivisionError("in the tasks")

    results = []
    with pytest.raises(ZeroDivisionError, match="in the tasks"):
        results.extend(teacher().run(tasks()))


def test_it_runs_inside_an_event_loop(teacher: MakeTeacher, word_task: WordTask):
    async def inside() -> bool:
        return teacher().complete(word_task("apple")).ok

    assert asyncio.run(inside())


def test_one_teacher_may_run_in_several_threads(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    asked = teacher(concurrency=2)
    done: list[int] = []
    tasks = [word_task(f"w{i}") for i in range(8)]
    threads = [threading.Thread(target=lambda: done.append(sum(r.ok for r in asked.run(tasks)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [8, 8, 8]
    assert len(endpoint.requests) == 8


def test_every_record_says_who_made_it(teacher: MakeTeacher, word_task: WordTask):
    assert teacher().complete(word_task("apple")).record() == {"word": "apple", "teacher": "openai:test-model"}


def test_a_failed_result_has_no_record(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    endpoint.answer = lambda prompt: "sorry"
    with pytest.raises(ValueError, match="echo/apple: no answer"):
        teacher(max_repairs=0).complete(word_task("apple")).record()


def test_the_configuration_chooses_the_teacher(teacher_config: Callable[..., TeacherConfig], tmp_path: Path):
    assert isinstance(open_teacher(teacher_config(), tmp_path), ApiTeacher)
    assert isinstance(open_teacher(TeacherConfig(), tmp_path / "none"), OfflineTeacher)
    assert not (tmp_path / "none").exists()
