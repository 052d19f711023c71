"""A real Ray head with token authentication, in processes of its own, and the command line against it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "token-of-the-test-cluster-1f6a"


@dataclass(frozen=True)
class Head:
    """A running head node.

    Attributes:
        address: its dashboard.
        folder: Ray's temporary folder, session logs included.
        environment: what a user's shell has: the cluster's token, and nothing of this test process's Ray.
    """

    address: str
    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, cwd: Path = REPOSITORY, **environment: str | None):
        """Run a program of this Python's environment to its end; a variable that is None is taken away."""
        merged: dict[str, str | None] = {**self.environment, **environment}
        return subprocess.run(
            command,
            cwd=cwd,
            env={key: value for key, value in merged.items() if value is not None},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def submit(self, *arguments: str, cwd: Path = REPOSITORY, **environment: str | None):
        """``skillreason submit --address … ARGUMENTS``."""
        program = (sys.executable, "-m", "skillreason", "submit", "--address", self.address)
        return self.run(*program, *arguments, cwd=cwd, **environment)

    def jobs(self, action: str, *arguments: str):
        """``skillreason jobs ACTION ARGUMENTS --address …``."""
        return self.run(sys.executable, "-m", "skillreason", "jobs", action, *arguments, "--address", self.address)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    """``ray start --head`` with its own ports, folder and token; ended by its process, never by ``ray stop``."""
    folder = Path(tempfile.mkdtemp(prefix="srjob", dir="/tmp"))  # Ray's socket paths must stay short
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "WANDB_API"))}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "HOME": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    gcs, dashboard, agent, grpc, metrics, client = free_ports(6)
    command = [
        *("ray", "start", "--head", "--block", "--num-cpus=4", "--num-gpus=0", "--object-store-memory=200000000"),
        *(f"--temp-dir={folder}/ray", f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"),
        *(f"--dashboard-agent-listen-port={agent}", f"--dashboard-agent-grpc-port={grpc}"),
        *(f"--metrics-export-port={metrics}", f"--ray-client-server-port={client}"),
    ]
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        address = f"http://127.0.0.1:{dashboard}"
        _wait_until_it_asks_for_a_token(address, process, folder / "head.log")
        yield Head(address, folder / "ray", environment)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_it_asks_for_a_token(address: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
            raise AssertionError("the head answers without a token")
        except urllib.error.HTTPError as answer:
            if answer.code == 401:
                return
            raise
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"the head did not start: {log.read_text()}")
