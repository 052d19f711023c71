"""Submitting, without a cluster: commands, the environment that is described, and following a log that breaks off."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.job_submission import JobStatus

from cluster import jobs as job_commands
from cluster import submit as submit_module
from cluster.submit import Job, SubmitError, entrypoint, follow, runtime_environment

SECRET = "wandb-key-that-nobody-may-read-5c0d"


# -- the command line --------------------------------------------------------------------------------------


def test_a_training_command_becomes_the_job_s_with_words_quoted(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "run: {name: a b, root: /shared/runs}\nmodel: {path: x}\ndata: {train_file: y}\n"
    )
    job = Job(["train", "stage1", "--config", str(tmp_path / "mine.yaml"), "run.name=a b"], working_dir=tmp_path)
    assert shlex.split(entrypoint(job)) == [
        "python",
        "-m",
        "skillreason",
        "train",
        "stage1",
        "mine.yaml",
        "run.name=a b",
    ]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "nothing to submit"),
        (["train", "encoder", "x"], "expected train stage1, grpo or reranker"),
        (["train", "grpo", "grpo_0.6b"], "run.root is 'runs'; expected an absolute path"),
        (["train", "grpo", "grpo_0.7b", "run.root=/r"], "no configuration file grpo_0.7b"),
        (["train", "grpo", "grpo_0.6b", "run.root=/r", "actor.optm.lr=1"], "did you mean actor.optim"),
        (["train", "grpo", "grpo_0.6b", "run.root=/r", "rollout.n=1"], "rollout.n is 1"),
    ],
)
def test_a_command_that_cannot_work_is_refused_before_anything_is_sent(command: list[str], message: str):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        entrypoint(Job(command))


def test_a_configuration_outside_of_the_folder_that_travels_is_refused(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("")
    (tmp_path / "code").mkdir()
    with pytest.raises(SubmitError, match=r"mine\.yaml lies outside of .*, the folder that travels"):
        entrypoint(Job(["train", "stage1", str(tmp_path / "mine.yaml")], working_dir=tmp_path / "code"))


def test_a_configuration_on_the_cluster_s_own_storage_is_left_to_the_cluster():
    job = Job(["train", "grpo", "/shared/configs/mine.yaml", "run.root=/shared/runs"])
    assert entrypoint(job).endswith("train grpo /shared/configs/mine.yaml run.root=/shared/runs")


# -- the environment ---------------------------------------------------------------------------------------


def test_the_described_environment_holds_no_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("A_KEY", SECRET)
    with runtime_environment(Job(["true"], tmp_path, env_vars=["A_KEY"], pip=["einops==0.8"])) as environment:
        assert SECRET not in json.dumps(environment)
        (package,) = environment["py_modules"]
        values = Path(package) / "values.json"
        assert json.loads(values.read_text()) == {"A_KEY": SECRET}
        assert stat.S_IMODE(values.stat().st_mode) == 0o600
        assert environment["pip"] == ["einops==0.8"]
        assert environment["working_dir"] == str(tmp_path)
    assert not values.exists()


@pytest.mark.parametrize(
    ("name", "message"), [("A_KEY=5", "A_KEY=…; expected a name alone"), ("NOT_SET", "NOT_SET: not set")]
)
def test_a_value_on_the_command_line_and_an_unset_name_are_refused(name: str, message: str, tmp_path: Path):
    with pytest.raises(SubmitError, match=message), runtime_environment(Job(["true"], tmp_path, env_vars=[name])):
        pass


def test_what_is_no_folder_or_no_wheel_is_refused(tmp_path: Path):
    (tmp_path / "x.whl").write_text("no archive")
    for job in (Job(["true"], tmp_path / "none"), Job(["true"], wheel=tmp_path / "x.whl")):
        with pytest.raises(SubmitError, match=r"no such folder|not a wheel"), runtime_environment(job):
            pass


# -- following ---------------------------------------------------------------------------------------------


class FakeClient:
    """A job whose log comes in pieces; a piece that is an exception breaks the connection, or is Ctrl-C."""

    def __init__(
        self, *tails: list[str | BaseException], status: JobStatus = JobStatus.SUCCEEDED, code: int | None = 0
    ):
        self.tails = list(tails)
        self.info = SimpleNamespace(status=status, driver_exit_code=code, message="it never began")
        self.stopped: list[str] = []

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        for piece in self.tails.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    def get_job_status(self, job_id: str) -> JobStatus:
        return JobStatus.RUNNING if self.tails else self.info.status

    def get_job_info(self, job_id: str) -> Any:
        return self.info

    def stop_job(self, job_id: str) -> bool:
        self.stopped.append(job_id)
        return True


def test_a_lost_connection_is_taken_up_where_it_broke_off():
    client = FakeClient(["one\ntw", RuntimeError("closed")], [OSError("gone")], ["one\n", "two\nthree\n"])
    written: list[str] = []
    assert follow(client, "job", written.append) == 0
    assert "".join(written) == "one\ntwo\nthree\n"


def test_no_contact_for_long_is_an_error_and_says_that_the_job_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(submit_module, "_LOST_CONTACT_S", 0.0)
    client = FakeClient([OSError("gone")], [OSError("gone")], ["never\n"])
    client.get_job_status = lambda job_id: (_ for _ in ()).throw(ConnectionError("down"))  # type: ignore[method-assign]
    with pytest.raises(SubmitError, match=r"no contact with the cluster .* the job may still run"):
        follow(client, "job", lambda text: None)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (JobStatus.FAILED, 3, 3),
        (JobStatus.FAILED, None, 1),
        (JobStatus.STOPPED, None, 130),
        (JobStatus.SUCCEEDED, 0, 0),
    ],
)
def test_the_exit_status_is_the_command_s(status: JobStatus, code: int | None, expected: int):
    written: list[str] = []
    assert follow(FakeClient([], status=status, code=code), "job", written.append) == expected
    assert ("it never began\n" in written) == (status == JobStatus.FAILED and code is None)


@pytest.mark.parametrize(("answer", "stopped"), [("y", ["job"]), ("", [])])
def test_ctrl_c_asks_at_a_terminal_whether_to_stop_the_job(
    answer: str, stopped: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    client = FakeClient(["one\n", KeyboardInterrupt()], [], status=JobStatus.STOPPED, code=None)
    ask: Callable[[str], str] = lambda question: answer  # noqa: E731
    assert job_commands._follow_until_interrupted(client, "job", ask) == 130
    assert client.stopped == stopped


def test_ctrl_c_without_a_terminal_leaves_the_job_running(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    client = FakeClient([KeyboardInterrupt()])
    assert job_commands._follow_until_interrupted(client, "job") == 130
    assert client.stopped == []
    assert "which goes on: skillreason jobs logs|stop job" in capsys.readouterr().err
