"""How one task gets its answer: from the cache or the endpoint, with retries, repairs and a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from data_pipeline.teacher.answers import read_answer
from data_pipeline.teacher.cache import Reply, ResponseCache, cache_key
from data_pipeline.teacher.clients import CallFailed, Client, Messages
from data_pipeline.teacher.config import TeacherConfig
from data_pipeline.teacher.limits import Budget, Throttle, Use, backoff, estimate_tokens
from data_pipeline.teacher.task import TeacherResult, TeacherStopped, TeacherTask
from data_pipeline.teacher.untrusted import clean_text, cut

POLL_S = 0.05
REPAIR_CHARS = 4000
"""Of a refused answer that is shown to the model again."""
_STOPPED = "the run was stopped before this was answered"


class _NotAsked(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Asker:
    """The calls of one run, all on one event loop. ``stop`` set: nothing more is asked, calls in flight finish."""

    def __init__(
        self,
        config: TeacherConfig,
        client: Client,
        cache: ResponseCache,
        budget: Budget,
        throttle: Throttle,
        tally: Callable[..., None],
    ) -> None:
        self._config, self._client, self._cache = config, client, cache
        self._budget, self._throttle, self._tally = budget, throttle, tally
        self.stop = asyncio.Event()
        self.stopped: TeacherStopped | None = None
        self._spent = False
        self._unanswered = 0  # tasks in a row
        self._params = {
            "temperature": None if config.temperature is None else float(config.temperature),
            "max_output_tokens": config.max_output_tokens,
            "extra": config.extra,
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def answer(self, task: TeacherTask) -> tuple[TeacherResult, str]:
        """The result of a task and the last text that the model wrote."""
        messages: Messages = [{"role": "user", "content": task.prompt}]
        raw, attempts, reason, problem = "", 0, "", ""
        try:
            for repair in range(self._config.max_repairs + 1):
                reply = await self._ask(task, messages)
                self._tally(repairs=min(repair, 1))
                raw, attempts = reply.text, attempts + 1
                if reply.finish == "refusal":
                    return self._failed(task, "refused", "the model or its filter refused to answer", attempts), raw
                if not task.schema:
                    value = {"text": raw, "finish": reply.finish}
                    value |= {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
                    return TeacherResult(
                        task.task_id, task.kind, "ok", self._config.name, value, attempts=attempts
                    ), raw
                answer = read_answer(raw, task.schema, task.check)
                if answer.value is not None:
                    return TeacherResult(
                        task.task_id, task.kind, "ok", self._config.name, answer.value, attempts=attempts
                    ), raw
                reason, problem = answer.reason, answer.problem
                if reply.finish == "length" and reason == "invalid_json":
                    reason = "truncated"
                    problem = f"cut off at {self._config.max_output_tokens} tokens; answer more briefly"
                messages = _repair(task, raw, problem, repair + 1)
            return self._failed(task, reason, problem, attempts), raw
        except CallFailed as failure:
            return self._failed(task, failure.reason, failure.detail, attempts), raw
        except _NotAsked as left:
            self._tally(not_asked=1)
            result = TeacherResult(
                task.task_id, task.kind, "not_asked", self._config.name, None, left.reason, left.detail, attempts
            )
            return result, raw

    def _failed(self, task: TeacherTask, reason: str, detail: str, attempts: int) -> TeacherResult:
        self._tally(failed=1)
        return TeacherResult(task.task_id, task.kind, "failed", self._config.name, None, reason, detail, attempts)

    async def _ask(self, task: TeacherTask, messages: Messages) -> Reply:
        """The stored answer, or a paid one; a question that somebody else is asking at this moment is waited for."""
        key = cache_key(self._config.kind, self._config.model, task.system, messages, task.schema, self._params)
        while True:
            stored = self._cache.get(key)
            if stored is not None:
                self._tally(cached=1)
                return stored
            if self._cache.claim(key):
                break
            await self._sleep(POLL_S)
        try:
            stored = self._cache.get(key)  # it may have come between the look and the claim
            if stored is not None:
                self._tally(cached=1)
                return stored
            return await self._pay(task, messages, key)
        finally:
            self._cache.release(key)

    async def _pay(self, task: TeacherTask, messages: Messages, key: str) -> Reply:
        config = self._config
        prompt = estimate_tokens(task.system, *(m["content"] for m in messages))
        retry = 0
        while True:
            use = await self._admit(prompt)
            try:
                reply = await self._client.send(task, messages)
                # From the answer's arrival to its commit nothing is awaited and nothing can fail but the disk.
                self._cache.put(key, config.kind, config.model, task.task_id, reply)
            except CallFailed as error:
                failure = error
                if error.charged:
                    self._cache.put_lost(config.kind, config.model, prompt, config.max_output_tokens)
                    lost = {"input_tokens": prompt, "output_tokens": config.max_output_tokens}
                    self._tally(lost_calls=1, estimated_tokens=sum(lost.values()), **lost)
            else:
                used = reply.input_tokens + reply.output_tokens
                self._throttle.correct(use, used)
                self._tally(calls=1, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
                self._tally(estimated_tokens=used if reply.estimated else 0)
                self._unanswered = 0
                return reply
            finally:
                self._budget.settle(prompt, config.max_output_tokens)
            await self._wait_or_give_up(failure, retry)
            retry += 1

    async def _wait_or_give_up(self, failure: CallFailed, retry: int) -> None:
        """Return when the call may be repeated; otherwise raise, and end the run where the next call would fail too."""
        config = self._config
        if failure.action == "stop":
            self._end(failure)
        if (failure.wait_s or 0) > config.retry_after_max_s:
            self._end(failure, f"the endpoint asks to wait {failure.wait_s:.0f} s; ")
        if failure.action == "fail" or retry >= config.max_retries:
            # A request that is refused for itself says nothing about the endpoint, unless it never took any.
            if failure.action == "retry" or self._cache.spent(config.kind, config.model) == (0, 0):
                self._unanswered += 1
            if self._unanswered >= config.stop_after_failures:
                self._end(failure, f"{self._unanswered} tasks in a row without an answer (stop_after_failures); ")
            raise failure
        delay = max(backoff(config, retry), failure.wait_s or 0)
        if failure.reason == "rate_limited":
            self._throttle.pause(delay)
        self._tally(retries=1)
        await self._sleep(delay)

    async def _admit(self, prompt: int) -> Use:
        """Wait for the rate limits and for a place in the budget."""
        if self.stop.is_set():
            raise _NotAsked("stopped", _STOPPED)
        while not isinstance(use := self._throttle.take(prompt + self._config.max_output_tokens), Use):
            await self._sleep(use)
        while True:
            admitted = False if self._spent else self._budget.admit(prompt, self._config.max_output_tokens)
            if admitted:
                return use
            if admitted is False:
                self._spent = True
                raise _NotAsked("budget", "the budget does not cover this call; raise it and run again")
            await self._sleep(POLL_S)

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except TimeoutError:
            return
        raise _NotAsked("stopped", _STOPPED)

    def _end(self, failure: CallFailed, why: str = "") -> None:
        if self.stopped is None:
            url = self._config.base_url or "the provider's own address"
            self.stopped = TeacherStopped(
                f"{self._config.name} at {url}: {why}{failure.reason}: {failure.detail}; what was answered is kept, run again "
                "to go on"
            )
        self.stop.set()
        raise _NotAsked("stopped", str(failure))


def _repair(task: TeacherTask, raw: str, problem: str, number: int) -> Messages:
    """The question, the last answer and what is wrong with it; earlier tries are left out, so that it stays short.

    The number makes it a new question where a model repeats itself: the cache would give the same answer again.
    """
    shown = cut(clean_text(raw), REPAIR_CHARS).strip() or "(nothing)"
    told = (
        f"Correction {number}. This answer was not accepted: {clean_text(problem)}\n"
        "Answer the request again, with one JSON object of the required form and nothing else."
    )
    return [
        {"role": "user", "content": task.prompt},
        {"role": "assistant", "content": shown},
        {"role": "user", "content": told},
    ]
