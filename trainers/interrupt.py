"""Ctrl-C and SIGTERM that wait for the end of a step, so that what is left behind can be resumed exactly."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

EXIT_CODE = 130


class Interrupted(SystemExit):
    """The run was stopped on request after a complete step; its checkpoint is written."""

    def __init__(self, message: str):
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """While active, the first SIGINT or SIGTERM sets ``requested``; a second one takes effect at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()
        print("\nstopping after this step; press Ctrl-C again to stop at once", flush=True)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
