"""When a run writes checkpoints, and what it means that one could not be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from objectives.checkpoint import CheckpointWriteError

MOST_FAILURES = 3
"""Failed writes in a row that end a run: storage is away for good, and every update more is one more that could be lost."""


class Saving:
    """Checkpoints every few updates; one that fails is written after the next update instead."""

    def __init__(self, every: int, failed: Callable[[str], Any]):
        """
        Args:
            every: updates between checkpoints (``trainer.save_freq``); 0: none but those that the caller asks for.
            failed: told why a checkpoint could not be written, where the run goes on.
        """
        self.every = every
        self._failed = failed
        self._failures = 0

    def due(self, step: int) -> bool:
        """Whether a checkpoint belongs after update ``step``."""
        return self._failures > 0 or (self.every > 0 and step % self.every == 0)

    def attempt(self, save: Callable[[], Any], *, must: bool) -> bool:
        """Write a checkpoint; whether it is there. In a group every rank calls it, and all of them fail or none.

        Args:
            must: the run ends after this one, so that nothing could be tried again.

        Raises:
            CheckpointWriteError: it must be written, or as many in a row could not.
        """
        try:
            save()
        except CheckpointWriteError as error:
            self._failures += 1
            if must or self._failures >= MOST_FAILURES:
                raise
            self._failed(f"{error}; tried again after the next update")
            return False
        self._failures = 0
        return True
