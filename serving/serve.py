"""Start the application on a Ray of its own or on a cluster, say where it serves, and end it without cutting off answers."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from serving.auth import check_listen
from serving.settings import Scaling, ServeSettings

APP = "skillreason"
_DRAIN_S = 20.0
_START_TIMEOUT_S = 600.0
_POLL_S = 0.5


@dataclass(frozen=True)
class Listen:
    """Where to serve. ``address``: of a Ray cluster, such as ``auto``, HOST:6379 or ray://HOST:10001; None: a Ray of its own."""

    host: str = "127.0.0.1"
    port: int = 8000
    address: str | None = None


def check_port(host: str, port: int) -> int:
    """The port, or a free one for 0.

    Raises:
        ValueError: it is taken, or the host is not one of this machine's; names both.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}; expected 1 to 65535, or 0 for a free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(
                f"cannot listen on {host}:{port}: {reason}; expected a free --port, or 0 for any"
            ) from error
        return probe.getsockname()[1]


def run_server(settings: ServeSettings, scaling: Scaling, listen: Listen, say: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or SIGINT, then let the answers under way finish; a second signal stops at once.

    Args:
        scaling: replicas, and what they reserve.
        say: where progress goes, one line a call.

    Raises:
        ValueError: the port is taken, other machines could ask without a token, or the application does not start.
    """
    check_listen(listen.host, settings.token_digests)
    port = check_port(listen.host, listen.port) if listen.address is None else listen.port
    started = time.monotonic()
    say("starting Ray" if listen.address is None else f"connecting to Ray at {listen.address}")
    import ray
    from ray import serve

    from serving.app import build_application

    _connect(listen.address, scaling)
    try:
        with _signals() as stop:
            if serve.status().proxies:
                say("Ray Serve runs on this cluster already: its host and port count, not --host and --port")
            serve.start(
                http_options={"host": listen.host, "port": port},
                proxy_location="HeadOnly" if listen.address is None else "EveryNode",
                logging_config={"log_level": "WARNING", "enable_access_log": False},
            )
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            say(f"opening {len(settings.indexes)} index(es) in {scaling.replicas} search replica(s)")
            target = serve.RunTarget(build_application(settings, scaling), name=APP, route_prefix="/")
            serve.run_many([target], wait_for_applications_running=False)
            try:
                _wait_until_ready(stop, say)
                if not stop.is_set():
                    shown = f"[{listen.host}]" if ":" in listen.host else listen.host
                    asked = "every request needs a token" if settings.token_digests else "this machine alone may ask"
                    say(f"ready after {time.monotonic() - started:.0f} s; {asked}")
                    say(f"serving at http://{shown}:{port}  (API: http://{shown}:{port}/docs, Ctrl-C ends it)")
                    stop.wait()
                    _drain(say)
            finally:
                _end(listen.address)
    finally:
        ray.shutdown()
    say("ended")


def _connect(address: str | None, scaling: Scaling) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError) as error:
            raise ValueError(f"--address {address}: no Ray cluster answers there ({error})") from error
        return
    most = max(scaling.replicas, scaling.max_replicas)
    # Logical CPUs: enough for every replica that may run, whatever the machine has; threads are what is really used.
    cpus = max(os.cpu_count() or 1, int(most * scaling.cpus) + 1)
    ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM or SIGINT sets; a second one raises KeyboardInterrupt wherever the program is."""
    stop = threading.Event()

    def caught(number: int, _: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, caught) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(stop: threading.Event, say: Callable[[str], None]) -> None:
    """Return when every replica is up, or ``stop`` is set.

    Raises:
        ValueError: it does not start; with what the replica said.
    """
    from ray import serve
    from ray.serve.schema import ApplicationStatus

    started = time.monotonic()
    told = started
    while not stop.is_set():
        application = serve.status().applications.get(APP)
        if application is not None and application.status == ApplicationStatus.RUNNING:
            handle = serve.get_app_handle(APP)
            if handle.health.remote().result(timeout_s=30)["status"] == "ready":
                return
        failed = application is not None and application.status == ApplicationStatus.DEPLOY_FAILED
        if failed or time.monotonic() - started > _START_TIMEOUT_S:
            messages = [one.message for one in application.deployments.values() if one.message] if application else []
            raise ValueError(f"the server does not start: {_cause(messages)}")
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"still starting after {told - started:.0f} s")
        stop.wait(_POLL_S)


def _cause(messages: list[str]) -> str:
    """The exception in what Serve says of a failed deployment, without its traceback."""
    for message in messages:
        lines = [line.strip() for line in message.splitlines()]
        for line in reversed(lines):
            for kind in ("ValueError: ", "OSError: ", "FileNotFoundError: "):
                if kind in line:
                    return line.partition(kind)[2]
    return " ".join(messages)[-2000:] or "no replica came up in time"


def _drain(say: Callable[[str], None]) -> None:
    from ray import serve

    say("ending: new requests are refused, those under way are answered")
    try:
        left = serve.get_app_handle(APP).drain.remote(_DRAIN_S).result(timeout_s=_DRAIN_S + 10)
    except Exception as error:  # whatever it is, the server is to end
        say(f"could not wait for the requests under way: {type(error).__name__}")
        return
    if left:
        say(f"{left} request(s) were not answered within {_DRAIN_S:.0f} s")


def _end(address: str | None) -> None:
    """Remove the application: on a cluster other people's stay."""
    from ray import serve

    if address is None:
        serve.shutdown()
    else:
        serve.delete(APP)
