"""Runs programs that nobody has read: no network, no files, no environment, and limits on everything that can be used up."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from evaluation.end_to_end import sandbox_child

_MOUNT_POINTS = ("/mnt", "/media", "/srv", "/opt", "/run", "/home", "/tmp")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp",
    # One thread: a library that starts a thread a core would meet the limit on processes.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_KEPT_BYTES = 65536
"""Of what the sandbox writes, from its end."""
_GRACE_S = 5.0


class SandboxError(ValueError):
    """The isolation that was asked for cannot be had on this machine, or does not hold."""


@dataclass(frozen=True)
class Limits:
    """What one program may use. Memory and processor time are of each process, the others of all together."""

    wall_s: float = 120.0
    cpu_s: int = 60
    memory_mb: int = 4096
    disk_mb: int = 256
    file_mb: int = 64
    processes: int = 64
    open_files: int = 256

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"limit {key} is {value}; expected a number above 0")


@dataclass(frozen=True)
class Outcome:
    """How a program ended: its last output, and ``ended`` as ``exit``, ``killed`` (a signal) or ``timeout``."""

    ended: Literal["exit", "killed", "timeout"]
    code: int
    output: str


class Sandbox:
    """Runs Python programs one at a time each; safe for several threads.

    With isolation a program sees a file system of its own in memory, with the interpreter and the system's libraries read-only
    and an empty ``/tmp``, no network device but an unconnected loopback, and no process but its own (Linux namespaces). It runs
    without any right, as another user where we are root, and everything that it has started ends with it. Without isolation
    only the limits, the empty environment, an empty folder and the end of its process group are left.
    """

    def __init__(self, limits: Limits | None = None, python: str | Path | None = None, isolated: bool = True) -> None:
        """Build nothing yet; see :meth:`check`.

        Args:
            limits: what a program may use.
            python: the interpreter that runs it, with the libraries that it may import; ours if None.
            isolated: False: the network and the files of this machine are within its reach.

        Raises:
            SandboxError: no such interpreter, or no Linux.
        """
        self.limits, self.isolated = limits or Limits(), isolated
        if not sys.platform.startswith("linux"):
            raise SandboxError(f"code of models is run on Linux alone, this is {sys.platform}")
        self.python = str(python or sys.executable)
        try:
            asked = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix]))"
            told = subprocess.run([self.python, "-I", "-c", asked], capture_output=True, timeout=60, check=True)
            self.python, *self._prefixes = json.loads(told.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise SandboxError(f"{self.python}: not a Python interpreter that can be run ({error})") from error

    def describe(self) -> dict[str, Any]:
        """What a result records of it."""
        return {"isolated": self.isolated, **asdict(self.limits)}

    def check(self) -> None:
        """Run a program that tries to get out.

        Raises:
            SandboxError: the sandbox cannot be built (with the reason), or a program in it reaches our network or our files.
        """
        with socket.create_server(("127.0.0.1", 0)) as listening, tempfile.NamedTemporaryFile() as ours:
            os.chmod(ours.name, 0o644)
            program = _PROBE.format(port=listening.getsockname()[1], path=ours.name)
            outcome = self.run(program, "")
        lines = outcome.output.strip().splitlines()
        if outcome.code != 0 or not lines or not lines[-1].startswith("probe:"):
            said = lines[-1] if lines else f"exit status {outcome.code}"
            raise SandboxError(f"the sandbox cannot be built on this machine: {said}")
        reached = lines[-1].removeprefix("probe:").strip()
        if self.isolated and reached:
            raise SandboxError(f"the sandbox does not hold on this machine: a program in it reached {reached}")

    def run(self, program: str, stdin: str) -> Outcome:
        """Run a program's text; ``stdin`` (at most 4,096 bytes) is what it reads from its standard input."""
        with tempfile.TemporaryDirectory(prefix="skillreason-code-") as folder:
            spec = self._specification(program, stdin, folder)
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", sandbox_child.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={},
                close_fds=True,
                start_new_session=True,
            )
            reader = _TailReader(process)
            timed_out = False
            try:
                assert process.stdin is not None
                try:
                    process.stdin.write(json.dumps(spec).encode())
                    process.stdin.close()
                except BrokenPipeError:
                    pass  # it has failed already, and says so
                process.wait(self.limits.wall_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                _kill_group(process)
                reader.join(_GRACE_S)
        code = process.returncode
        if timed_out or code in (128 + signal.SIGXCPU, -signal.SIGXCPU):
            return Outcome("timeout", code, reader.text())
        return Outcome("exit" if 0 <= code < 128 else "killed", code, reader.text())

    def _specification(self, program: str, stdin: str, folder: str) -> dict[str, Any]:
        limits, mb = self.limits, 2**20
        visible = [path for path in (*_SYSTEM, *_DEVICES) if os.path.lexists(path)]
        for prefix in self._prefixes:
            if not any(prefix == path or prefix.startswith(f"{path}/") for path in visible):
                visible.append(prefix)
        point = next(
            (p for p in _MOUNT_POINTS if os.path.isdir(p) and not any(v.startswith(f"{p}/") for v in visible)), ""
        )
        if self.isolated and not point:
            raise SandboxError(f"no folder to mount on; expected one of {', '.join(_MOUNT_POINTS)}")
        return {
            "isolated": self.isolated,
            "python": self.python,
            "program": program,
            "stdin": stdin,
            "folder": folder,
            "visible": visible,
            "mount_point": point,
            "disk_bytes": limits.disk_mb * mb,
            "environment": {**_ENVIRONMENT, "MPLCONFIGDIR": "/tmp" if self.isolated else folder},
            "limits": {
                "RLIMIT_CPU": limits.cpu_s,
                "RLIMIT_AS": limits.memory_mb * mb,
                "RLIMIT_FSIZE": limits.file_mb * mb,
                "RLIMIT_NPROC": limits.processes,
                "RLIMIT_NOFILE": limits.open_files,
            },
        }


class _TailReader:
    """Takes all that a process writes, so that it never waits, and keeps the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._tail, self._process = b"", process
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            while chunk := stream.read1(65536):  # type: ignore[attr-defined]
                self._tail = (self._tail + chunk)[-_KEPT_BYTES:]

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def text(self) -> str:
        return self._tail.decode("utf-8", "replace")


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def new_secret() -> str:
    """A word that a program cannot guess."""
    return secrets.token_hex(16)


_PROBE = """
import os, socket
reached = []
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=2).close()
    reached.append("a port of this machine")
except OSError:
    pass
if os.path.exists({path!r}):
    reached.append("a file of this machine")
try:
    devices = [name for _, name in socket.if_nameindex() if name != "lo"]
except OSError:
    devices = []
if devices:
    reached.append("network devices " + ", ".join(devices))
print("probe:", "; ".join(reached))
"""
