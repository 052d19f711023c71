"""The inside of the sandbox: builds a world without network and without files, then becomes the program that is to be run.

Run by :mod:`evaluation.end_to_end.sandbox` as a file, with the standard library alone: ``python -I -S sandbox_child.py``, and a
JSON object on its standard input. Processes follow each other: the outer one maps user ids and waits; one enters new namespaces;
the first process of the process namespace builds the file system, and waits for the last, which gives up all rights and becomes
the program. When the first process ends, however it ends, the kernel kills whatever the program has left behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import sys

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH, AT_RECURSIVE = 2, 0x8000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
MOUNT_SETATTR = 442
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "arm64": 41}
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 1, 24, 4, 38
NOBODY, INSIDE_USER = 65534, 1000
SETUP_FAILED = 120
"""Exit status of a sandbox that could not be built; the reason is the last line of its standard error."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _call(f"mount {kind or 'bind'} {target}", result)


def _read_only(target: str) -> None:
    """``target`` and all mounts below it: read-only, and without the rights of set-user-id files."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    wanted = Attributes(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    result = _libc.syscall(MOUNT_SETATTR, -100, target.encode(), AT_RECURSIVE, ctypes.byref(wanted), size)
    _call(f"mount_setattr {target}", result)


def _build_root(spec: dict) -> None:
    """A root of our own in memory: the interpreter and the system's libraries read-only, a few devices, an empty /tmp."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    root = spec["mount_point"]
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in spec["visible"]:
        target = root + path
        if os.path.islink(path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(path, target, "", MS_BIND | MS_REC)
    for name in ("proc", "tmp", "old"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    try:  # while the old one is in sight: the kernel allows a new /proc only then
        _mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV)
        with open(f"{root}/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")  # nobody inside gets rights by a namespace of their own
    except OSError:
        pass  # some containers allow no /proc: then there is none, and nothing to learn from it
    os.chdir(root)
    _call("pivot_root", _libc.syscall(PIVOT_ROOT[platform.machine()], b".", b"old"))
    os.chdir("/")
    _call("umount", _libc.umount2(b"/old", MNT_DETACH))
    os.rmdir("/old")
    _read_only("/")
    _mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={spec['disk_bytes']},mode=1777")


def _limit(spec: dict) -> None:
    for name, value in spec["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        hard = sys.maxsize if hard == resource.RLIM_INFINITY else hard
        value = min(value, hard)
        # A second more before the hard end: the first signal says that it was the processor's time.
        resource.setrlimit(kind, (value, value + 1 if name == "RLIMIT_CPU" and value < hard else value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _become(spec: dict, isolated: bool) -> None:
    """Give up every right for good, and start the program; its report goes to our standard output, its own output nowhere."""
    if isolated:
        for capability in range(64):
            _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        if os.getuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("prctl", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    folder = "/tmp" if isolated else spec["folder"]
    os.chdir(folder)
    program = os.path.join(folder, "program.py")
    with open(program, "w", encoding="utf-8") as file:
        file.write(spec["program"])
    # The program's own standard input: what only it is told.
    read, write = os.pipe()
    os.write(write, spec["stdin"].encode()[:4096])
    os.close(write)
    os.dup2(read, 0)
    _limit(spec)
    os.closerange(3, 4096)
    os.execve(spec["python"], [spec["python"], "-I", "-B", program], {**spec["environment"], "HOME": folder})


def _first_process(spec: dict) -> int:
    """Process 1 of the namespace: all others end with it."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _build_root(spec)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            _become(spec, isolated=True)
        except BaseException as error:
            _fail(error)
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _isolated(spec: dict) -> int:
    """New namespaces; the ids inside are written from the outside, as the kernel wants it."""
    uid, gid = os.getuid(), os.getgid()
    ready, go = os.pipe(), os.pipe()
    inner = os.fork()
    if inner == 0:
        try:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _call("unshare", _libc.unshare(NEWUSER | NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS | NEWCGROUP))
            os.write(ready[1], b"1")
            os.read(go[0], 1)
            first = os.fork()  # the process namespace begins with the next child
            if first == 0:
                code = _first_process(spec)
                os._exit(code if code >= 0 else 128 - code)
            os._exit(_wait(first))
        except BaseException as error:
            _fail(error)
    os.close(ready[1])
    if os.read(ready[0], 1):
        both = f"0 0 1\n{NOBODY} {NOBODY} 1"  # as root: the program becomes nobody
        with open(f"/proc/{inner}/setgroups", "w") as file:
            file.write("allow" if uid == 0 else "deny")
        for name, own in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{inner}/{name}", "w") as file:
                file.write(both if uid == 0 else f"{INSIDE_USER} {own} 1")
        os.write(go[1], b"1")
    return _wait(inner)


def _wait(process: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else 128 - code


def _fail(error: BaseException) -> None:
    os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(SETUP_FAILED)


def main() -> None:
    """Read the specification, build, run, and end with the program's status."""
    spec = json.loads(sys.stdin.buffer.read())
    try:
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # where memory runs out, this is what the kernel ends first
        except OSError:
            pass
        if not spec["isolated"]:
            _become(spec, isolated=False)
        os._exit(_isolated(spec))
    except BaseException as error:
        _fail(error)


if __name__ == "__main__":
    main()
