"""The Ray Serve application: one HTTP process in front, search replicas behind; ``serve run serving.app:build indexes=DIR``."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from ray import serve
from ray.exceptions import NodeDiedError, RayActorError, WorkerCrashedError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from serving.backends import LocalBackend
from serving.engine import BatchOutcome, EngineStatus, SearchEngine, SearchJob
from serving.http_app import build_http
from serving.problems import Problem, RequestProblem
from serving.settings import TOKEN_VARIABLE, Scaling, ServeSettings, accepted_tokens, parse_indexes

SEARCH = "search"
HTTP = "http"
_LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ReplicaUnavailableError)
_ATTEMPTS = 4
_STUCK_S = 300.0
"""A search that has run for so long will not end: the replica says it is unhealthy, and Serve starts another."""


class SearchReplica:
    """One process that has every index open."""

    def __init__(self, settings: ServeSettings) -> None:
        self._engine = SearchEngine(settings, serve.get_replica_context().replica_id.unique_id)
        self._backend = LocalBackend(self._engine)
        self._engine.watch(settings.reload_s)

    async def search(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        """Answer a batch."""
        return await self._backend.search(jobs)

    async def skill(self, index: str, skill_id: str) -> Any:
        """A document or a Problem."""
        return await self._backend.skill(index, skill_id)

    async def status(self) -> EngineStatus:
        """This replica's name, versions and counts."""
        return self._engine.status()

    async def reload(self) -> EngineStatus:
        """Open newer versions now."""
        return (await self._backend.reload())[0]

    def check_health(self) -> None:
        """Ray Serve asks every few seconds and replaces a replica that raises."""
        if self._engine.busy_seconds > _STUCK_S:
            raise RuntimeError(f"a search has been running for {self._engine.busy_seconds:.0f} s")


class ReplicaBackend:
    """Search replicas behind a Serve handle. A batch whose replica is lost goes to another: a search changes nothing."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def search(self, jobs: Sequence[SearchJob]) -> BatchOutcome:
        outcome, retries = await self._retried("search", list(jobs))
        return dataclasses.replace(outcome, retries=retries)

    async def skill(self, index: str, skill_id: str) -> Any:
        return (await self._retried("skill", index, skill_id))[0]

    async def status(self) -> list[EngineStatus]:
        return await self._all("status", 5.0)

    async def reload(self) -> list[EngineStatus]:
        return await self._all("reload", 600.0)

    async def _all(self, method: str, timeout_s: float) -> list[EngineStatus]:
        """One answer of every live replica; those lost on the way are left out."""
        try:
            answers = await self._handle.broadcast(method).results_async(timeout_s=timeout_s, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError) as error:
            message = "no search replica answers; ask again"
            raise RequestProblem(Problem(503, "unavailable", message, retry_after_s=5.0)) from error
        return sorted((one for one in answers if isinstance(one, EngineStatus)), key=lambda one: one.replica)

    async def _retried(self, method: str, *arguments: Any) -> tuple[Any, int]:
        for attempt in range(_ATTEMPTS):
            try:
                return await getattr(self._handle, method).remote(*arguments), attempt
            except (*_LOST, DeploymentUnavailableError):
                # Serve needs a moment to learn of the loss; where no replica is left, the next call waits for a new one.
                await asyncio.sleep(0.2 * 2**attempt)
        message = f"search replicas were lost {_ATTEMPTS} times in a row; ask again"
        raise RequestProblem(Problem(503, "unavailable", message, retry_after_s=5.0))


class HttpIngress:
    """The process that Ray's HTTP proxies hand requests to."""

    def __init__(self, settings: ServeSettings, searchers: DeploymentHandle) -> None:
        self._app = build_http(settings, ReplicaBackend(searchers))

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def health(self) -> dict[str, Any]:
        """What /healthz says."""
        return self._app.state.service.health()

    async def drain(self, timeout_s: float) -> int:
        """Refuse new requests (503) and wait for those under way; returns how many did not end in time."""
        service = self._app.state.service
        service.draining = True
        deadline = time.monotonic() + timeout_s
        while service.in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return service.in_flight


def build_application(settings: ServeSettings, scaling: Scaling) -> serve.Application:
    """The application for ``serve.run``. The HTTP process is one, so limits and metrics are those of the whole server."""
    scaled: dict[str, Any] = {"num_replicas": scaling.replicas}
    if scaling.max_replicas > scaling.replicas:
        # One batch at a time is with each replica, so a server that cannot keep up has one ongoing call a replica.
        scaled = {
            "autoscaling_config": {
                "min_replicas": scaling.replicas,
                "initial_replicas": scaling.replicas,
                "max_replicas": scaling.max_replicas,
                "target_ongoing_requests": 0.7,
                "upscale_delay_s": 10,
                "downscale_delay_s": 300,
            }
        }
    searchers = serve.deployment(
        SearchReplica,
        name=SEARCH,
        ray_actor_options={"num_cpus": scaling.cpus, "num_gpus": scaling.gpus},
        max_ongoing_requests=32,
        logging_config={"log_level": "INFO", "enable_access_log": False},  # or every look at a status is a line
        max_constructor_retry_count=3,
        health_check_period_s=5,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=20,
        **scaled,
    )
    ingress = serve.deployment(
        serve.ingress()(HttpIngress),
        name=HTTP,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100_000,  # what is too much is ServeSettings.max_queue's to say, with a 503
        health_check_period_s=5,
        graceful_shutdown_timeout_s=20,
    )
    return ingress.bind(settings, searchers.bind(settings))


class ServeArguments(BaseModel):
    """The arguments of :func:`build`, in a Serve config file or as ``key=value`` of ``serve run``; beside these, the fields of
    Scaling and of ServeSettings.

    Attributes:
        indexes: ``DIR``, or ``NAME=DIR`` each; a string, separated by commas, or a list.
        token_file: on the node that builds the application; one token a line.
        token_variable: of the environment there.
    """

    model_config = ConfigDict(extra="allow")

    indexes: list[str] | str
    token_file: str | None = None
    token_variable: str = TOKEN_VARIABLE
    cors_origins: list[str] | str = Field(default_factory=list)


def build(args: dict[str, Any]) -> serve.Application:
    """What ``serve run``, ``serve deploy`` and KubeRay's RayService call: arguments -> application.

    Raises:
        ValueError: an argument that does not exist, or a value that is not accepted.
    """
    given = ServeArguments.model_validate(args)
    values = {
        **(given.model_extra or {}),
        "indexes": parse_indexes(_list(given.indexes)),
        "token_digests": accepted_tokens(given.token_file, given.token_variable),
        "cors_origins": _list(given.cors_origins),
    }
    kinds = (ServeSettings, Scaling)
    known = {one.name for kind in kinds for one in dataclasses.fields(kind) if one.init}
    for name in values:
        if name not in known:
            raise ValueError(f"unknown argument {name!r}; expected one of {', '.join(sorted(known))}")
    settings = TypeAdapter(ServeSettings).validate_python(values)  # ``serve run`` passes strings
    scaling = TypeAdapter(Scaling).validate_python(values)
    return build_application(settings, scaling)


def _list(value: list[str] | str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
