"""Broadcasting weights from the policy to all rollout workers in a process group of their own: NCCL on GPUs, else gloo."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from actors.weight_buckets import Bucket, Entry
from cluster.errors import is_device_failure

BACKENDS = ("nccl", "gloo")


class WeightTransferError(Exception):
    """A broadcast that did not come through: a member died or did not answer in time. The group is of no further use.

    No ``RuntimeError``: those, with such messages, say that a process of the policy itself has lost another one.
    """


def serve_store(timeout_s: float) -> dist.TCPStore:
    """The key-value store through which a group's members find each other, in the sender's process; its port is free."""
    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def connect_store(host: str, port: int, timeout_s: float) -> dist.TCPStore:
    """The sender's store, from a receiver's process."""
    try:
        return dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise WeightTransferError(f"no answer from the weight group's sender at {host}:{port}: {error}") from error


class WeightGroup:
    """One sender (rank 0, the policy's first worker) and its receivers.

    The backend is made directly and not by ``torch.distributed.init_process_group``: a process has only one default group, and
    the policy's workers train in it. Layouts go through the group's store, tensors through the backend.

    Every call raises :class:`WeightTransferError` when a member has been silent for ``timeout_s``.
    """

    def __init__(self, store: dist.TCPStore, rank: int, size: int, backend: str, timeout_s: float):
        """Join; returns when all ``size`` members have joined.

        Args:
            store: of the sender, see :func:`serve_store` and :func:`connect_store`.
            rank: 0 sends.
            backend: ``nccl`` or ``gloo``.
            timeout_s: seconds a member may be silent.
        """
        if backend not in BACKENDS:
            raise ValueError(f"weight group backend is {backend!r}; expected one of {BACKENDS}")
        self.rank = rank
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        self._timeout = timedelta(seconds=timeout_s)
        self._store = store
        self._transfers = 0
        self._keys: list[str] = []
        try:
            store.set(f"joined/{rank}", "")
            store.wait([f"joined/{r}" for r in range(size)], self._timeout)
            members = dist.PrefixStore("members", store)
            if backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                # at NCCL's own timeout its watchdog ends the process, and the policy with it: ours comes first and only raises
                options._timeout = 10 * self._timeout
                self._backend: Any = dist.ProcessGroupNCCL(members, rank, size, options)
                self._broadcast(torch.zeros(1, device=self.device))  # NCCL connects at its first collective
            else:
                self._backend = dist.ProcessGroupGloo(members, rank, size, self._timeout)
        except RuntimeError as error:
            raise WeightTransferError(f"rank {rank} of {size} could not join the weight group: {error}") from error

    def send(self, version: int, buckets: Iterable[Bucket]) -> None:
        """Give every receiver the weights (rank 0).

        ``buckets`` is exhausted even if a receiver is lost on the way: gathering them may be a collective of the policy.

        Raises:
            WeightTransferError: after that. A GPU of one's own that failed is raised as it is.
        """
        failure: RuntimeError | None = None
        for key in self._keys:  # of the transfer before, which everybody has read
            self._store.delete_key(key)
        self._keys = []
        self._announce("start", {"version": version})
        index = 0
        for bucket in buckets:
            if failure is not None:
                continue
            try:
                layout = [asdict(entry) for entry in bucket.layout]
                self._announce(str(index), {"layout": layout, "bytes": len(bucket.data)})
                index += 1
                self._broadcast(torch.as_tensor(bucket.data))
            except RuntimeError as error:
                failure = error
                self._announce(str(index), {"failed": str(error)})  # for who already waits for the next bucket
        if failure is not None:
            if is_device_failure(failure):
                raise failure
            raise WeightTransferError(f"the broadcast of weights of version {version} failed: {failure}") from failure
        self._announce(str(index), {"buckets": index})
        self._transfers += 1

    def receive(self) -> tuple[int, Iterator[Bucket]]:
        """The version and the buckets of the next :meth:`send`; each bucket has memory of its own.

        A receiver that cannot use a bucket must still take the others, or it keeps everybody waiting.
        """
        return self._read("start")["version"], self._receive()

    def _receive(self) -> Iterator[Bucket]:
        index = 0
        while "layout" in (header := self._read(str(index))):
            data = torch.empty(header["bytes"], dtype=torch.uint8, device=self.device)
            try:
                self._broadcast(data)
            except RuntimeError as error:
                if is_device_failure(error):
                    raise
                raise WeightTransferError(f"weights did not arrive at rank {self.rank}: {error}") from error
            yield Bucket(tuple(Entry(**{**e, "shape": tuple(e["shape"])}) for e in header["layout"]), data)
            index += 1
        if "failed" in header:
            raise WeightTransferError(f"the sender lost a member: {header['failed']}")
        self._transfers += 1

    def _announce(self, name: str, header: dict[str, Any]) -> None:
        key = f"{self._transfers}/{name}"
        self._store.set(key, json.dumps(header))
        self._keys.append(key)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return json.loads(self._store.get(f"{self._transfers}/{name}"))
        except RuntimeError as error:
            raise WeightTransferError(f"no word from the weight group's sender at rank {self.rank}: {error}") from error

    def _broadcast(self, tensor: torch.Tensor) -> None:
        """From rank 0, in place; returns when this member is done with the tensor."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        work = self._backend.broadcast([tensor], options)
        if self.device.type == "cuda":
            deadline = time.monotonic() + self._timeout.total_seconds()
            while not work.is_completed():
                if time.monotonic() > deadline:
                    self._backend.abort()
                    raise RuntimeError(f"a member did not answer for {self._timeout.total_seconds():.0f} s")
                time.sleep(0.001)
        work.wait()
