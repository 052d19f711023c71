"""One call to a model through its provider's own SDK: an answer, or a failure that says what to do about it."""

from __future__ import annotations

import asyncio
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, Protocol

from configs.load import ConfigError
from data_pipeline.teacher.answers import relaxed_schema
from data_pipeline.teacher.cache import Reply
from data_pipeline.teacher.config import DEFAULT_URLS, STRUCTURED, TeacherConfig
from data_pipeline.teacher.keys import ApiKey
from data_pipeline.teacher.limits import estimate_tokens, retry_after
from data_pipeline.teacher.task import TeacherTask

DETAIL_CHARS = 500
CONNECT_S = 10.0
_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "LocalProtocolError", "UnsupportedProtocol"}

Messages = Sequence[Mapping[str, str]]


class CallFailed(Exception):
    """A call without an answer. ``action``: ``retry`` it, ``fail`` the task, or ``stop`` the run, as every call would fail so."""

    def __init__(
        self,
        reason: str,
        detail: str,
        action: Literal["retry", "fail", "stop"],
        wait_s: float | None = None,
        charged: bool = False,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail, self.action = reason, detail, action
        self.wait_s = wait_s  # what the endpoint asks for
        self.charged = charged  # the endpoint may have done the work


class Client(Protocol):
    """An endpoint. ``send`` returns an answer or raises CallFailed; it never retries."""

    async def send(self, task: TeacherTask, messages: Messages) -> Reply: ...

    async def close(self) -> None: ...


class SdkClient(ABC):
    """What both providers' SDKs have in common: they come from one generator and raise the same exceptions.

    ``modes`` remembers, for each kind of task, by which means the endpoint took a schema; it outlives the client.
    """

    def __init__(self, config: TeacherConfig, key: ApiKey, modes: dict[str, str]) -> None:
        self.config, self.key, self.modes = config, key, modes
        self.sdk = import_sdk(config.kind)
        options: dict[str, Any] = {
            "api_key": key.reveal(),
            "base_url": config.base_url
            or DEFAULT_URLS[config.kind],  # never from the environment: a run says where it asks
            "max_retries": 0,  # retries are ours: they are counted, limited and stopped with all the others
            "timeout": self.sdk.Timeout(config.timeout_s, connect=min(CONNECT_S, config.timeout_s)),
        }
        self.client: Any = self.connect(options)

    @abstractmethod
    def connect(self, options: dict[str, Any]) -> Any:
        """The SDK's asynchronous client."""

    @abstractmethod
    async def create(self, task: TeacherTask, messages: Messages, mode: str) -> Reply:
        """One call, the schema imposed by ``mode``; the SDK's exceptions pass."""

    async def send(self, task: TeacherTask, messages: Messages) -> Reply:
        """Ask by the best means of imposing the schema that the endpoint takes; a refused one is not tried again."""
        choices = STRUCTURED[self.config.kind][1:] if self.config.structured == "auto" else (self.config.structured,)
        if not task.schema:
            choices = ("none",)
        known = self.modes.get(task.kind)
        refused: CallFailed | None = None
        for mode in choices[choices.index(known) if known in choices else 0 :]:
            try:
                reply = await self._send(task, messages, mode)
            except CallFailed as failure:
                if failure.reason != "bad_request":
                    raise
                refused = refused or failure
            else:
                self.modes[task.kind] = mode
                return reply
        assert refused is not None
        raise refused

    async def _send(self, task: TeacherTask, messages: Messages, mode: str) -> Reply:
        try:
            # The SDK's own timeout begins anew with every byte that arrives.
            async with asyncio.timeout(self.config.timeout_s):
                return await self.create(task, messages, mode)
        except Exception as error:
            failure = self._translate(error)
        # Outside of the handler: a chained SDK exception would carry the request, headers and all, into every traceback.
        raise failure

    def _translate(self, error: Exception) -> CallFailed:
        detail = self.key.scrub(" ".join(f"{type(error).__name__}: {error}".split()))[:DETAIL_CHARS]
        cause = type(error.__cause__).__name__
        if isinstance(error, TimeoutError | self.sdk.APITimeoutError):
            limit = f"no complete answer in {self.config.timeout_s:g} s"
            return CallFailed("timeout", limit, "retry", charged=cause not in _NEVER_SENT)
        if isinstance(error, self.sdk.APIStatusError):
            status: Any = error  # of a class that only the SDK at hand knows
            return _status_failure(status.status_code, status.response.headers, detail)
        if isinstance(error, self.sdk.APIConnectionError):
            return CallFailed("connection", f"{detail} ({cause})", "retry", charged=cause not in _NEVER_SENT)
        # An answer of status 200 that is no answer: HTML of a proxy, JSON that ends too early, a body without a choice.
        return CallFailed("bad_response", detail, "retry", charged=True)

    def reply(self, text: Any, finish: str, tokens: tuple[Any, Any], asked: Sequence[str]) -> Reply:
        """An answer with its key scrubbed out and its tokens counted, by us where the endpoint did not."""
        text = self.key.scrub(text) if isinstance(text, str) else ""
        counted = all(isinstance(n, int) for n in tokens)
        used = tokens if counted else (estimate_tokens(*asked), estimate_tokens(text))
        return Reply(text, finish, used[0], used[1], estimated=not counted)

    async def close(self) -> None:
        await self.client.close()


class OpenAIClient(SdkClient):
    """Chat completions: OpenAI and the many endpoints that speak its protocol (vLLM, Ollama, …)."""

    def connect(self, options: dict[str, Any]) -> Any:
        return self.sdk.AsyncOpenAI(**options)

    async def create(self, task: TeacherTask, messages: Messages, mode: str) -> Reply:
        extra = dict(self.config.extra)
        if not {"max_tokens", "max_completion_tokens"} & extra.keys():
            # The provider's own models refuse the old name, other servers may not know the new one.
            extra["max_tokens" if self.config.base_url else "max_completion_tokens"] = self.config.max_output_tokens
        if self.config.temperature is not None:
            extra["temperature"] = self.config.temperature
        if mode == "json_schema":
            schema = {"name": task.kind, "schema": relaxed_schema(task.schema), "strict": True}
            extra["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif mode == "json_object":
            extra["response_format"] = {"type": "json_object"}
        asked = [{"role": "system", "content": task.system}, *messages]
        completion = await self.client.chat.completions.create(
            model=self.config.model, messages=asked, extra_body=extra
        )
        choice = completion.choices[0]
        refused = choice.finish_reason == "content_filter" or getattr(choice.message, "refusal", None)
        finish = "refusal" if refused else "length" if choice.finish_reason == "length" else "stop"
        usage = completion.usage
        tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (None, None)
        return self.reply(choice.message.content or refused, finish, tokens, [m["content"] for m in asked])


class AnthropicClient(SdkClient):
    """Anthropic's messages."""

    def connect(self, options: dict[str, Any]) -> Any:
        return self.sdk.AsyncAnthropic(**options, open_telemetry=False)

    async def create(self, task: TeacherTask, messages: Messages, mode: str) -> Reply:
        extra = {"max_tokens": self.config.max_output_tokens, **self.config.extra}
        max_tokens = extra.pop("max_tokens")
        if self.config.temperature is not None:
            extra["temperature"] = self.config.temperature
        if mode == "json_schema":
            format_ = {"type": "json_schema", "schema": relaxed_schema(task.schema)}
            extra["output_config"] = {**extra.get("output_config", {}), "format": format_}
        elif mode == "tool":
            tool = {"name": task.kind, "description": "Give the answer.", "input_schema": relaxed_schema(task.schema)}
            extra |= {"tools": [tool], "tool_choice": {"type": "tool", "name": task.kind}}
        message = await self.client.messages.create(
            model=self.config.model,
            system=task.system,
            messages=list(messages),
            max_tokens=max_tokens,
            extra_body=extra,
        )
        called = [block.input for block in message.content if block.type == "tool_use"]
        text = "".join(block.text for block in message.content if block.type == "text")
        if called:
            text = json.dumps(called[0], ensure_ascii=False)
        cut = message.stop_reason in ("max_tokens", "model_context_window_exceeded")
        finish = "refusal" if message.stop_reason == "refusal" else "length" if cut else "stop"
        usage = message.usage
        # What the provider's prompt cache read or wrote counts like any input, at the full price.
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        tokens = (usage.input_tokens + cached, usage.output_tokens)
        return self.reply(text, finish, tokens, [task.system, *(m["content"] for m in messages)])


CLIENTS: dict[str, type[SdkClient]] = {"openai": OpenAIClient, "anthropic": AnthropicClient}


def import_sdk(kind: str) -> ModuleType:
    """The provider's SDK; ConfigError where it is not installed."""
    try:
        return importlib.import_module(kind)
    except ImportError as error:
        raise ConfigError(
            f"a teacher of kind {kind!r} needs a package that is not there: {error}; expected: pip install 'skillreason[teacher]'"
        ) from None


def _status_failure(status: int, headers: Mapping[str, str], detail: str) -> CallFailed:
    wait = retry_after({name.lower(): value for name, value in headers.items()})
    if status == 429 and "insufficient_quota" not in detail:
        return CallFailed("rate_limited", detail, "retry", wait)
    if status in (408, 409) or status >= 500:
        return CallFailed("server_error", detail, "retry", wait)
    if status in (401, 402, 404, 429):
        return CallFailed("refused_access", detail, "stop")
    if status == 403:  # also what some moderation filters say of a single document, which must not end the run
        return CallFailed("forbidden", detail, "fail")
    return CallFailed("bad_request", detail, "fail")
