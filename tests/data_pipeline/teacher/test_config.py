"""What a configuration may say, and how it is refused."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from configs import ConfigError
from data_pipeline.teacher import TeacherConfig, validate_teacher

API: dict[str, Any] = {"kind": "openai", "model": "some-model"}


def test_the_default_is_the_offline_teacher():
    validate_teacher(TeacherConfig())
    assert TeacherConfig().name == "offline"


def test_an_api_teacher_is_named_by_kind_and_model():
    assert TeacherConfig(kind="anthropic", model="m-1").name == "anthropic:m-1"


def test_it_loads_as_a_typed_configuration():
    merged = OmegaConf.merge(
        OmegaConf.structured(TeacherConfig), {"temperature": 0, "extra": {"thinking": {"type": "adaptive"}}}
    )
    config = OmegaConf.to_object(merged)
    assert isinstance(config, TeacherConfig)
    assert config.temperature == 0.0
    assert config.extra == {"thinking": {"type": "adaptive"}}
    assert config.price_input_per_million is None


@pytest.mark.parametrize(
    "changes, key",
    [
        ({"kind": "gemini"}, "kind"),
        ({"model": " "}, "model"),
        ({"structured": "tool"}, "structured"),  # Anthropic's
        ({"concurrency": 0}, "concurrency"),
        ({"max_retries": -1}, "max_retries"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"temperature": 3.0}, "temperature"),
        ({"base_url": "localhost:8000"}, "base_url"),
        ({"price_output_per_million": -1.0}, "price_output_per_million"),
        ({"budget_usd": float("nan")}, "budget_usd"),
    ],
)
def test_what_cannot_work_is_refused_by_key(changes: dict[str, Any], key: str):
    with pytest.raises(ConfigError, match=rf"review\.{key} is .*expected"):
        validate_teacher(TeacherConfig(**{**API, **changes}), "review")


@pytest.mark.parametrize("given", [{}, {"price_input_per_million": 3.0}])
def test_a_budget_in_money_needs_both_prices(given: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"teacher\.price_(input|output)_per_million is None.*budget_usd"):
        validate_teacher(TeacherConfig(**API, budget_usd=5.0, **given))


def test_a_budget_in_tokens_needs_no_price():
    validate_teacher(TeacherConfig(**API, budget_tokens=1000))


def test_a_key_in_place_of_its_variable_is_refused_unshown():
    with pytest.raises(ConfigError, match="api_key_env") as refused:
        validate_teacher(TeacherConfig(**API, api_key_env="sk-secret-0123"))
    assert "secret" not in str(refused.value)


def test_an_address_with_a_password_is_refused_unshown():
    with pytest.raises(ConfigError, match="base_url") as refused:
        validate_teacher(TeacherConfig(**API, base_url="https://me:hunter2@example.org/v1"))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["api_key", "API-Key", "x-authorization", "access_token", "client_secret"])
def test_a_secret_among_the_extra_fields_is_refused_and_not_shown(name: str):
    with pytest.raises(ConfigError, match=rf"teacher.extra.{name} looks like a secret") as refused:
        validate_teacher(TeacherConfig(kind="openai", model="m", extra={name: "sk-1234"}))
    assert "sk-1234" not in str(refused.value)


@pytest.mark.parametrize("name", ["model", "messages", "system", "stream"])
def test_an_extra_field_that_we_set_ourselves_is_refused(name: str):
    with pytest.raises(ConfigError, match=rf"teacher.extra.{name} is set by us"):
        validate_teacher(TeacherConfig(kind="openai", model="m", extra={name: True}))


def test_fields_of_providers_are_no_secrets():
    extra = {"max_tokens": 5, "max_completion_tokens": 5, "top_p": 0.5, "thinking": {"budget_tokens": 1}, "user": "me"}
    validate_teacher(TeacherConfig(kind="openai", model="m", extra=extra))
