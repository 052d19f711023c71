"""What the commands ``skillreason submit`` and ``skillreason jobs`` do at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime

from cluster.submit import INTERRUPTED, Job, connect, follow, list_jobs, stop_job, submit_job


def submit_and_follow(job: Job, address: str | None, *, wait: bool = True) -> int:
    """Submit and, unless ``wait`` is false, follow the log; the job's exit status."""
    client = connect(address)
    job_id = submit_job(client, job)
    if not wait:
        print(job_id)
        return 0
    print(f"submitted {job_id}", file=sys.stderr)
    return _follow_until_interrupted(client, job_id)


def follow_job(job_id: str, address: str | None) -> int:
    """Follow a job's log from its beginning; the job's exit status."""
    return _follow_until_interrupted(connect(address), job_id)


def stop(job_id: str, address: str | None) -> None:
    """Ask a job to stop, and say whether it was running."""
    running = stop_job(connect(address), job_id)
    print(f"{job_id} is stopping" if running else f"{job_id} was not running")


def print_jobs(address: str | None) -> None:
    """One line a job: id, status, start, command."""
    for job in list_jobs(connect(address)):
        start = datetime.fromtimestamp(job.start_time / 1000).strftime("%Y-%m-%d %H:%M:%S") if job.start_time else "-"
        print(f"{job.submission_id}  {job.status.value:<9}  {start}  {job.entrypoint}")


def _follow_until_interrupted(client: object, job_id: str, ask: Callable[[str], str] = input) -> int:
    """Follow; Ctrl-C asks at a terminal whether to stop the job, and otherwise leaves it running."""
    try:
        return follow(client, job_id)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            print(
                f"\nno longer following {job_id}, which goes on: skillreason jobs logs|stop {job_id}", file=sys.stderr
            )
            return INTERRUPTED
    try:
        answer = ask(f"\nstop {job_id}? It finishes its update and writes a checkpoint first. [y/N] ")
    except (KeyboardInterrupt, EOFError):
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        print(f"{job_id} goes on: skillreason jobs logs|stop {job_id}", file=sys.stderr)
        return INTERRUPTED
    stop_job(client, job_id)
    return follow(client, job_id, lambda text: None)
