"""Where the API key comes from."""

from __future__ import annotations

import json

import pytest

from configs import ConfigError
from data_pipeline.teacher import TeacherConfig
from data_pipeline.teacher.keys import ApiKey, read_api_key

LOCAL = "http://127.0.0.1:8000/v1"


def test_the_provider_is_sent_its_usual_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    assert read_api_key(TeacherConfig(kind="anthropic", model="m")).reveal() == "key-of-anthropic"


def test_another_address_is_sent_no_key_of_the_provider(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    assert read_api_key(TeacherConfig(kind="openai", model="m", base_url=LOCAL)).reveal() == "none"


def test_another_address_is_sent_the_key_that_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SERVER_KEY", "key-of-mine\n")
    config = TeacherConfig(kind="openai", model="m", base_url=LOCAL, api_key_env="MY_SERVER_KEY")
    assert read_api_key(config).reveal() == "key-of-mine"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY is not set"):
        read_api_key(TeacherConfig(kind="openai", model="m"))


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "schlüssel"])
def test_what_cannot_stand_in_a_header_is_refused_unshown(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY holds") as refused:
        read_api_key(TeacherConfig(kind="openai", model="m"))
    assert value not in str(refused.value)


def test_a_key_does_not_show_itself():
    key = ApiKey("sk-0123456789")
    assert "0123" not in f"{key!r} {key}"
    assert key.scrub("header was Bearer sk-0123456789.") == "header was Bearer [api key]."


def test_a_key_is_found_in_every_way_that_json_can_write_it():
    key = ApiKey("sk-1/a.b")
    for written in (
        "sk-1/a.b",
        r"sk-1\/a.b",
        r"\u0073k-1\u002Fa.b",
        r"\u0073\u006b\u002d\u0031\u002f\u0061\u002e\u0062",
    ):
        assert json.loads(f'"{written}"') == key.reveal()
        assert key.scrub(f"<{written}>") == "<[api key]>"
    assert key.scrub("sk-1/axb SK-1/A.B") == "sk-1/axb SK-1/A.B"
