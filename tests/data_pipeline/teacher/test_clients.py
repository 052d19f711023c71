"""The real SDKs against a local server: protocol, structured output, and every way in which a call can fail."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from configs import ConfigError
from data_pipeline.teacher import ApiTeacher, TeacherStopped, TeacherTask

WordTask = Callable[[str], TeacherTask]
MakeTeacher = Callable[..., ApiTeacher]


def test_an_answer_comes_with_its_tokens(teacher: MakeTeacher, word_task: WordTask):
    asked = teacher()
    result = asked.complete(word_task("apple"))
    assert (result.status, result.value) == ("ok", {"word": "apple"})
    assert (asked.usage.calls, asked.usage.input_tokens, asked.usage.output_tokens) == (1, 100, 10)


def test_the_protocols_are_spoken(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, kind: str):
    teacher(max_output_tokens=77, temperature=0.0).complete(word_task("apple"))
    body, headers = endpoint.requests[0], endpoint.headers[0]
    assert body["model"] == "test-model"
    assert body["max_tokens"] == 77
    assert body["temperature"] == 0.0
    assert body["messages"][-1] == {"role": "user", "content": "The word is apple"}
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    }
    if kind == "openai":
        assert body["messages"][0] == {"role": "system", "content": "Repeat the last word."}
        assert body["response_format"] == {
            "type": "json_schema",
            "json_schema": {"name": "echo", "schema": schema, "strict": True},
        }
    else:
        assert body["system"] == "Repeat the last word."
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": schema}}
        assert "anthropic-version" in headers


def test_a_missing_sdk_is_named_at_once(teacher: MakeTeacher, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ConfigError, match=rf"kind '{kind}' .*skillreason\[teacher\]"):
        teacher()


def test_a_temperature_that_is_not_set_is_not_sent(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    teacher().complete(word_task("apple"))
    assert "temperature" not in endpoint.requests[0]


def test_further_fields_are_sent_as_they_are(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    teacher(extra={"top_p": 0.5, "max_tokens": 9}).complete(word_task("apple"))
    assert (endpoint.requests[0]["top_p"], endpoint.requests[0]["max_tokens"]) == (0.5, 9)


@pytest.mark.parametrize(
    "kind, refused, used",
    [
        ("openai", {"json_schema"}, "json_object"),
        ("openai", {"json_schema", "json_object"}, "none"),
        ("anthropic", {"json_schema"}, "tool"),
        ("anthropic", {"json_schema", "tool"}, "none"),
    ],
    indirect=["kind"],
)
def test_the_next_best_structured_output_is_found_once(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, refused: set[str], used: str
):
    endpoint.refused = refused
    asked = teacher(concurrency=1)
    results = list(asked.run([word_task("apple"), word_task("pear")]))
    assert [r.value for r in results] == [{"word": "apple"}, {"word": "pear"}]
    assert len(endpoint.requests) == len(refused) + 2
    modes = {
        "json_object": "response_format" in endpoint.requests[-1],
        "tool": "tools" in endpoint.requests[-1],
        "none": not {"response_format", "tools", "output_config"} & endpoint.requests[-1].keys(),
    }
    assert modes[used]


def test_a_means_that_is_set_is_the_only_one(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    endpoint.refused = {"json_schema"}
    result = teacher(structured="json_schema").complete(word_task("apple"))
    assert (result.status, result.reason) == ("failed", "bad_request")
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503, 529])
def test_passing_trouble_is_retried(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any, code: int):
    endpoint.faults.extend([fault.status(code), fault.status(code)])
    asked = teacher()
    assert asked.complete(word_task("apple")).ok
    assert (len(endpoint.requests), asked.usage.retries, asked.usage.lost_calls) == (3, 2, 0)


@pytest.mark.parametrize("name", ["cut_body", "cut_stream", "hang_up"])
def test_a_connection_cut_in_the_middle_is_retried_and_may_have_cost(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: SimpleNamespace, name: str
):
    endpoint.faults.append(getattr(fault, name))
    asked = teacher(max_output_tokens=500)
    assert asked.complete(word_task("apple")).ok
    assert (asked.usage.calls, asked.usage.lost_calls) == (1, 1)
    assert asked.usage.output_tokens == 10 + 500


@pytest.mark.parametrize(
    "data, content_type",
    [
        (b'{"id": "c1", "choices": [{"mess', "application/json"),
        (b"<html>Bad gateway</html>", "text/html"),
        (b"{}", "application/json"),
        (b'{"choices": [], "content": [{"type": "text"}]}', "application/json"),
        (b"", "application/json"),
    ],
)
def test_an_answer_that_is_none_is_retried(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any, data: bytes, content_type: str
):
    endpoint.faults.append(fault.raw_body(data, content_type))
    asked = teacher()
    assert asked.complete(word_task("apple")).ok
    assert asked.usage.retries == 1


@pytest.mark.parametrize("name", ["drip", "silence"])
def test_a_slow_answer_is_given_up_after_the_timeout(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any, name: str
):
    slow = fault.drip if name == "drip" else fault.silence(6.0)
    endpoint.faults.append(slow)
    start = time.monotonic()
    result = teacher(timeout_s=0.5, max_retries=0).complete(word_task("apple"))
    assert (result.status, result.reason) == ("failed", "timeout")
    assert time.monotonic() - start < 4.0


def test_retry_after_is_waited_for_by_every_call(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any):
    told: list[float] = []

    def too_fast(handler: Any) -> None:
        fault.status(429, {"Retry-After": "1.0"})(handler)
        told.append(time.monotonic())

    endpoint.faults.append(too_fast)
    results = list(teacher(concurrency=2).run([word_task(f"w{i}") for i in range(6)]))
    assert all(r.ok for r in results)
    # The other call may have been on its way; the four tasks after them wait.
    assert len([at for at in endpoint.times if told[0] < at < told[0] + 0.95]) <= 1
    assert len(endpoint.times) == 7


def test_a_wait_that_is_too_long_ends_the_run(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any):
    endpoint.faults.append(fault.status(429, {"Retry-After": "7200"}))
    with pytest.raises(TeacherStopped, match="asks to wait 7200 s"):
        teacher(retry_after_max_s=60.0).complete(word_task("apple"))


def test_tries_end_with_the_reason(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any):
    endpoint.faults.extend([fault.status(500, message="out of memory")] * 9)
    result = teacher(max_retries=2).complete(word_task("apple"))
    assert (result.status, result.reason) == ("failed", "server_error")
    assert "out of memory" in result.detail
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("code", [401, 402, 404])
def test_a_refused_key_or_model_ends_the_run(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any, code: int
):
    endpoint.faults.extend([fault.status(code, message="go away")] * 50)
    with pytest.raises(TeacherStopped, match="go away"):
        list(teacher(concurrency=2).run([word_task(f"w{i}") for i in range(30)]))
    assert len(endpoint.requests) <= 2


def test_a_forbidden_document_fails_alone(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any):
    endpoint.faults.append(fault.status(403, message="flagged"))
    results = list(teacher(concurrency=1).run([word_task("bomb"), word_task("pear")]))
    assert [(r.status, r.reason) for r in results] == [("failed", "forbidden"), ("ok", "")]


def test_a_server_that_is_down_ends_the_run_after_some_tasks(teacher: MakeTeacher, word_task: WordTask):
    asked = teacher(base_url="http://127.0.0.1:9", max_retries=1, stop_after_failures=3, concurrency=1)
    results = []
    with pytest.raises(TeacherStopped, match="3 tasks in a row"):
        results.extend(asked.run([word_task(f"w{i}") for i in range(30)]))
    assert asked.usage.failed == 2
    assert asked.usage.lost_calls == 0  # nothing was sent, nothing can have been charged


def test_an_endpoint_that_never_took_a_request_ends_the_run(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any
):
    endpoint.faults.extend([fault.status(400, message="unknown field")] * 90)
    with pytest.raises(TeacherStopped, match="unknown field"):
        list(teacher(stop_after_failures=4, concurrency=1).run([word_task(f"w{i}") for i in range(30)]))


def test_requests_refused_for_themselves_do_not_end_a_run(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any
):
    asked = teacher(stop_after_failures=2, concurrency=1, structured="none")
    assert asked.complete(word_task("first")).ok
    endpoint.faults.extend([fault.status(400, message="prompt too long")] * 5)
    results = list(asked.run([word_task(f"w{i}") for i in range(6)]))
    assert [r.status for r in results] == ["failed"] * 5 + ["ok"]


@pytest.mark.parametrize("kind", ["openai"], indirect=True)  # Anthropic's protocol always counts
def test_uncounted_tokens_are_estimated_and_marked(teacher: MakeTeacher, word_task: WordTask, endpoint: Any):
    endpoint.usage = False
    asked = teacher()
    asked.complete(word_task("apple"))
    assert asked.usage.input_tokens > 0
    assert asked.usage.estimated_tokens == asked.usage.input_tokens + asked.usage.output_tokens


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
def test_a_refusal_is_not_argued_with(teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any):
    message = {"role": "assistant", "content": None, "refusal": "I will not."}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    completion = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    endpoint.faults.append(fault.raw_body(json.dumps(completion).encode()))
    result = teacher().complete(word_task("apple"))
    assert (result.status, result.reason) == ("failed", "refused")
    assert len(endpoint.requests) == 1


def test_an_answer_cut_at_the_limit_is_told_to_be_shorter(
    teacher: MakeTeacher, word_task: WordTask, endpoint: Any, fault: Any, kind: str
):
    if kind == "openai":
        choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": '{"word": "app'}}
        body: dict[str, Any] = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    else:
        block = {"type": "text", "text": '{"word": "app'}
        body = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block]}
        body |= {"stop_reason": "max_tokens", "usage": {"input_tokens": 1, "output_tokens": 1}}
    endpoint.faults.append(fault.raw_body(json.dumps(body).encode()))
    endpoint.answer = lambda prompt: json.dumps({"word": "short" if "briefly" in prompt else "long"})
    result = teacher(max_output_tokens=50).complete(word_task("apple"))
    assert result.value == {"word": "short"}
