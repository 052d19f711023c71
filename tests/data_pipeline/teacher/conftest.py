"""A local HTTP server that speaks both providers' protocols and fails on command, and teachers that ask it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data_pipeline.teacher import ApiTeacher, TeacherConfig, TeacherTask
from data_pipeline.teacher.forms import form, text

Fault = Callable[["Handler"], None]
INPUT_TOKENS, OUTPUT_TOKENS = 100, 10
"""What the server says of every answer that it used."""


class Endpoint:
    """``requests`` holds every body that arrived, ``paid`` counts the prompts that got an answer.

    ``faults`` meet the next requests, one each; ``answer`` is the model; ``refused`` names the means of imposing a schema that
    the endpoint does not know; ``gate`` clear: requests wait.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.paid: Counter[str] = Counter()
        self.faults: deque[Fault] = deque()
        self.answer: Callable[[str], str] = lambda prompt: json.dumps({"word": prompt.split()[-1]})
        self.refused: set[str] = set()
        self.usage = True
        self.delay = 0.0
        self.gate = threading.Event()
        self.gate.set()
        self.now = self.most = 0

    def base_url(self, kind: str) -> str:
        return f"{self.url}/v1" if kind == "openai" else self.url


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    endpoint: Endpoint

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.endpoint.lock:
            self.endpoint.requests.append(body)
            self.endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
            self.endpoint.times.append(time.monotonic())
            self.endpoint.now += 1
            self.endpoint.most = max(self.endpoint.most, self.endpoint.now)
            fault = self.endpoint.faults.popleft() if self.endpoint.faults else None
        try:
            self.endpoint.gate.wait(30)
            time.sleep(self.endpoint.delay)
            fault(self) if fault else self.reply(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client was killed, or gave up
        finally:
            with self.endpoint.lock:
                self.endpoint.now -= 1

    def reply(self, body: dict[str, Any]) -> None:
        anthropic = self.path.endswith("/v1/messages")
        mode = asked_mode(body)
        if mode in self.endpoint.refused:
            return self.send(
                400, {"error": {"message": f"{mode} is not supported here", "type": "invalid_request_error"}}
            )
        prompt = body["messages"][-1]["content"]
        with self.endpoint.lock:
            self.endpoint.paid[prompt] += 1
        answer = self.endpoint.answer(prompt)
        if anthropic:
            block: dict[str, Any] = {"type": "text", "text": answer}
            if "tools" in body:
                block = {"type": "tool_use", "id": "t1", "name": body["tools"][0]["name"], "input": json.loads(answer)}
            usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
            message = {"id": "m1", "type": "message", "role": "assistant", "model": body["model"], "content": [block]}
            return self.send(200, {**message, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage})
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        completion = {
            "id": "c1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
        }
        total = INPUT_TOKENS + OUTPUT_TOKENS
        usage = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": total}
        return self.send(200, {**completion, **({"usage": usage} if self.endpoint.usage else {})})

    def send(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, content in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, content)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def asked_mode(body: dict[str, Any]) -> str:
    """How the request imposes its schema."""
    if "tools" in body:
        return "tool"
    if "format" in body.get("output_config", {}):
        return "json_schema"
    return body.get("response_format", {}).get("type", "none")


# -- faults --------------------------------------------------------------------------------------------------------------


def status(code: int, headers: dict[str, str] | None = None, message: str = "no") -> Fault:
    return lambda handler: handler.send(code, {"error": {"message": message, "type": "error"}}, headers)


def raw_body(data: bytes, content_type: str = "application/json") -> Fault:
    """Status 200 with these bytes."""
    return lambda handler: handler.send(200, data, {"Content-Type": content_type})


def cut_body(handler: Handler) -> None:
    """Promise 5,000 bytes, send a few, and hang up."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    handler.wfile.write(b'{"id": "c1", "choices": [{"mess')
    handler.close_connection = True


def cut_stream(handler: Handler) -> None:
    """Begin a chunked answer and hang up in the middle of a chunk."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b'400\r\n{"id": "c1", "choi')
    handler.close_connection = True


def hang_up(handler: Handler) -> None:
    """Close without a word."""
    handler.close_connection = True


def drip(handler: Handler) -> None:
    """A byte now and then, for ever: no gap between two of them is long."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "5000")
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)
    handler.close_connection = True


def silence(seconds: float) -> Fault:
    def wait(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return wait


FAULTS: dict[str, Any] = {
    "status": status,
    "raw_body": raw_body,
    "cut_body": cut_body,
    "cut_stream": cut_stream,
    "hang_up": hang_up,
    "drip": drip,
    "silence": silence,
}


# -- fixtures ------------------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that are killed in mid-sentence are the point of these tests


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    handler = type("BoundHandler", (Handler,), {})
    server = Server(("127.0.0.1", 0), handler)
    handler.endpoint = Endpoint(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield handler.endpoint
    handler.endpoint.gate.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(params=["openai", "anthropic"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def teacher_config(endpoint: Endpoint, kind: str) -> Callable[..., TeacherConfig]:
    """A configuration that asks the local server and waits milliseconds between tries."""

    def make(**changes: Any) -> TeacherConfig:
        usual: dict[str, Any] = {
            "kind": kind,
            "model": "test-model",
            "base_url": endpoint.base_url(kind),
            "timeout_s": 30.0,
            "max_retries": 3,
            "backoff_s": 0.01,
            "backoff_max_s": 0.02,
        }
        return TeacherConfig(**{**usual, **changes})

    return make


@pytest.fixture
def teacher(teacher_config: Callable[..., TeacherConfig], tmp_path: Path) -> Callable[..., ApiTeacher]:
    """A teacher with its answers in ``tmp_path/cache``; keyword arguments change its configuration."""
    return lambda **changes: ApiTeacher(teacher_config(**changes), tmp_path / "cache")


def make_word_task(word: str) -> TeacherTask:
    return TeacherTask(f"echo/{word}", "echo", "Repeat the last word.", f"The word is {word}", form(word=text(20)))


@pytest.fixture
def word_task() -> Callable[[str], TeacherTask]:
    """A task whose right answer is ``{"word": <the word>}``."""
    return make_word_task


@pytest.fixture
def fault() -> SimpleNamespace:
    """What can go wrong with a request, by name."""
    return SimpleNamespace(**FAULTS)
