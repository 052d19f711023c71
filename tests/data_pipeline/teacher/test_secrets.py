"""The key: in the header of a request, and nowhere else, whatever the endpoint does with it."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.teacher import ApiTeacher, TeacherStopped, TeacherTask

KEY = "sk-test-3f9a27c45b1e"
WordTask = Callable[[str], TeacherTask]


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch, teacher: Callable[..., ApiTeacher]) -> Callable[..., ApiTeacher]:
    monkeypatch.setenv("SECRET_OF_THE_TEST", KEY)
    return lambda **changes: teacher(api_key_env="SECRET_OF_THE_TEST", **changes)


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_the_key_is_sent_in_the_header_alone(keyed: Any, word_task: WordTask, endpoint: Any):
    keyed().complete(word_task("apple"))
    assert [name for name, value in endpoint.headers[0].items() if KEY in value] == ["authorization"]
    assert KEY not in json.dumps(endpoint.requests)


def test_no_key_is_sent_where_none_is_named(
    teacher: Callable[..., ApiTeacher],
    word_task: WordTask,
    endpoint: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    for variable in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(variable, KEY)
    teacher().complete(word_task("apple"))
    assert KEY not in json.dumps(endpoint.headers)


def test_an_endpoint_that_repeats_the_key_gets_it_into_no_file_or_result(
    keyed: Any, word_task: WordTask, endpoint: Any, fault: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    endpoint.answer = lambda prompt: json.dumps({"word": KEY}) if "w1" in prompt else f"the key is {KEY}"
    endpoint.faults.append(fault.status(500, message=f"failed with Bearer {KEY}"))
    endpoint.faults.append(fault.status(429, {"X-Seen": KEY}, message=f"{KEY} is over its limit"))
    asked = keyed(max_repairs=1, max_retries=5)
    results = [asked.complete(word_task("w1")), asked.complete(word_task("w2"))]
    endpoint.faults.extend([fault.status(403, message=f"no access with {KEY}")] * 3)
    results.append(asked.complete(word_task("w3")))
    assert [r.status for r in results] == ["ok", "failed", "failed"]
    assert results[0].value == {"word": "[api key]"}
    assert KEY not in repr(results)
    assert KEY.encode() not in written(tmp_path)
    assert (tmp_path / "cache" / "failures.jsonl").is_file()
    assert KEY not in repr(asked) + repr(vars(asked)) + repr(asked.config)


def test_an_answer_that_spells_the_key_in_escapes_brings_it_into_no_result(
    keyed: Any, word_task: WordTask, endpoint: Any, tmp_path: Path
):
    endpoint.answer = lambda prompt: json.dumps({"word": KEY}).replace("sk-", "\\u0073k\\u002d")
    assert keyed().complete(word_task("apple")).value == {"word": "[api key]"}
    assert KEY.removeprefix("sk-").encode() not in written(tmp_path)


def test_the_error_that_ends_a_run_shows_no_key(keyed: Any, word_task: WordTask, endpoint: Any, fault: Any):
    endpoint.faults.append(fault.status(401, message=f"Incorrect API key provided: {KEY}"))
    with pytest.raises(TeacherStopped) as stopped:
        keyed().complete(word_task("apple"))
    shown = "".join(traceback.format_exception(stopped.value))
    assert "Incorrect API key provided: [api key]" in shown
    assert KEY not in shown
    assert stopped.value.__cause__ is None
    assert KEY.encode() not in pickle.dumps(stopped.value.args)


def test_debug_logs_show_no_key(
    keyed: Any, word_task: WordTask, endpoint: Any, fault: Any, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    endpoint.faults.extend([fault.status(500), fault.cut_body])
    assert keyed().complete(word_task("apple")).ok
    assert len(caplog.records) > 10  # the SDKs and their HTTP library do log
    assert KEY not in caplog.text
    assert KEY not in "".join(repr(record.args) for record in caplog.records)
