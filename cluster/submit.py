"""Submitting a run as a Ray job: the code and environment that travel, the logs that come back, stopping it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import job_environment
from configs import GrpoConfig, RerankerConfig, Stage1Config, load_config
from configs.arguments import split_arguments

EXCLUDES = (
    ".*/",  # .git, .venv, caches of tools
    ".env*",
    ".netrc",
    "*.pem",
    "*.key",
    "venv/",
    "runs/",
    "wandb/",
    "node_modules/",
    "__pycache__/",
    "*.egg-info/",
    "*.safetensors",
    "*.gguf",
    "*.bin",
    "*.pt",
    "*.pth",
)
"""What never travels, in .gitignore's syntax: runs, environments, caches, weights, and files that usually hold secrets."""

STOP_WAIT_S = 600
"""Seconds a stopped run has to finish its update and write a checkpoint before Ray kills it; Ray's own default is 3."""

INTERRUPTED = 130
_STAGES = {"stage1": Stage1Config, "grpo": GrpoConfig, "reranker": RerankerConfig}
_ENVIRONMENT_PACKAGE = "skillreason_job_environment"
_LOST_CONTACT_S = 300.0


class SubmitError(ValueError):
    """A job that could not be submitted or reached; the message says what to change."""


@dataclass(frozen=True)
class Job:
    """What is submitted.

    Attributes:
        command: ``train stage1|grpo|reranker …`` as ``skillreason`` takes it, or any other command line.
        working_dir: folder that travels and that the job runs in.
        wheel: a wheel of the project that travels instead of a folder.
        env_vars: names of environment variables whose values, from this process, the job gets.
        pip: requirements that Ray installs for the job on every node, on top of the image's packages.
        name: the job's id; empty lets Ray choose.
    """

    command: Sequence[str]
    working_dir: Path = Path(".")
    wheel: Path | None = None
    env_vars: Sequence[str] = ()
    pip: Sequence[str] = field(default_factory=tuple)
    name: str = ""


# -- what travels -------------------------------------------------------------------------------------------------------


def entrypoint(job: Job) -> str:
    """The shell command that the job runs; a training command is checked first.

    Raises:
        ConfigError, SubmitError: the configuration is wrong, does not travel, or would leave its run on a node's own disk.
    """
    command = list(job.command)
    if not command:
        raise SubmitError(
            "nothing to submit; expected train stage1, grpo or reranker with its arguments, or -- COMMAND"
        )
    if command[0] == "train":
        command = ["python", "-m", "skillreason", *_training_command(command, job)]
    if job.env_vars:  # Ray runs the setup hook in workers, not in the job's own process
        command = ["python", "-m", _ENVIRONMENT_PACKAGE, *command]
    return shlex.join(command)


def _training_command(command: list[str], job: Job) -> list[str]:
    if len(command) < 3 or command[1] not in _STAGES:
        raise SubmitError(f"{shlex.join(command)!r}; expected train stage1, grpo or reranker, then a configuration")
    name, overrides = split_arguments(command[2:])
    path = Path(name)
    inside = None if job.wheel is not None else job.working_dir.resolve()
    if path.is_file():
        if inside is None or not path.resolve().is_relative_to(inside):
            where = (
                f"outside of {inside}, the folder that travels" if inside else "not in the wheel, which alone travels"
            )
            raise SubmitError(
                f"{name} lies {where}; expected a file in it, a name of configs/, or a path that exists only on the cluster"
            )
        name = path.resolve().relative_to(inside).as_posix()
    if path.is_file() or not path.is_absolute():
        file = path if path.is_file() else name
        run = load_config(_STAGES[command[1]], file, overrides).run
        if not Path(run.root).is_absolute():
            raise SubmitError(
                f"run.root is {run.root!r}; expected an absolute path on storage that all nodes share, such as "
                "run.root=/shared/runs: a job's own folder is deleted with the job"
            )
    return ["train", command[1], name, *overrides]


@contextlib.contextmanager
def runtime_environment(job: Job) -> Iterator[dict[str, Any]]:
    """Ray's runtime environment of the job; its files live until the context ends.

    Values of ``env_vars`` are in a file (mode 600) of the upload, never in the environment's description, which Ray logs.

    Raises:
        SubmitError: a variable that is not set, or a folder or wheel that does not exist.
    """
    values = _environment_values(job.env_vars)
    with tempfile.TemporaryDirectory(prefix="skillreason-submit-") as scratch:
        environment: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        if job.wheel is not None:
            environment["working_dir"] = str(_unpack(job.wheel, Path(scratch) / "project"))
        elif job.working_dir.is_dir():
            environment |= {"working_dir": str(job.working_dir.resolve()), "excludes": list(EXCLUDES)}
        else:
            raise SubmitError(f"--working-dir {job.working_dir}: no such folder")
        if values:
            package = Path(scratch) / _ENVIRONMENT_PACKAGE
            package.mkdir()
            shutil.copyfile(job_environment.__file__, package / "__init__.py")
            (package / "__main__.py").write_text(f"from {_ENVIRONMENT_PACKAGE} import run\n\nrun()\n", encoding="utf-8")
            secret = os.open(package / "values.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(secret, "w", encoding="utf-8") as handle:
                json.dump(values, handle)
            environment["py_modules"] = [str(package)]
            environment["worker_process_setup_hook"] = f"{_ENVIRONMENT_PACKAGE}.load"
        if job.pip:
            environment["pip"] = list(job.pip)
        yield environment


def _environment_values(names: Sequence[str]) -> dict[str, str]:
    for name in names:
        if "=" in name:
            raise SubmitError(
                f"--env-var {name.split('=')[0]}=…; expected a name alone: values come from the environment, because those on a "
                "command line end in shell histories and process lists"
            )
        if name not in os.environ:
            raise SubmitError(f"--env-var {name}: not set in this environment; expected export {name}=… before")
    return {name: os.environ[name] for name in names}


def _unpack(wheel: Path, folder: Path) -> Path:
    """A pure Python wheel's files, importable from ``folder``: nothing is installed, the image has the dependencies."""
    if wheel.suffix != ".whl" or not zipfile.is_zipfile(wheel):
        raise SubmitError(f"--wheel {wheel}: not a wheel; expected a .whl file, such as pip wheel --no-deps writes")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


# -- the cluster --------------------------------------------------------------------------------------------------------


def connect(address: str | None = None) -> Any:
    """Ray's job client. Where this machine has a token and no mode is set, token authentication is used.

    Args:
        address: the dashboard, such as http://head:8265; None: ``RAY_API_SERVER_ADDRESS``, ``RAY_ADDRESS`` or a cluster of this
            machine.

    Raises:
        SubmitError: no cluster there, or it wants another token.
    """
    if address is not None:  # Ray lets these variables win over an explicit address
        os.environ["RAY_API_SERVER_ADDRESS"] = address
    has_token = any(os.environ.get(key) for key in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if has_token or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is imported: it reads the mode once
    from ray.job_submission import JobSubmissionClient

    for name in ("modules.dashboard_sdk", "modules.job.sdk"):
        logging.getLogger(f"ray.dashboard.{name}").setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)
    with _named_errors(address):
        return JobSubmissionClient(address)


def submit_job(client: Any, job: Job) -> str:
    """Upload what travels, start the job and return its id."""
    command = entrypoint(job)
    with runtime_environment(job) as environment, _named_errors():
        return client.submit_job(entrypoint=command, runtime_env=environment, submission_id=job.name or None)


def follow(client: Any, job_id: str, write: Callable[[str], Any] | None = None) -> int:
    """Print the job's log as it grows until the job ends; a lost connection is taken up where it broke off.

    Returns:
        The command's own exit status; 130 for a job that was stopped, 1 for one that never ran.

    Raises:
        SubmitError: no such job, or no contact for five minutes. The job itself goes on.
    """
    write = write or _write_stdout
    asyncio.run(_follow_log(client, job_id, write))
    with _named_errors():
        info = client.get_job_info(job_id)
    if info.status == "STOPPED":
        return INTERRUPTED
    if info.status == "FAILED" and info.driver_exit_code is None:
        write(f"{(info.message or 'the job failed').strip()}\n")
    return int(info.driver_exit_code if info.driver_exit_code is not None else info.status != "SUCCEEDED")


def stop_job(client: Any, job_id: str) -> bool:
    """Ask the job to stop: training finishes its update, writes a checkpoint and ends. False when it was not running."""
    with _named_errors():
        return client.stop_job(job_id)


def list_jobs(client: Any) -> list[Any]:
    """Every submitted job that the cluster knows, oldest first (Ray's ``JobDetails``)."""
    with _named_errors():
        jobs = [job for job in client.list_jobs() if job.submission_id]
    return sorted(jobs, key=lambda job: job.start_time or 0)


async def _follow_log(client: Any, job_id: str, write: Callable[[str], Any]) -> None:
    import aiohttp
    import requests

    written, contact = 0, time.monotonic()
    while True:
        seen, lost = 0, None
        try:
            async for text in client.tail_job_logs(job_id):
                contact = time.monotonic()
                fresh = text[max(0, written - seen) :]  # after a reconnect the log comes from its beginning
                seen += len(text)
                if fresh:
                    write(fresh)
                    written += len(fresh)
        except (RuntimeError, aiohttp.ClientError, OSError) as error:
            lost = error
        try:
            status = client.get_job_status(job_id)
            contact = time.monotonic() if lost is None else contact
            if status.is_terminal():
                return
        except (ConnectionError, requests.RequestException) as error:
            lost = error
        except RuntimeError as error:
            raise SubmitError(f"job {job_id}: {error}") from error
        if time.monotonic() - contact > _LOST_CONTACT_S:
            raise SubmitError(f"no contact with the cluster for five minutes: {lost}; the job may still run") from lost
        await asyncio.sleep(1.0)


def _write_stdout(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextlib.contextmanager
def _named_errors(address: str | None = None) -> Iterator[None]:
    """Ray's errors as one line that says what to do."""
    import requests
    from ray.exceptions import AuthenticationError

    where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "this machine"
    try:
        yield
    except AuthenticationError as error:
        raise SubmitError(
            f"the cluster at {where} refused the authentication token; expected its token in RAY_AUTH_TOKEN, in the file that "
            "RAY_AUTH_TOKEN_PATH names, or in ~/.ray/auth_token"
        ) from error
    except (ConnectionError, requests.RequestException) as error:
        raise SubmitError(
            f"no Ray dashboard answers at {where}; expected an address such as http://HEAD:8265"
        ) from error
    except RuntimeError as error:
        raise SubmitError(str(error).strip().splitlines()[-1]) from error
