"""How Stage II goes on after a loss, and the account of what it cost."""

from __future__ import annotations

import time
from typing import Any

from actors.groups import GroupDied
from actors.launch import Roles
from actors.members import RoleError
from objectives.checkpoint import CheckpointError, checkpoint_step
from trainers.events import EventLog
from trainers.run_folder import RunFolder
from trainers.tracking import read_metrics


class Account:
    """What losses cost a run, over all its processes."""

    def __init__(self, log: EventLog):
        self.log = log
        self.seconds_lost = sum(_cost(row["event"], row) for row in read_metrics(log.file))

    def note(self, event: str, detail: str, **values: Any) -> None:
        """Log an event, see :class:`trainers.events.EventLog`."""
        self.log.add(event, detail, **values)
        self.seconds_lost += _cost(event, values)

    def curves(self) -> dict[str, float]:
        """Totals so far."""
        return {
            "recovery/lost": float(sum(self.log.count(event) for event in ("died", "left", "hung"))),
            "pool/redispatched": float(self.log.count("redispatched")),
            "recovery/restarts": float(self.log.count("restart")),
            "recovery/seconds_lost": self.seconds_lost,
        }


def _cost(event: str, values: dict[str, Any]) -> float:
    return float(values.get("seconds", 0.0)) if event in {"redispatched", "restart"} else 0.0


class PolicyRenewed(Exception):
    """The policy was started again on the way: its weights are those of the beginning."""


class Recovery:
    """Restarts of the policy and the reference, at most ``max_restarts`` in this process."""

    def __init__(self, roles: Roles, account: Account, max_restarts: int):
        self.roles, self.account = roles, account
        self.max_restarts = max_restarts
        self.restarts = 0
        self._down_since: float | None = None  # the policy is away

    def restart(self, died: GroupDied) -> None:
        """Start a lost group again: the policy loads while this returns, the reference is ready then.

        Raises:
            RoleError: too often.
            ConfigError: no room for it.
            PolicyRenewed: the reference was lost, and its bundles were the policy's.
        """
        while True:
            self._count(died)
            start = time.monotonic()
            if "policy" in self.roles.restart(died.group):
                self._down_since = self._down_since or start
                if died.group != "policy":
                    raise PolicyRenewed from died
                return
            try:
                self.roles.reference.ready()
            except GroupDied as again:
                died = again
                continue
            seconds = round(time.monotonic() - start, 3)
            self.account.note("restart", "the reference was started again", group="reference", seconds=seconds)
            return

    def _count(self, died: GroupDied) -> None:
        self.account.note("died", str(died), group=died.group)
        self.restarts += 1
        if self.restarts > self.max_restarts:
            raise RoleError(
                f"{died}; trainer.max_restarts is {self.max_restarts}, and that many restarts were made; the last checkpoint "
                "stands: run it again to go on"
            ) from died

    def policy_is_back(self, step: int, updates_lost: int) -> None:
        """The policy has its checkpoint, and the rollout workers its weights; says so if it had been away."""
        if self._down_since is not None:
            seconds = round(time.monotonic() - self._down_since, 3)
            text = f"the policy was started again after update {step}; {updates_lost} updates are made again"
            self.account.note("restart", text, group="policy", step=step, updates_lost=updates_lost, seconds=seconds)
            self._down_since = None


def newest_checkpoint(run: RunFolder, saved: int) -> str | None:
    """The run's newest checkpoint, which the policy's first worker wrote, maybe on another node.

    Args:
        saved: the update of the last one that it said it had written.

    Raises:
        CheckpointError: it cannot be seen from here; to go on from an older one would throw updates away.
    """
    checkpoint = run.newest_checkpoint(saved)
    step = checkpoint_step(checkpoint) if checkpoint else 0
    if step < saved:
        found = f"is of update {step}" if checkpoint else "does not exist"
        raise CheckpointError(
            f"the policy saved update {saved}, and the newest checkpoint that the driver sees in {run.checkpoints} {found}; "
            "expected run.root, or run.checkpoints, on storage that all nodes share"
        )
    return checkpoint
