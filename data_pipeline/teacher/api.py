"""The teacher behind an API: many tasks at once, answers in the order of the tasks, nothing asked twice."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from data_pipeline.teacher.asking import Asker
from data_pipeline.teacher.cache import ResponseCache
from data_pipeline.teacher.clients import CLIENTS, import_sdk
from data_pipeline.teacher.config import TeacherConfig, validate_teacher
from data_pipeline.teacher.failures import FILE_NAME, FailureLog
from data_pipeline.teacher.keys import read_api_key
from data_pipeline.teacher.limits import Budget, Throttle, cost_usd
from data_pipeline.teacher.task import Teacher, TeacherResult, TeacherTask, Usage

AHEAD = 16
"""Tasks in work or answered but not yet handed out, per concurrent call: one slow task must not hold up the others."""


def open_teacher(config: TeacherConfig, folder: str | Path, prefix: str = "teacher") -> Teacher:
    """The teacher that a configuration names; ``folder`` holds its answers and failures (an API's alone).

    Raises:
        ConfigError: a value that cannot work, or a key that the environment lacks; the message names the key below ``prefix``.
    """
    validate_teacher(config, prefix)
    if config.kind == "offline":
        from data_pipeline.skill2query.writer import GraphWriter
        from data_pipeline.teacher.offline import OfflineTeacher
        from data_pipeline.teacher.offline_writer import TextWriter

        return OfflineTeacher(GraphWriter() if config.writer == "graph" else TextWriter())
    return ApiTeacher(config, folder, prefix)


class ApiTeacher:
    """A model behind an OpenAI-compatible or an Anthropic endpoint.

    Every answer is stored in ``folder`` before it is read. A run that was killed is repeated: what it had answered comes from
    there, and costs nothing. Teachers of several models, and several processes, may share a folder.
    """

    def __init__(self, config: TeacherConfig, folder: str | Path, prefix: str = "teacher") -> None:
        validate_teacher(config, prefix)
        import_sdk(config.kind)
        self.config = config
        self.name = config.name
        self._key = read_api_key(config, prefix)
        self._cache = ResponseCache(folder)
        self._failures = FailureLog(Path(folder) / FILE_NAME)
        self._budget = Budget(config, self._cache)
        self._throttle = Throttle(config)
        self._modes: dict[str, str] = {}
        self._usage = Usage()
        self._guard = threading.Lock()

    @property
    def usage(self) -> Usage:
        """What this object has used since it was made, with its cost where both prices are known."""
        with self._guard:
            used = replace(self._usage)
        used.cost_usd = cost_usd(self.config, used.input_tokens, used.output_tokens)
        return used

    @property
    def spent(self) -> tuple[int, int, float | None]:
        """Input tokens, output tokens and cost of all runs with this kind, model and folder: what the budget limits."""
        tokens = self._cache.spent(self.config.kind, self.config.model)
        return (*tokens, cost_usd(self.config, *tokens))

    def complete(self, task: TeacherTask) -> TeacherResult:
        """The result of one task; see :meth:`run`."""
        (result,) = self.run([task])
        return result

    def run(self, tasks: Iterable[TeacherTask], progress: bool = False) -> Generator[TeacherResult, None, None]:
        """One result a task, in the order of the tasks; ``config.concurrency`` calls at the same time.

        Where the budget ends, calls in flight finish and the other tasks come back as ``not_asked``. Where the caller stops
        taking results (or Ctrl-C is pressed), calls in flight finish and are kept. ``tasks`` is read by another thread.

        Raises:
            TeacherStopped: the endpoint refuses the key or the model, or does not answer at all.
        """
        total = len(tasks) if isinstance(tasks, Sized) else None
        run = _Run(self._asker(), tasks, self.config.concurrency, self._failures)
        with tqdm(total=total, desc=self.name, unit="task", disable=not progress) as bar:
            run.start()
            try:
                for result in run.results():
                    bar.update()
                    if progress:
                        bar.set_postfix_str(self._summary(), refresh=False)
                    yield result
            finally:
                run.end()

    def _summary(self) -> str:
        used = self.usage
        cost = "" if used.cost_usd is None else f", ${used.cost_usd:.2f}"
        return f"{used.calls} asked, {used.cached} cached, {used.failed} failed{cost}"

    def _tally(self, **counts: int) -> None:
        with self._guard:
            self._usage.add(**counts)

    def _asker(self) -> Asker:
        client = CLIENTS[self.config.kind](self.config, self._key, self._modes)
        return Asker(self.config, client, self._cache, self._budget, self._throttle, self._tally)


class _Run:
    """The event loop of one run, in a thread of its own: callers may have a loop already, and may be slow."""

    def __init__(self, asker: Asker, tasks: Iterable[TeacherTask], concurrency: int, failures: FailureLog) -> None:
        self._asker, self._failures, self._concurrency = asker, failures, concurrency
        self._source = enumerate(tasks)
        self._out: queue.SimpleQueue[tuple[int, TeacherResult] | None] = queue.SimpleQueue()
        self._places = asyncio.Semaphore(concurrency * AHEAD)
        self._error: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="teacher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def results(self) -> Iterator[TeacherResult]:
        waiting: dict[int, TeacherResult] = {}
        following = 0
        while (item := self._out.get()) is not None:
            waiting[item[0]] = item[1]
            while following in waiting:
                yield waiting.pop(following)
                following += 1
                self._tell(self._places.release)
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Ask nothing more, and wait for the calls in flight."""
        self._tell(self._stop)
        self._thread.join()

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass  # the loop has ended, and with it what it was to be told

    def _stop(self) -> None:
        self._asker.stop.set()
        for _ in range(self._concurrency):
            self._places.release()  # wakes the workers that wait for the caller

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._work())
        except Exception as error:
            self._error = self._error or error
        finally:
            self._out.put(None)

    async def _work(self) -> None:
        try:
            await asyncio.gather(*(self._worker() for _ in range(self._concurrency)))
        finally:
            await self._asker.close()
        self._error = self._error or self._asker.stopped

    async def _worker(self) -> None:
        while True:
            await self._places.acquire()
            if self._asker.stop.is_set():
                return
            try:
                following = next(self._source, None)
                if following is None:
                    return
                result, raw = await self._asker.answer(following[1])
                if result.status == "failed":
                    self._failures.add(result, raw)
            except Exception as error:  # a full disk, a faulty iterator of tasks: the calls in flight still finish
                self._error = self._error or error
                self._stop()
                return
            self._out.put((following[0], result))
