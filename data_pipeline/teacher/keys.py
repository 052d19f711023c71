"""The API key: read from the environment, handed to the SDK, and kept out of everything that is written."""

from __future__ import annotations

import os
import re

from configs.load import ConfigError
from data_pipeline.teacher.config import DEFAULT_KEY_VARIABLES, TeacherConfig

NO_KEY = "none"
"""What is sent to endpoints without keys, such as vLLM and Ollama: the SDKs insist on a value."""


class ApiKey:
    """A key that does not show itself: ``repr`` and ``str`` hide it, ``scrub`` takes it out of any text."""

    def __init__(self, value: str) -> None:
        self._value = value
        # As it is, or with any of its characters escaped as JSON may: an answer is read as JSON later.
        spelled = (rf"(?:{re.escape(c)}|\\{re.escape(c)}|\\u(?i:{ord(c):04x}))" for c in value)
        self._written = re.compile("".join(spelled))

    def __repr__(self) -> str:
        return "ApiKey(hidden)"

    def reveal(self) -> str:
        """The key, for the SDK alone."""
        return self._value

    def scrub(self, text: str) -> str:
        """``text`` with every occurrence of the key replaced: endpoints repeat headers in errors, and even in answers."""
        return self._written.sub("[api key]", text) if self._value != NO_KEY else text


def read_api_key(config: TeacherConfig, prefix: str = "teacher") -> ApiKey:
    """The key that the configuration's variable holds.

    At an address of the user's own no key is sent unless ``api_key_env`` names one: a key of a provider must not reach
    whoever answers there.

    Raises:
        ConfigError: the variable is not set, or holds what cannot stand in an HTTP header.
    """
    variable = config.api_key_env or ("" if config.base_url else DEFAULT_KEY_VARIABLES[config.kind])
    if not variable:
        return ApiKey(NO_KEY)
    value = os.environ.get(variable, "").strip()  # a line end from `export KEY=$(cat file)` would break the header
    if not value:
        raise ConfigError(
            f"{prefix}.api_key_env: the environment variable {variable} is not set; expected the key of {config.kind}"
        )
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ConfigError(
            f"{prefix}.api_key_env: the environment variable {variable} holds spaces, line breaks or characters that cannot "
            "stand in an HTTP header; expected a key"
        )
    return ApiKey(value)
