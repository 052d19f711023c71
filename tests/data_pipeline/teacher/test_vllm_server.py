"""The OpenAI-compatible client against a real vLLM server with a tiny backbone, whose weights know nothing.

Structured output makes even its answers fit a schema of fixed values; what else it writes goes down the path of failures.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_pipeline.teacher import ApiTeacher, TeacherConfig, TeacherTask
from data_pipeline.teacher.forms import FLAG, form, one_of
from models.tiny import TinyConfig, create_tiny

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (make setup)"),
]

SHAPE = TinyConfig(vocab_size=400, hidden_size=64, intermediate_size=128, num_heads=2, num_key_value_heads=1)
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
START_S = 240
SCHEMA = form(label=one_of(("strong", "weak")), score=one_of((1, 2, 3)), keep=FLAG)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("vllm")
    model = create_tiny(["Draw a chart.", "Fill a form."], folder / "tiny", SHAPE)
    (folder / "chat.jinja").write_text(CHAT_TEMPLATE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The module behind `vllm serve`: the command itself asks for a package named vllm, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--chat-template", str(folder / "chat.jinja")]
    command += ["--max-model-len", "2048", "--dtype", "float32", "--enforce-eager"]
    # A model without sense would fill its tokens with the white space that JSON allows between values.
    command += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
    with open(folder / "log", "wb") as log:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, folder / "log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        try:
            server.wait(30)
        finally:
            try:
                os.killpg(server.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(START_S):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, log.read_text(errors="replace")[-4000:]
            time.sleep(1)
    raise AssertionError(f"no answer in {START_S} s: {log.read_text(errors='replace')[-4000:]}")


def teacher(address: str, folder: Path) -> ApiTeacher:
    config = TeacherConfig(
        kind="openai",
        model="tiny",
        base_url=address,
        max_output_tokens=120,
        max_repairs=1,
        temperature=0.0,
        concurrency=4,
    )
    return ApiTeacher(config, folder)


def label_task(number: int) -> TeacherTask:
    return TeacherTask(f"label/{number}", "label", "Label the text.", f"Text number {number}", SCHEMA)


def test_structured_output_fits_the_schema_and_is_not_asked_twice(address: str, tmp_path: Path):
    tasks = [label_task(number) for number in range(8)]
    first = teacher(address, tmp_path)
    results = list(first.run(tasks))
    assert [(r.status, r.attempts) for r in results] == [("ok", 1)] * 8
    assert first.usage.calls == 8
    assert first.usage.input_tokens > 8 * 20
    assert first.usage.estimated_tokens == 0
    again = teacher(address, tmp_path)
    assert list(again.run(tasks)) == results
    assert (again.usage.calls, again.usage.cached) == (0, 8)


def test_what_the_task_refuses_is_repaired_in_vain_and_kept(address: str, tmp_path: Path):
    task = TeacherTask("label/0", "label", "Label the text.", "Text", SCHEMA, check=lambda value: "not what was meant")
    result = teacher(address, tmp_path).complete(task)
    assert (result.status, result.reason, result.attempts) == ("failed", "check_failed", 2)
    assert "not what was meant" in (tmp_path / "failures.jsonl").read_text()
