"""The typed configuration of a teacher, and what no type can say about it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from configs.load import ConfigError

KINDS = ("offline", "openai", "anthropic")
WRITERS = ("graph", "text")
STRUCTURED = {
    "offline": ("auto",),
    "openai": ("auto", "json_schema", "json_object", "none"),
    "anthropic": ("auto", "json_schema", "tool", "none"),
}
DEFAULT_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
DEFAULT_KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_SECRET_WORDS = ("apikey", "authorization", "password", "secret", "credential", "accesstoken", "authtoken", "bearer")
_OURS = ("model", "messages", "system", "stream")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class TeacherConfig:
    """The model that writes and judges. Keys of APIs are no part of it: it names the environment variable that holds one."""

    kind: str = "offline"  # offline (rules on the skill's own text), openai (any endpoint that speaks its protocol) or anthropic
    writer: str = "graph"  # what the offline teacher writes from: the skill's knowledge graph, or its text alone
    model: str = ""
    base_url: str = (
        ""  # such as http://127.0.0.1:8000/v1 (vLLM), http://127.0.0.1:11434/v1 (Ollama); empty: the provider's own
    )
    api_key_env: str = (
        ""  # variable with the key; empty: the provider's usual one at its own address, no key at any other
    )
    structured: str = (
        "auto"  # how the schema is imposed: json_schema, tool, json_object, none; auto: the best the endpoint takes
    )
    temperature: float | None = None  # null: not sent, some models refuse it
    max_output_tokens: int = 2048  # thinking included, where a model thinks
    extra: dict[str, Any] = field(default_factory=dict)  # further fields of the request, such as thinking or top_p
    concurrency: int = 8  # calls at the same time
    requests_per_minute: int = 0  # 0: no limit
    tokens_per_minute: int = 0  # input and output together; 0: no limit
    timeout_s: float = 120.0  # from the request to the last byte of the answer
    max_retries: int = 6  # further tries of a call that failed on the way
    backoff_s: float = 1.0  # wait before the first of them; doubles each time
    backoff_max_s: float = 60.0
    retry_after_max_s: float = 600.0  # an endpoint that asks for a longer wait ends the run
    stop_after_failures: int = 20  # tasks in a row without any answer that end the run: the endpoint is down
    max_repairs: int = 2  # further answers asked for where one does not fit the schema
    budget_tokens: int = 0  # of all runs with this kind, model and cache together; 0: no limit
    budget_usd: float = 0.0  # the same in money; needs both prices; 0: no limit
    price_input_per_million: float | None = None  # null: costs are reported as unknown
    price_output_per_million: float | None = None

    @property
    def name(self) -> str:
        """What records say about who made them: ``offline`` or ``<kind>:<model>``."""
        return self.kind if self.kind == "offline" else f"{self.kind}:{self.model}"


def validate_teacher(config: TeacherConfig, prefix: str = "teacher") -> None:
    """Refuse what cannot work, before anything is asked.

    Raises:
        ConfigError: naming the key, its value and what would be accepted.
    """

    def need(key: str, accepted: bool, expected: str) -> None:
        if not accepted:
            raise ConfigError(f"{prefix}.{key} is {getattr(config, key)!r}; expected {expected}")

    need("kind", config.kind in KINDS, f"one of {', '.join(KINDS)}")
    need("writer", config.writer in WRITERS, f"one of {', '.join(WRITERS)}")
    structured = STRUCTURED[config.kind]
    need("structured", config.structured in structured, f"one of {', '.join(structured)} with kind {config.kind}")
    for key in ("concurrency", "max_output_tokens", "stop_after_failures"):
        need(key, getattr(config, key) >= 1, "at least 1")
    for key in ("requests_per_minute", "tokens_per_minute", "max_retries", "max_repairs", "budget_tokens"):
        need(key, getattr(config, key) >= 0, "at least 0")
    for key in ("timeout_s", "backoff_s", "backoff_max_s", "retry_after_max_s"):
        need(key, 0 < getattr(config, key) < math.inf, "seconds, above 0")
    need("budget_usd", 0 <= config.budget_usd < math.inf, "at least 0")
    for key in ("price_input_per_million", "price_output_per_million"):
        price = getattr(config, key)
        need(key, price is None or 0 <= price < math.inf, "at least 0, or null where it is not known")
        need(key, config.budget_usd == 0 or price is not None, f"a price, because {prefix}.budget_usd is set")
    temperature = config.temperature
    need("temperature", temperature is None or 0 <= temperature <= 2, "0 to 2, or null for the model's own")
    if config.kind == "offline":
        return
    need("model", bool(config.model.strip()), f"the name of a model, because {prefix}.kind is {config.kind}")
    _check_url(config.base_url, f"{prefix}.base_url")
    _check_extra(config.extra, f"{prefix}.extra")
    if config.api_key_env and not _VARIABLE_NAME.fullmatch(config.api_key_env):
        # Somebody who mistakes the key for the variable must not find it in a log.
        raise ConfigError(
            f"{prefix}.api_key_env is not a variable's name (its value is not shown, in case it is a key); expected letters, "
            "digits and underscores, such as OPENAI_API_KEY"
        )


def _check_extra(extra: dict[str, Any], key: str) -> None:
    """``extra`` stands in manifests, and adds to a request: no secret may be in it, nor what the request is made of."""
    for name in extra:
        plain = re.sub(r"[^a-z]", "", name.lower())
        if any(word in plain for word in _SECRET_WORDS):
            raise ConfigError(
                f"{key}.{name} looks like a secret (its value is not shown); expected none: keys come from the environment "
                "alone, see api_key_env"
            )
        if name in _OURS:
            raise ConfigError(f"{key}.{name} is set by us; expected other fields, such as top_p or thinking")


def _check_url(url: str, key: str) -> None:
    if not url:
        return
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            f"{key} holds a user name, a password or a query (not shown); expected an address without secrets"
        )
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{key} is {url!r}; expected http://… or https://…")
