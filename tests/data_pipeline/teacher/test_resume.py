"""A run that is killed, and two that overlap: nothing that was paid for is asked again. The server counts."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.teacher.cache import ResponseCache

RUN = """
import sys
from data_pipeline.teacher import ApiTeacher, TeacherConfig, TeacherTask
from data_pipeline.teacher.forms import form, text

kind, url, folder, concurrency, count = sys.argv[1:]
config = TeacherConfig(kind=kind, model="m", base_url=url, concurrency=int(concurrency), backoff_s=0.01)
tasks = [
    TeacherTask(f"echo/w{i}", "echo", "Repeat the last word.", f"The word is w{i}", form(word=text(20)))
    for i in range(int(count))
]
words = [result.value["word"] for result in ApiTeacher(config, folder).run(tasks)]
print(" ".join(words))
"""

Start = Callable[[int, int], "subprocess.Popen[str]"]

pytestmark = pytest.mark.parametrize("kind", ["openai"], indirect=True)


@pytest.fixture
def start(endpoint: Any, kind: str, tmp_path: Path) -> Iterator[Start]:
    """Start a process that asks ``count`` tasks with ``concurrency``; all use one cache."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    started: list[subprocess.Popen[str]] = []

    def begin(concurrency: int, count: int) -> subprocess.Popen[str]:
        arguments = [kind, endpoint.base_url(kind), str(tmp_path / "cache"), str(concurrency), str(count)]
        command = [sys.executable, str(script), *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes, cwd=Path(__file__).parents[3]))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[..., bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def stored(folder: Path) -> int:
    """Answers on disk, seen by a reader of its own; the file must be sound."""
    if not (folder / "answers.sqlite3").exists():
        return 0
    with sqlite3.connect(folder / "answers.sqlite3", timeout=30) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tables = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'answers'").fetchone()[0]
        return database.execute("SELECT count(*) FROM answers").fetchone()[0] if tables else 0


def finished(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.split()


def test_a_killed_run_repeats_no_paid_call(start: Start, endpoint: Any, tmp_path: Path):
    answered = 10

    def answer(prompt: str) -> str:
        with endpoint.lock:
            if sum(endpoint.paid.values()) >= answered:
                endpoint.gate.clear()  # later requests wait unanswered, and die with their process
        return json.dumps({"word": prompt.split()[-1]})

    endpoint.answer = answer
    first = start(4, 30)
    # What has been answered beyond these, before the gate closed, must have arrived as well: on a busy machine it takes a while.
    wait_until(lambda: stored(tmp_path / "cache") >= max(answered, sum(endpoint.paid.values())))
    paid = dict(endpoint.paid)
    first.kill()
    first.wait()
    endpoint.answer = lambda prompt: json.dumps({"word": prompt.split()[-1]})
    with endpoint.lock:
        endpoint.paid.clear()
        # Requests of the dead process are answered into the void; they are not the second run's.
        asked_before = len(endpoint.requests)
    void = [body["messages"][-1]["content"] for body in endpoint.requests[:asked_before]]
    void = [prompt for prompt in void if prompt not in paid]
    endpoint.gate.set()
    wait_until(lambda: sum(endpoint.paid.values()) == len(void))
    endpoint.paid.clear()

    assert finished(start(4, 30)) == [f"w{i}" for i in range(30)]
    assert not paid.keys() & endpoint.paid.keys()
    assert set(endpoint.paid.values()) == {1}
    assert len(paid) + len(endpoint.paid) == 30


def test_kills_at_any_moment_lose_at_most_what_was_on_the_wire(start: Start, endpoint: Any, tmp_path: Path):
    endpoint.delay = 0.002
    generator = random.Random(0)
    before = 0
    for _ in range(2):
        process = start(1, 60)
        wait_until(lambda least=before: stored(tmp_path / "cache") > least)
        time.sleep(generator.uniform(0.0, 0.05))
        process.kill()
        process.wait()
        before = stored(tmp_path / "cache")
    assert finished(start(1, 60)) == [f"w{i}" for i in range(60)]
    repeated = sum(endpoint.paid.values()) - 60
    assert repeated <= 2  # one call in flight at each kill
    assert stored(tmp_path / "cache") == 60
    assert ResponseCache(tmp_path / "cache").spent("openai", "m") == (60 * 100, 60 * 10)


def test_two_processes_at_once_pay_once(start: Start, endpoint: Any):
    endpoint.delay = 0.02
    words = [f"w{i}" for i in range(40)]
    both = [start(4, 40), start(4, 40)]
    assert [finished(process) for process in both] == [words, words]
    assert set(endpoint.paid.values()) == {1}
    assert len(endpoint.paid) == 40
