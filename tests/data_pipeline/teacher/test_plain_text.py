"""Tasks without a schema: the answer is the model's text as it is."""

from __future__ import annotations

import pytest

from data_pipeline.teacher import TeacherTask


@pytest.fixture
def plain_task() -> TeacherTask:
    return TeacherTask("plain/1", "plain", "Answer.", "What is 3 + 4?", schema={})


def test_a_text_is_not_read_as_json(teacher, endpoint, plain_task):
    endpoint.answer = lambda prompt: "It is 7.\nANSWER: 7"
    result = teacher().complete(plain_task)
    assert result.value == {"text": "It is 7.\nANSWER: 7", "finish": "stop", "input_tokens": 100, "output_tokens": 10}


def test_no_schema_is_imposed(teacher, endpoint, plain_task):
    endpoint.answer = lambda prompt: "7"
    teacher().complete(plain_task)
    assert not {"response_format", "output_config", "tools"} & endpoint.requests[0].keys()


def test_a_text_is_asked_for_once(teacher, endpoint, plain_task):
    endpoint.answer = lambda prompt: "not JSON"
    asked = teacher()
    assert asked.complete(plain_task).value == asked.complete(plain_task).value
    assert len(endpoint.requests) == 1
