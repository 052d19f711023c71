"""The driver's side of the policy and the reference: several processes behind the calls of one.

verl's single controller and DataProto are the transport. Importing this module is cheap: verl is imported when a group starts.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from actors.policy_batch import PolicyBatch, whole_share
from cluster.errors import cause, is_device_failure, last_line
from configs.schema import GrpoConfig
from models.views import View

if TYPE_CHECKING:
    from actors.weight_sync import WeightUpdate
    from cluster.placement import Slots

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 20.0
"""After one worker has failed, how long the others may take to answer: they may wait for it in a collective for ever."""

LOST_PEER = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "tcpstore")
"""How the others' collectives complain when a worker is gone."""


class GroupDied(RuntimeError):
    """A worker of a group is gone, and the rest of the group was ended: none of them can go on without it.

    Attributes:
        group: ``policy`` or ``reference``.
        workers: ranks of the lost workers; empty where it is not known which.
    """

    def __init__(self, group: str, workers: Sequence[int], message: str):
        super().__init__(message)
        self.group = group
        self.workers = tuple(workers)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.group, self.workers, str(self))


class Pending(Generic[T]):
    """A call under way on all workers of a group."""

    def __init__(self, group: WorkerGroup, references: list[Any], finish: Callable[[list[Any]], T]):
        self.references = references
        self._group = group
        self._finish = finish

    def result(self) -> T:
        """Wait for every worker.

        Raises:
            GroupDied: a worker's process is gone, or its GPU failed.
            Exception: what a worker raised, as itself.
        """
        return self._finish(self._group.wait(self.references))


class WorkerGroup:
    """Workers that are started, called and ended together.

    Attributes:
        size: number of workers.
        starting: references that are answered when a worker is up or has failed; :meth:`ready` says which.
    """

    name: ClassVar[str]

    def __init__(self, workers: Any):
        """
        Args:
            workers: verl's worker group, see :func:`actors.group_workers.launch`.
        """
        self._workers = workers
        self.size: int = workers.world_size
        # the address is a reference: each worker's setup begins as soon as the first one has answered, and nobody waits here
        self.starting: list[Any] = workers.setup(workers.listen())

    def ready(self) -> int:
        """Parameters of the model, once every worker has loaded it.

        Raises:
            BackboneError, ValueError: as the worker raised it.
            GroupDied: a worker's process died.
        """
        return self.wait(self.starting)[0]

    def pids(self) -> list[int]:
        """Process ids by rank, each on its worker's own node."""
        return self._call(self._alive().pid()).result()

    def stop(self) -> None:
        """End the workers' processes; their bundles are free for the next group."""
        workers, self._workers = self._workers, None
        for worker in workers.workers if workers is not None else ():
            ray.kill(worker)

    def wait(self, references: list[Any]) -> list[Any]:
        """Every worker's answer, by rank; ends the group when one of its processes is gone or has left the others waiting."""
        pending = {reference: rank for rank, reference in enumerate(references)}
        answers: dict[int, Any] = {}
        failed: dict[int, BaseException] = {}
        deadline = None
        while pending:
            patience = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            done, _ = ray.wait(list(pending), num_returns=1, timeout=patience)
            if not done:
                break
            rank = pending.pop(done[0])
            try:
                answers[rank] = ray.get(done[0])
            except RayTaskError as error:
                failed[rank] = cause(error)
                deadline = deadline or time.monotonic() + PATIENCE_S
            except RayError as error:  # the process, its node, or what it had put into the object store
                self._died([rank], last_line(error), error)
        if not failed:
            return [answers[rank] for rank in range(len(references))]
        broken = [rank for rank, error in sorted(failed.items()) if is_device_failure(error)]
        if broken:
            error = failed[broken[0]]
            self._died(broken, f"its GPU failed: {last_line(error)}", error)
        rank, error = min(failed.items())
        if _is_lost_peer(error):
            lost = sorted(pending.values())
            self._died(lost, f"worker {rank} lost contact: {last_line(error)}", error)
        if pending:
            self.stop()
        raise error

    def _died(self, lost: list[int], why: str, cause: BaseException) -> None:
        self.stop()
        which = f"worker {', '.join(map(str, lost))} of {self.size}" if lost else f"one of its {self.size} workers"
        raise GroupDied(self.name, lost, f"the {self.name} group lost {which}: {why}") from cause

    def _alive(self) -> Any:
        if self._workers is None:
            raise GroupDied(self.name, (), f"the {self.name} group was stopped")
        return self._workers

    def _call(self, references: Any, finish: Callable[[list[Any]], T] = lambda answers: answers) -> Pending[T]:
        return Pending(self, references if isinstance(references, list) else [references], finish)


class PolicyGroup(WorkerGroup):
    """The policy: every call is one of :class:`actors.policy.Policy` on all workers."""

    name = "policy"

    @classmethod
    def start(cls, config: GrpoConfig, slots: Slots) -> Self:
        """Create the workers in their bundles and have them load the model; returns at once, see :meth:`ready`."""
        from actors.group_workers import PolicyWorker, launch

        group = cls(launch(PolicyWorker, cls.name, config, slots))
        importlib.import_module("objectives.policy_gradient")  # for the first update, while the workers load
        return group

    def update(self, batch: PolicyBatch) -> dict[str, float]:
        """One GRPO step with the whole batch, spread over the workers; ``time/update`` is the time until all are through.

        Raises:
            FloatingPointError: the gradient's norm is not finite; the weights stay as they were, and so does the group.
        """
        from actors.transport import policy_proto

        start = time.perf_counter()
        metrics = self._first(self._alive().update(policy_proto(whole_share(batch), self.size)))
        return {**metrics, "time/update": time.perf_counter() - start}

    def encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        """Embeddings ``[N, d]`` of the current policy."""
        return self._first(self._alive().encode(ray.put(list(views)), max_length))

    def save(self, folder: str, step: int, progress: dict[str, Any], keep: int) -> str:
        """Write a checkpoint; its path."""
        return self._first(self._alive().save(folder, step, progress, keep))

    def restore(self, path: str) -> dict[str, Any]:
        """Load a checkpoint, of any number of workers, and return its progress."""
        return self._first(self._alive().restore(path))

    def export(self, retriever: str, causal_lm: str, max_length: int) -> None:
        """Write the SentenceTransformer folder and the full causal LM folder."""
        self._first(self._alive().export(retriever, causal_lm, max_length))

    def version(self) -> int:
        """Updates made."""
        return self._first(self._alive().version())

    # -- weights: what actors.weight_sync.WeightSync asks for -------------------------------------------------------------

    def publish_weights(self, dtype: str) -> WeightUpdate:
        """Put the weights into the object store, without passing them through this process."""
        return self._first(self._alive().publish_weights(dtype))

    def open_weight_group(self) -> tuple[str, int]:
        """Host and port at which the first worker awaits the receivers of broadcasts."""
        return self._first(self._alive().open_weight_group())

    def weight_device(self) -> str:
        """The first worker's device, see :func:`actors.weight_sync.device_id`."""
        return self._first(self._alive().weight_device())

    def start_join_weight_group(self, size: int, backend: str) -> Pending[None]:
        """The first worker joins the group it has opened."""
        return self._call(self._alive().join_weight_group(size, backend), lambda answers: answers[0])

    def start_broadcast_weights(self, dtype: str) -> Pending[int]:
        """Send the weights to the group; the result is their version."""
        return self._call(self._alive().broadcast_weights(dtype), lambda answers: answers[0])

    def _first(self, references: Any) -> Any:
        return self._call(references).result()[0]


class ReferenceGroup(WorkerGroup):
    """The frozen reference."""

    name = "reference"

    @classmethod
    def start(cls, config: GrpoConfig, slots: Slots) -> Self:
        """As :meth:`PolicyGroup.start`."""
        from actors.group_workers import ReferenceWorker, launch

        return cls(launch(ReferenceWorker, cls.name, config, slots))

    def log_probs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> Pending[tuple[list[np.ndarray], float]]:
        """Log-probabilities of every response token; the result is one float32 array a response and the seconds it took."""
        from actors.transport import scores_in_order, sequence_proto

        lengths = [len(r) for r in responses]
        proto, rows = sequence_proto([list(p) for p in prompts], [list(r) for r in responses], self.size)
        references = self._alive().log_probs(proto)
        return self._call(references, lambda answers: scores_in_order(answers, rows, lengths))


def _is_lost_peer(error: BaseException) -> bool:
    """Whether a worker failed because another one is gone, not by itself."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return True
    # gloo's errors are of no class of their own; those of a weight broadcast are, and mean a rollout worker
    return type(error) is RuntimeError and any(mark in str(error).lower() for mark in LOST_PEER)
