"""A benchmark of our own in SRA-Bench's layout, a sandbox for hostile programs, and a server that plays the downstream model."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evaluation.end_to_end import DownstreamConfig, Limits, Sandbox, SandboxError
from evaluation.end_to_end.tasks import Task

ADD_TESTS = """
import unittest
class TestCases(unittest.TestCase):
    def test_small(self):
        self.assertEqual(task_func(2, 3), 5)
    def test_negative(self):
        self.assertEqual(task_func(-1, 1), 0)
"""
LIMIT = {"calculator_id": 2, "output_type": "decimal"}
INSTANCES: dict[str, list[tuple[str, str, dict[str, Any]]]] = {
    "theoremqa": [
        ("How many edges has a tree of 8 vertices?", "tq/tree", {"answer": "7", "answer_type": "integer"}),
        ("What is the mean of 0.2 and 0.3?", "tq/mean", {"answer": "0.25", "answer_type": "float"}),
        ("Is every square a rectangle?", "tq/shape", {"answer": "True", "answer_type": "bool"}),
    ],
    "logicbench": [
        ("If it rains the road is wet. It rains. Is the road wet?", "lb/mp", {"answer": "yes", "task_type": "BQA"}),
        (
            "Which one follows?\n  choice_1: It snows.\n  choice_2: The road is wet.",
            "lb/mp",
            {"answer": "choice_2", "task_type": "MCQA"},
        ),
    ],
    "toolqa": [("When does the ferry leave?", "ta/agenda", {"answer": "8:00 PM"})],
    "medcalcbench": [
        (
            "What is the clearance?",
            "mc/crcl",
            {"answer": "50.0", "lower_limit": "47.5", "upper_limit": "52.5", **LIMIT},
        ),
    ],
    "champ": [("Sum the first n numbers.", "ch/sum", {"answer": "n(n+1)/2"})],
    "bigcodebench": [
        (
            "Write task_func, which adds two numbers.",
            "bc/add",
            {"test": ADD_TESTS, "entry_point": "task_func", "code_prompt": "def task_func(a, b):"},
        )
    ],
}
SKILLS = [*sorted({skill for rows in INSTANCES.values() for _, skill, _ in rows}), "web/other"]


@pytest.fixture
def sra_folder(tmp_path: Path) -> Path:
    """Nine instances of the six suites over ten skills."""
    root = tmp_path / "sra"
    (root / "instances").mkdir(parents=True)
    (root / "corpus").mkdir()
    corpus = [
        {"skill_id": skill, "name": f"Skill {skill}", "description": "How to.", "content": f"Use {skill}."}
        for skill in SKILLS
    ]
    (root / "corpus" / "corpus.json").write_text(json.dumps(corpus))
    for suite, rows in INSTANCES.items():
        values = [
            {
                "instance_id": f"{suite}_{number:05d}",
                "dataset": suite,
                "question": question,
                "skill_annotations": [skill],
                "eval_data": answer,
            }
            for number, (question, skill, answer) in enumerate(rows)
        ]
        (root / "instances" / f"{suite}.json").write_text(json.dumps(values))
    return root


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """A task of a suite whose released answer is given by keywords."""

    def make(suite: str, question: str = "?", **answer: Any) -> Task:
        return Task("id", suite, question, ("gold",), answer)

    return make


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """An isolated sandbox that gives a program little of everything; the test is skipped where none can be had."""
    try:
        made = Sandbox(Limits(wall_s=3.0, cpu_s=1, memory_mb=512, disk_mb=8, file_mb=4, processes=16))
        made.check()
    except SandboxError as error:
        pytest.skip(str(error))
    return made


class Model:
    """What the server answers: ``answer`` maps the user's message to a text; ``status`` is that of the request of a number."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answer: Callable[[str], str] = solve_with_skill
        self.status: Callable[[int], int] = lambda number: 200
        self.delay = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.answered: Counter[str] = Counter()
        self.lock = threading.Lock()


def solve_with_skill(message: str) -> str:
    """Right where the task's own skill is shown, unsure otherwise."""
    for rows in INSTANCES.values():
        for question, skill, answer in rows:
            if question not in message:
                continue
            if f"Use {skill}." not in message:
                return "I do not know."
            if "test" in answer:
                return "```python\ndef task_func(a, b):\n    return a + b\n```"
            return f"By the skill.\nANSWER: {answer['answer']}"
    raise AssertionError(message)


class Handler(BaseHTTPRequestHandler):
    model: Model

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.model.lock:
            self.model.bodies.append(body)
            number = len(self.model.bodies)
        time.sleep(self.model.delay)
        message = body["messages"][-1]["content"]
        status = self.model.status(number)
        if status != 200:
            return self.send(status, {"error": {"message": "no"}})
        with self.model.lock:
            self.model.answered[message] += 1
        choice = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": self.model.answer(message)}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        value = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        return self.send(200, value)

    def send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client was killed


@pytest.fixture
def model() -> Iterator[Model]:
    handler = type("BoundHandler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.model = Model(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield handler.model
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def downstream(model: Model) -> Callable[..., DownstreamConfig]:
    """A configuration that asks the server and waits milliseconds between tries."""

    def make(**changes: Any) -> DownstreamConfig:
        usual: dict[str, Any] = {"model": "test-model", "base_url": model.url, "backoff_s": 0.01, "backoff_max_s": 0.02}
        return DownstreamConfig(**{**usual, **changes})

    return make
