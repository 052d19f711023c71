"""Hostile programs in the sandbox: each gets nowhere, and nothing of it is left."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from evaluation.end_to_end import Limits, Sandbox, SandboxError, sandbox_child


def processes_with(word: str) -> list[str]:
    """Command lines of this machine's processes that hold a word."""
    lines = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode() if entry.name.isdigit() else ""
        except OSError:
            continue
        if word in line:
            lines.append(line)
    return lines


def test_a_harmless_program_runs(sandbox):
    outcome = sandbox.run("print(sum(range(5)), input())", "told")
    assert (outcome.ended, outcome.code, outcome.output) == ("exit", 0, "10 told\n")


def test_the_network_cannot_be_reached(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        program = f"""
import socket
for place in (("127.0.0.1", {port}), ("1.1.1.1", 53)):
    try:
        socket.create_connection(place, timeout=2)
        print("connected")
    except OSError as error:
        print(error.strerror)
"""
        assert sandbox.run(program, "").output == "Network is unreachable\n" * 2


def test_the_environment_is_empty_of_secrets(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    program = """
import os, pathlib
seen = [str(dict(os.environ))]
for file in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        seen.append(file.read_text())
    except OSError:
        pass
print(len(seen), "sk-secret" in " ".join(seen))
"""
    outcome = sandbox.run(program, "")
    assert outcome.output.split()[1] == "False"


def test_files_outside_cannot_be_read_or_written(sandbox, tmp_path):
    (tmp_path / "secret").write_text("x")
    program = f"""
import os
print(os.path.exists({str(tmp_path)!r}), os.path.exists("/etc/passwd"), os.listdir("/tmp"))
for folder in ("/", "/usr", "/etc", {os.path.dirname(os.__file__)!r}):
    try:
        open(folder + "/written", "w")
        print("written to", folder)
    except OSError:
        pass
open("/tmp/own", "w").write("x")
"""
    assert sandbox.run(program, "").output == "False False ['program.py']\n"
    assert [p.name for p in tmp_path.iterdir()] == ["secret"]


def test_no_right_is_left_and_none_can_be_got_back(sandbox):
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(os.getuid() != 0, libc.unshare(0x10000000), libc.mount(b"none", b"/tmp", b"tmpfs", 0, b""), libc.setuid(0))
"""
    assert sandbox.run(program, "").output == "True -1 -1 -1\n"


def test_a_fork_bomb_meets_the_limit_and_ends(sandbox):
    program = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    started = time.monotonic()
    assert sandbox.run(program, "forkbomb").ended == "timeout"
    assert time.monotonic() - started < 20


def test_no_more_processes_than_allowed(sandbox):
    program = """
import os, time
made = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        made += 1
except OSError:
    print(made)
"""
    assert sandbox.run(program, "").output == "15\n"


def test_a_memory_bomb_ends_alone(sandbox):
    outcome = sandbox.run("held = []\nwhile True:\n    held.append(bytearray(20 << 20))", "")
    assert outcome.code != 0
    assert "MemoryError" in outcome.output


def test_an_endless_loop_runs_out_of_processor_time(sandbox):
    assert sandbox.run("while True:\n    pass", "").ended == "timeout"


def test_a_sleeper_runs_out_of_time(sandbox):
    quick = Sandbox(Limits(wall_s=1.0))
    started = time.monotonic()
    assert quick.run("import time\ntime.sleep(60)", "").ended == "timeout"
    assert time.monotonic() - started < 10


def test_an_endless_output_is_cut(sandbox):
    outcome = sandbox.run("while True:\n    print('x' * 100000)", "")
    assert outcome.ended == "timeout"
    assert len(outcome.output) <= 65536


def test_a_full_disk_is_the_programs_own(sandbox):
    program = """
try:
    for number in range(100):
        with open(f"/tmp/{number}", "wb") as file:
            file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror, number)
"""
    assert sandbox.run(program, "").output == "No space left on device 7\n"


def test_its_parents_cannot_be_killed(sandbox):
    program = """
import os, signal
for target in (1, os.getppid(), -1):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError:
        pass
print("alive")
"""
    assert sandbox.run(program, "").output == "alive\n"


def test_no_file_is_handed_down(sandbox):
    program = """
import os
held = []
for number in range(3, 256):
    try:
        os.fstat(number)
        held.append(number)
    except OSError:
        pass
print(held)
"""
    assert sandbox.run(program, "").output == "[]\n"


def test_a_daemon_ends_with_its_program(sandbox):
    program = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)  # daemon-of-the-test"])
    os._exit(0)
time.sleep(0.5)
print("left")
"""
    assert sandbox.run(program, "").output == "left\n"
    assert not processes_with("daemon-of-the-test")


def test_the_check_refuses_a_sandbox_with_a_hole(sandbox, monkeypatch):
    monkeypatch.setattr(
        "evaluation.end_to_end.sandbox._PROBE", "print('probe: a port of this machine', {port}, {path!r})"
    )
    with pytest.raises(SandboxError, match="a program in it reached a port of this machine"):
        sandbox.check()


def test_a_machine_without_namespaces_is_refused_with_the_reason(sandbox, monkeypatch, tmp_path):
    broken = tmp_path / "child.py"
    source = Path(sandbox_child.__file__).read_text()
    broken.write_text(source.replace("_libc.unshare(NEWUSER", "_libc.unshare(0x1 | NEWUSER"))
    monkeypatch.setattr(sandbox_child, "__file__", str(broken))
    with pytest.raises(SandboxError, match=r"cannot be built on this machine: OSError: .* unshare: Invalid argument"):
        sandbox.check()


def test_an_interpreter_that_is_none_is_refused(tmp_path):
    with pytest.raises(SandboxError, match="nothing: not a Python interpreter"):
        Sandbox(python=tmp_path / "nothing")


def test_a_limit_of_nothing_is_refused():
    with pytest.raises(ValueError, match="limit wall_s is 0; expected a number above 0"):
        Limits(wall_s=0)


def test_without_isolation_the_limits_stay():
    loose = Sandbox(Limits(wall_s=10.0, cpu_s=1, memory_mb=512), isolated=False)
    loose.check()
    assert loose.run("while True:\n    pass", "").ended == "timeout"
    assert "OPENAI" not in loose.run("import os\nprint(dict(os.environ))", "").output
