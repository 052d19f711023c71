"""Weight pushes: from the policy's workers to every rollout worker, through Ray's object store or by broadcast."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from actors.weight_buckets import fill_buckets
from actors.weight_group import WeightGroup, WeightTransferError, serve_store
from configs.schema import RolloutConfig

logger = logging.getLogger(__name__)

TIMEOUT_S = 120.0
"""Seconds that a member of a broadcast may be silent before it counts as lost; between two buckets the policy gathers one."""

ANSWER_S = 1800.0
"""Seconds after which a rollout worker that does not answer counts as lost: a large model through a slow network."""

MAX_ATTEMPTS = 2
"""Broadcasts of one push that may fail though no process died."""


@dataclass(frozen=True)
class WeightUpdate:
    """One version of the policy's weights in Ray's object store, and there for as long as somebody holds this."""

    version: int
    buckets: tuple[Any, ...]

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and read-only tensors, one bucket at a time; on the node that holds them without a copy."""
        import ray

        for reference in self.buckets:
            bucket: Any = ray.get(reference)
            yield from bucket.parameters()


def device_id() -> str:
    """``cpu``, or the id of this process's GPU, the same in every process that uses that GPU."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"


class WeightPublisher:
    """The sending side, in every worker of the policy; only rank 0 sends, the others help to gather."""

    def __init__(
        self,
        full_parameters: Callable[[], Iterator[tuple[str, torch.Tensor]]],
        *,
        rank: int,
        bucket_mb: int,
        device: str | torch.device,
        timeout_s: float = TIMEOUT_S,
    ):
        """
        Args:
            full_parameters: the engine's; a collective of the policy's workers that all of them exhaust.
            rank: of this worker within the policy.
            bucket_mb: ``rollout.weight_bucket_mb``.
            device: where the policy computes.
            timeout_s: see :data:`TIMEOUT_S`.
        """
        self._full_parameters = full_parameters
        self._rank = rank
        self._bucket_mb = bucket_mb
        self._device = torch.device(device)
        self._timeout_s = timeout_s
        self._store: Any = None
        self._group: WeightGroup | None = None

    def device(self) -> str:
        """See :func:`device_id`."""
        return device_id() if self._device.type == "cuda" else "cpu"

    def publish(self, version: int, dtype: str) -> WeightUpdate | None:
        """Put the weights into the object store, cast to ``dtype``; the update on rank 0, None elsewhere. Collective."""
        if self._rank:
            return self._help()
        import ray

        buckets = fill_buckets(self._full_parameters(), self._bucket_mb, dtype)
        return WeightUpdate(version, tuple(ray.put(bucket.as_array()) for bucket in buckets))

    def broadcast(self, version: int, dtype: str) -> None:
        """Send the weights to the group, cast to ``dtype``. Collective.

        Raises:
            WeightTransferError: on rank 0, when all workers are through: a receiver was lost.
        """
        if self._rank:
            return self._help()
        if self._group is None:
            raise RuntimeError("the policy's first worker is in no weight group; join_group comes first")
        group, self._group = self._group, None
        group.send(version, fill_buckets(self._full_parameters(), self._bucket_mb, dtype, group.device))
        self._group = group  # only a group that has worked is used again

    def open_group(self) -> tuple[str, int]:
        """Host and port where receivers find a new group (rank 0); the old one is given up."""
        import ray

        self._group = None
        self._store = serve_store(self._timeout_s)
        return ray.util.get_node_ip_address(), self._store.port

    def join_group(self, size: int, backend: str) -> None:
        """Become the group's sender (rank 0); returns when ``size`` - 1 receivers have joined."""
        self._group = WeightGroup(self._store, 0, size, backend, self._timeout_s)

    def _help(self) -> None:
        for _ in self._full_parameters():
            pass


class Pending(Protocol):
    """A call that is under way; ``result`` waits for it and raises what it raised."""

    def result(self) -> Any: ...


class WeightSource(Protocol):
    """The policy's workers as a push sees them: each method calls the one of their publishers."""

    def weight_device(self) -> str: ...

    def publish_weights(self, dtype: str) -> WeightUpdate: ...

    def open_weight_group(self) -> tuple[str, int]: ...

    def start_join_weight_group(self, size: int, backend: str) -> Pending: ...

    def start_broadcast_weights(self, dtype: str) -> Pending:
        """All workers' ``broadcast`` of the newest version, which is the result."""
        ...


@dataclass(frozen=True)
class Push:
    """What a push did: the version that all workers have now, seconds, and the workers that died in it or fell silent."""

    version: int
    seconds: float
    lost: tuple[str, ...] = ()


class WeightSync:
    """The driver's side: weights never pass through it, only references and calls.

    Attributes:
        version: of the newest weights that were pushed or delivered; -1 before the first.
    """

    def __init__(self, source: WeightSource, rollout: RolloutConfig, timeout_s: float = TIMEOUT_S):
        self.version = -1
        self._timeout_s = timeout_s
        self._broadcasts = rollout.weight_transfer == "broadcast"
        self._dtype = ""
        self.reset(source)

    def reset(self, source: WeightSource) -> None:
        """Go on with a policy that was started anew: what the old processes had published is gone with them."""
        self._source = source
        self._update: WeightUpdate | None = None
        self._members: dict[str, Any] = {}

    def push(self, workers: Mapping[str, Any]) -> Push:
        """Give every rollout worker the policy's newest weights; workers that die on the way are left out.

        Args:
            workers: handles of the rollout workers by name.

        Raises:
            WeightTransferError: a broadcast failed again and again although no process died.
        """
        start = time.perf_counter()
        self._update = None  # the object store lets go of old weights before it takes new ones
        alive = dict(workers)
        self._learn_dtype(alive)
        if self._broadcasts:
            self._broadcast(alive)
        elif alive:
            update = self._stored()
            _answers(alive, {name: worker.load_weights.remote(update) for name, worker in alive.items()})
        lost = tuple(name for name in workers if name not in alive)
        return Push(self.version, time.perf_counter() - start, lost)

    def deliver(self, worker: Any) -> Any:
        """Give one worker that has just started the newest weights; returns a Ray reference to wait for.

        This goes through the object store for ``rollout.weight_transfer=broadcast`` too, and then the policy must be at rest: its
        next push forms a group with the worker in it.

        Raises:
            RayError: the worker is gone or silent.
        """
        import ray

        dtype: Any = self._dtype or ray.get(worker.weight_dtype.remote(), timeout=2 * self._timeout_s)
        self._dtype = dtype
        return worker.load_weights.remote(self._stored())

    def _stored(self) -> WeightUpdate:
        if self._update is None:
            self._update = self._source.publish_weights(self._dtype)
            self.version = self._update.version
        return self._update

    def _learn_dtype(self, alive: dict[str, Any]) -> None:
        """What the engines hold, all of one kind: the policy casts once, before the journey."""
        if not self._dtype:
            calls = {name: worker.weight_dtype.remote() for name, worker in alive.items()}
            self._dtype = next(iter(_answers(alive, calls).values()), "")

    def _broadcast(self, alive: dict[str, Any]) -> None:
        attempts = MAX_ATTEMPTS + len(alive)
        for attempt in range(1, attempts + 1):
            if not alive:
                return
            try:
                if self._members != alive:
                    self._form_group(alive)
                sent = self._source.start_broadcast_weights(self._dtype)
                calls = {name: worker.receive_broadcast.remote() for name, worker in alive.items()}
                self.version = self._both(sent, alive, calls)
                return
            except WeightTransferError as error:
                self._members = {}
                if attempt == attempts:
                    raise
                said = str(error).splitlines()[-1]  # the rest is the other process's traceback
                logger.warning("weight broadcast, attempt %d of at most %d: %s", attempt, attempts, said)

    def _form_group(self, alive: dict[str, Any]) -> None:
        """A group of the policy's first worker and these workers; NCCL where each has a GPU of its own, else gloo."""
        self._members = {}
        calls = {name: worker.weight_device.remote() for name, worker in alive.items()}
        devices = [self._source.weight_device(), *_answers(alive, calls, 2 * self._timeout_s).values()]
        own_gpus = "cpu" not in devices and len(set(devices)) == len(devices)
        backend = "nccl" if own_gpus else "gloo"
        host, port = self._source.open_weight_group()
        size = len(alive) + 1
        joined = self._source.start_join_weight_group(size, backend)
        calls = {
            name: worker.join_weight_group.remote(host, port, rank, size, backend, self._timeout_s)
            for rank, (name, worker) in enumerate(alive.items(), start=1)
        }
        self._both(joined, alive, calls)
        self._members = dict(alive)

    def _both(self, source: Pending, alive: dict[str, Any], calls: Mapping[str, Any]) -> Any:
        """What the policy answers, once the workers have answered too: a worker that is alive does so soon after the policy,
        whether it went well or not."""
        failure: WeightTransferError | None = None
        answer = None
        try:
            answer = source.result()
        except WeightTransferError as error:
            failure = error
        _answers(alive, calls, 2 * self._timeout_s)
        if failure is not None:
            raise failure
        return answer


def _answers(alive: dict[str, Any], calls: Mapping[str, Any], timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """Every worker's answer by name; those whose process or GPU is gone, or who are silent, leave ``alive``."""
    import ray
    from ray.exceptions import GetTimeoutError, RayTaskError

    from cluster.errors import LOST, is_device_failure, loss

    answers: dict[str, Any] = {}
    failure: WeightTransferError | None = None
    for name, reference in calls.items():
        try:
            answers[name] = ray.get(reference, timeout=timeout_s)
        except WeightTransferError as error:
            failure = error
        except (RayTaskError, *LOST, GetTimeoutError) as error:
            if isinstance(error, RayTaskError) and not is_device_failure(error, memory=True):
                raise
            logger.warning("rollout worker %s was lost in a weight push: %s", name, loss(error)[1])
            del alive[name]
    if failure is not None:
        raise failure
    return answers
