"""The agents' server as agents meet it: the SDK's own client over stdio and HTTP, and raw messages that no client would send."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, MCPError, StdioServerParameters

from data_pipeline import Skill, SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from serving import mcp_server
from serving.index_build import build_index
from serving.library import Library
from serving.mcp_server import LIBRARY_URI, build_server, http_app
from serving.mcp_tools import SkillTools
from serving.searcher import SkillSearcher

AUDIT = "ai-ml/annotation-agreement-audit"
TOKEN = "a-token-of-the-tests-0123456789"
NEW = SkillCorpus([Skill("media/resize", "resize", "Resize pictures.", "Do it.")])


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "skillreason", "mcp", *map(str, arguments)]


@contextlib.contextmanager
def connected(server: Any, mode: str = "auto") -> Iterator[Callable[..., Any]]:
    """``call(method, …)`` of a connected client of the SDK, from a thread without an event loop."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server, mode=mode)) as client:

        def call(method: str, *arguments: Any, **options: Any) -> Any:
            return portal.call(partial(getattr(client, method), *arguments, **options))

        yield call


@contextlib.contextmanager
def over_stdio(index: Path, mode: str = "auto") -> Iterator[Callable[..., Any]]:
    arguments = command("--index", index)
    with connected(StdioServerParameters(command=arguments[0], args=arguments[1:]), mode) as call:
        yield call


@pytest.fixture(scope="module")
def agent(sample_index: Path) -> Iterator[Callable[..., Any]]:
    """A client of a server process that all tests of this module share."""
    with over_stdio(sample_index) as call:
        yield call


# -- over stdio, with the SDK's client -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_both_generations_of_the_protocol_find_and_read_a_skill(sample_index: Path, mode: str):
    with over_stdio(sample_index, mode) as call:
        found = call("call_tool", "find_skills", {"request": load_sample_corpus().get(AUDIT).description})
        assert found.structured_content["skills"][0]["skill_id"] == AUDIT
        read = call("call_tool", "read_skill", {"skill_id": AUDIT})
        assert read.structured_content["body"] == load_sample_corpus().get(AUDIT).body


def test_the_tools_say_what_they_search_and_offer_only_what_the_index_supports(agent: Callable[..., Any]):
    find, read = agent("list_tools").tools
    assert (find.name, read.name) == ("find_skills", "read_skill")
    assert "among 114 skills (domains: ai-ml (13)," in find.description
    assert set(find.input_schema["properties"]) == {"request", "k", "domain"}
    assert find.input_schema["required"] == ["request"]
    assert find.annotations.read_only_hint is True


def test_the_text_of_a_result_is_its_structure_as_json(agent: Callable[..., Any]):
    result = agent("call_tool", "find_skills", {"request": "how far do the annotators agree", "k": 2})
    assert json.loads(result.content[0].text) == result.structured_content
    assert not result.is_error


def test_a_refused_call_is_a_tool_error_that_the_agent_can_read(agent: Callable[..., Any]):
    result = agent("call_tool", "read_skill", {"skill_id": "no/such"})
    assert result.is_error
    assert "no skill 'no/such' among the 114 skills" in result.content[0].text


def test_an_unknown_tool_or_resource_is_a_protocol_error(agent: Callable[..., Any]):
    with pytest.raises(MCPError, match="no tool 'search'; expected find_skills or read_skill"):
        agent("call_tool", "search", {})
    with pytest.raises(MCPError, match=f"expected {LIBRARY_URI}"):
        agent("read_resource", "skillreason://other")


def test_the_library_resource_counts_the_skills_of_every_domain(agent: Callable[..., Any]):
    about = json.loads(agent("read_resource", LIBRARY_URI).contents[0].text)
    assert sum(about["domains"].values()) == about["n_skills"] == 114
    assert (about["model"], about["hybrid"], about["rerank"]) == ("bm25", False, False)


@pytest.mark.parametrize(
    "request_text", ["Tür → 日本語 \U0001f600", "\u202e\u0000\u200b e\u0301", "x\u2028y\u2029z\r\n"]
)
def test_any_unicode_gets_an_answer(agent: Callable[..., Any], request_text: str):
    result = agent("call_tool", "find_skills", {"request": request_text, "k": 1})
    assert len(result.structured_content["skills"]) == 1


def test_calls_at_the_same_time_get_their_own_answers(agent: Callable[..., Any]):
    skills = load_sample_corpus()[:20]

    def first(skill: Skill) -> str:
        result = agent("call_tool", "find_skills", {"request": skill.description, "k": 1})
        return result.structured_content["skills"][0]["skill_id"]

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(first, skills)) == [skill.skill_id for skill in skills]


def test_an_update_of_the_index_is_found_in_the_same_session(own_index: Path):
    with over_stdio(own_index) as call:
        assert call("call_tool", "read_skill", {"skill_id": "media/resize"}).is_error
        build_index(own_index, NEW, "bm25")
        assert call("call_tool", "read_skill", {"skill_id": "media/resize"}).structured_content["body"] == "Do it."
        assert "among 1 skills (domains: media (1))" in call("list_tools").tools[0].description


# -- over stdio, raw -------------------------------------------------------------------------------------------------------


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.fixture
def raw(sample_index: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server process; its pipes are the test's."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command("--index", sample_index), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process
        process.kill()


def say(process: subprocess.Popen[bytes], *messages: bytes | dict[str, Any]) -> None:
    assert process.stdin is not None
    for message in messages:
        process.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[bytes], number: int) -> dict[str, Any]:
    """The response to a request; every line on stdout until then must be JSON-RPC."""
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        if message.get("id") == number:
            return message
    raise AssertionError(f"no answer to request {number}")


def ask(number: int, **arguments: Any) -> dict[str, Any]:
    params = {"name": "find_skills", "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def test_lines_that_are_no_messages_do_not_end_the_session(raw: subprocess.Popen[bytes]):
    say(raw, INITIALIZE)
    assert answer(raw, 1)["result"]["serverInfo"]["name"] == "skillreason"
    say(raw, INITIALIZED, b"hello", b"", b'{"jsonrpc": "2.0"', b"\xff\xfe", b"[]", {"jsonrpc": "2.0", "id": 7})
    say(raw, ask(2, request="how far do the annotators agree", k=1))
    assert len(answer(raw, 2)["result"]["structuredContent"]["skills"]) == 1


def test_arguments_that_are_no_object_are_a_protocol_error(raw: subprocess.Popen[bytes]):
    say(raw, INITIALIZE, INITIALIZED)
    wrong = ask(2) | {"params": {"name": "find_skills", "arguments": ["x"]}}
    say(raw, wrong)
    assert answer(raw, 2)["error"]["code"] == -32602


def test_a_lone_surrogate_does_not_end_the_session(raw: subprocess.Popen[bytes]):
    say(raw, INITIALIZE, INITIALIZED)
    say(raw, ask(2, request="annotators \ud800 agree"), ask(3, request="how far do the annotators agree"))
    assert not answer(raw, 3)["result"]["isError"]


def test_the_process_ends_when_its_client_has_gone(raw: subprocess.Popen[bytes]):
    say(raw, INITIALIZE)
    answer(raw, 1)
    assert raw.stdin is not None
    raw.stdin.close()
    assert raw.wait(timeout=20) == 0


def test_a_killed_server_is_an_error_for_its_client_and_a_new_one_answers(sample_index: Path, tmp_path: Path):
    pid = tmp_path / "pid"
    run = ["-c", 'echo $$ > "$0"; exec "$@"', str(pid), *command("--index", sample_index)]
    with (
        contextlib.suppress(BaseExceptionGroup, MCPError),
        connected(StdioServerParameters(command="sh", args=run)) as call,
    ):
        call("list_tools")
        os.kill(int(pid.read_text()), signal.SIGKILL)
        with pytest.raises(MCPError):
            call("call_tool", "read_skill", {"skill_id": AUDIT}, read_timeout_seconds=20)
    with over_stdio(sample_index) as call:
        assert not call("call_tool", "read_skill", {"skill_id": AUDIT}).is_error


# -- while the models load -------------------------------------------------------------------------------------------------


def test_tools_are_listed_before_the_models_are_loaded_and_a_call_waits(
    sample_index: Path, monkeypatch: pytest.MonkeyPatch
):
    loaded = threading.Event()
    really_open = SkillSearcher.open

    def slow_open(*arguments: Any, **options: Any) -> SkillSearcher:
        assert loaded.wait(30)
        return really_open(*arguments, **options)

    monkeypatch.setattr(SkillSearcher, "open", slow_open)
    monkeypatch.setattr(mcp_server, "PROGRESS_S", 0.05)
    told: list[str] = []

    async def told_so(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")
        loaded.set()

    with connected(build_server(SkillTools(Library(sample_index)))) as call:
        assert len(call("list_tools").tools) == 2
        assert not loaded.is_set()
        result = call("call_tool", "find_skills", {"request": "resize pictures"}, progress_callback=told_so)
    assert told[0] == "loading the model"
    assert not result.is_error


def test_a_defect_is_a_tool_error_without_details_and_a_traceback_in_the_log(
    sample_index: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret path")

    monkeypatch.setattr(SkillSearcher, "search", fail)
    with connected(build_server(SkillTools(Library(sample_index)))) as call:
        result = call("call_tool", "find_skills", {"request": "resize pictures"})
    assert result.is_error
    assert "secret" not in result.content[0].text
    assert "RuntimeError: secret path" in caplog.text


def test_a_document_with_a_lone_surrogate_is_returned_without_it(sample_index: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SkillSearcher, "skill", lambda *_: Skill("a/b", "b", "d", "one \udcff two"))
    with connected(build_server(SkillTools(Library(sample_index))), "legacy") as call:
        assert call("call_tool", "read_skill", {"skill_id": "a/b"}).structured_content["body"] == "one ? two"


# -- over HTTP -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def http_server(index: Path, port: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that accepts connections; killed at the end."""
    arguments = command("--index", index, "--http", "--port", port)
    with subprocess.Popen(arguments, env=os.environ | environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process
        process.kill()


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_client_over_http_does_not_notice_a_restart_of_the_server(sample_index: Path, port: int):
    with contextlib.ExitStack() as stack:
        with http_server(sample_index, port):
            call = stack.enter_context(connected(f"http://127.0.0.1:{port}/mcp"))
            before = call("call_tool", "find_skills", {"request": "resize pictures"}).structured_content
        with http_server(sample_index, port):
            assert call("call_tool", "find_skills", {"request": "resize pictures"}).structured_content == before


def post(app: Any, headers: dict[str, str], host: str = "127.0.0.1:8001") -> httpx2.Response:
    """``tools/list`` as curl would send it, to an application in this process."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accepted = {"Accept": "application/json, text/event-stream", "Host": host}

    async def send() -> httpx2.Response:
        starlette = getattr(app, "app", app)
        async with (
            starlette.router.lifespan_context(starlette),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=f"http://{host}") as client,
        ):
            return await client.post("/mcp", json=body, headers=accepted | headers)

    return anyio.run(send)


def app_with(index: Path, host: str, token: str | None = None) -> Any:
    from serving.auth import token_digest

    return http_app(SkillTools(Library(index)), host, [token_digest(token)] if token else [])


def test_one_post_without_a_session_lists_the_tools(sample_index: Path):
    response = post(app_with(sample_index, "127.0.0.1"), {})
    assert [tool["name"] for tool in response.json()["result"]["tools"]] == ["find_skills", "read_skill"]


@pytest.mark.parametrize("headers", [{}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}])
def test_a_server_with_a_token_refuses_everybody_else(sample_index: Path, headers: dict[str, str]):
    response = post(app_with(sample_index, "0.0.0.0", TOKEN), headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert "Authorization: Bearer TOKEN" in response.json()["error"]["message"]


def test_a_server_with_a_token_answers_who_has_it_under_any_name(sample_index: Path):
    response = post(app_with(sample_index, "0.0.0.0", TOKEN), {"Authorization": f"Bearer {TOKEN}"}, "skills.example")
    assert response.status_code == 200


def test_without_a_token_a_name_that_is_not_this_machines_is_refused(sample_index: Path):
    app = app_with(sample_index, "127.0.0.1")
    assert post(app, {}, "evil.example").status_code == 421
    assert post(app_with(sample_index, "127.0.0.1"), {"Origin": "http://evil.example"}).status_code == 403


def test_without_a_token_only_loopback_may_be_listened_on(sample_index: Path):
    with pytest.raises(ValueError, match=r"--host 0\.0\.0\.0 is reachable .* expected --token-file"):
        app_with(sample_index, "0.0.0.0")


# -- the command -----------------------------------------------------------------------------------------------------------


def test_a_folder_without_an_index_is_one_line_on_stderr_and_nothing_on_stdout(tmp_path: Path):
    done = subprocess.run(command("--index", tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path}: no index here")
    assert done.stderr.count("\n") == 1
