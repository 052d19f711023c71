"""What surrounds a training loop: who sees its progress, and who may ask it to save or to end."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm

from objectives.checkpoint import CheckpointError
from trainers.events import EventLog
from trainers.interrupt import StopRequest


class Command(IntEnum):
    """What a loop does after an update. The largest of the ranks' commands counts."""

    GO = 0
    SAVE = 1  # write a checkpoint and go on
    LEAVE = 2  # write a checkpoint and end, for a group of another size to go on
    STOP = 3  # write a checkpoint and end, for good


class Session(Protocol):
    """Seen by the process that writes, rank 0; the other ranks have none.

    Attributes:
        curves: what losses of processes have cost the run so far, for its metrics.
    """

    curves: Mapping[str, float]

    def started(self, step: int, total: int, members: Sequence[str]) -> Command:
        """Update ``step + 1`` of ``total`` is next, made by these processes."""
        ...

    def updated(self, step: int, shown: Mapping[str, float]) -> Command:
        """An update is done; ``shown`` are the few numbers that go beside the progress bar."""
        ...

    def newest_saved(self) -> int:
        """The newest update whose checkpoint is known to be complete; it may have been written on another machine."""
        ...

    def saved(self, step: int) -> None:
        """A checkpoint is complete."""
        ...

    def save_failed(self, step: int, why: str) -> None:
        """A checkpoint could not be written, and training goes on."""
        ...

    def finished(self) -> None:
        """All updates are made and saved; exports come next."""
        ...


class LocalSession:
    """A loop in the process that the user started: a progress bar, and Ctrl-C."""

    curves: Mapping[str, float] = {"recovery/restarts": 0.0, "recovery/seconds_lost": 0.0}

    def __init__(self, description: str, events: EventLog):
        self.description = description
        self.events = events
        self._stop = StopRequest()
        self._bar: tqdm | None = None

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finished()

    def started(self, step: int, total: int, members: Sequence[str]) -> Command:
        self._stop.__enter__()
        self._bar = progress_bar(self.description, total, step)
        return self._command()

    def updated(self, step: int, shown: Mapping[str, float]) -> Command:
        assert self._bar is not None
        self._bar.update(step - self._bar.n)
        self._bar.set_postfix({name: f"{value:.3f}" for name, value in shown.items()})
        return self._command()

    def newest_saved(self) -> int:
        return 0

    def saved(self, step: int) -> None:
        pass

    def save_failed(self, step: int, why: str) -> None:
        self.events.add("save_failed", why, step=step)

    def finished(self) -> None:
        self._stop.__exit__(None, None, None)
        if self._bar is not None:
            self._bar.close()

    def _command(self) -> Command:
        return Command.STOP if self._stop.requested else Command.GO


class RemoteSession:
    """A loop in the first process of a Ray Train group; the driver's :class:`cluster.elastic.Monitor` is at the other end."""

    def __init__(self, monitor: Any):
        self.monitor = monitor
        self.curves: Mapping[str, float] = {}
        for name, value in self._call("environment").items():
            os.environ.setdefault(name, value)

    def started(self, step: int, total: int, members: Sequence[str]) -> Command:
        """
        Raises:
            CheckpointError: the group's last process saved a later update, which this one does not see.
        """
        answer = self._call("started", step, total, list(members))
        self.curves = answer["curves"]
        if answer["saved"] > step:
            raise CheckpointError(
                f"a checkpoint of update {answer['saved']} was written, and {socket.gethostname()} finds none after update "
                f"{step}; run.root and run.checkpoints must lie on storage that all nodes share"
            )
        return Command[answer["command"].upper()]

    def updated(self, step: int, shown: Mapping[str, float]) -> Command:
        return Command[self._call("updated", step, dict(shown)).upper()]

    def newest_saved(self) -> int:
        return self._call("newest_saved")

    def saved(self, step: int) -> None:
        self._call("saved", step)

    def save_failed(self, step: int, why: str) -> None:
        self._call("save_failed", step, why)

    def finished(self) -> None:
        self._call("finished")

    def _call(self, method: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self.monitor, method).remote(*arguments))


def progress_bar(description: str, total: int, initial: int) -> tqdm:
    """The bar of a run: updates made, of all."""
    return tqdm(total=total, initial=initial, desc=description, unit="update", dynamic_ncols=True)
