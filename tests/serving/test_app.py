"""The application on a real Ray Serve: reloads, lost replicas, draining; and the arguments of ``serve run``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from data_pipeline import SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from serving.app import build
from serving.index_build import build_index

TOKEN = "a-token-that-is-long-enough"


def ask(port: int, path: str, body: Any = None, token: str | None = None, timeout: float = 60.0) -> tuple[int, Any]:
    """Status and JSON document of one request; urllib's own exceptions where there is no answer."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Server:
    """``skillreason serve`` in a process of its own, with a Ray of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = folder / "serve.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
        command = (sys.executable, "-m", "skillreason", "serve", "--port", str(self.port), "--threads", "1", *arguments)
        with self.log.open("wb") as log:
            # A session of its own, so that a signal to it is a signal to it alone, as a service manager would send it.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        self.wait_for("serving at http://", 240)

    def wait_for(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.log.read_text(errors="replace"):
            assert self.process.poll() is None, self.log.read_text(errors="replace")
            assert time.monotonic() < deadline, self.log.read_text(errors="replace")
            time.sleep(0.1)

    def replicas(self) -> list[psutil.Process]:
        """The processes that hold an index."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in family if ":search" in " ".join(one.cmdline())]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sample_index: Path) -> Iterator[tuple[Server, Path]]:
    """A running server and the index it serves; its last test ends it."""
    folder = tmp_path_factory.mktemp("server")
    index = Path(shutil.copytree(sample_index, folder / "index"))
    tokens = folder / "tokens"
    tokens.write_text(TOKEN + "\n")
    started = Server(folder, "--index", str(index), "--token-file", str(tokens), "--reload-every", "3600")
    yield started, index
    if started.process.poll() is None:
        started.end()


def under_load(port: int, during: Callable[[], None], clients: int = 4) -> list[tuple[int, Any]]:
    """Every answer that clients got which search all the time while ``during`` runs."""
    answers: list[tuple[int, Any]] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            answers.append(ask(port, "/search", {"query": "report", "k": 100}, TOKEN))

    threads = [threading.Thread(target=search) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        during()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return answers


@pytest.mark.ray
def test_a_search_through_serve_needs_the_token(server: tuple[Server, Path]) -> None:
    port = server[0].port
    status, body = ask(port, "/search", {"query": "merge two PDF files", "k": 3}, TOKEN)
    assert (status, len(body["hits"])) == (200, 3)
    assert ask(port, "/search", {"query": "x"})[0] == 401
    assert ask(port, "/healthz")[1]["status"] == "ready"
    skill = load_sample_corpus()[0]
    assert ask(port, f"/skills/{skill.skill_id}", token=TOKEN)[1]["body"] == skill.body
    assert ask(port, "/skills/../../etc/passwd", token=TOKEN)[1]["error"]["code"] == "unknown_skill"


@pytest.mark.ray
def test_a_body_without_a_length_is_cut_off_through_the_proxy_too(server: tuple[Server, Path]) -> None:
    with socket.create_connection(("127.0.0.1", server[0].port), timeout=30) as connection:
        head = "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        answer = b""
        connection.setblocking(False)
        unsent = b""
        for _ in range(10_000):  # up to 640 MB, if nobody stopped it
            unsent = unsent or b"10000\r\n" + b"x" * 65536 + b"\r\n"
            try:
                unsent = unsent[connection.send(unsent) :]
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:
                break
            try:
                answer += connection.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                break
            if b"body_too_large" in answer:
                break
    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.ray
def test_a_reload_under_load_loses_nothing(server: tuple[Server, Path]) -> None:
    started, index = server
    before = ask(started.port, "/healthz")[1]["replicas"][0]["versions"]["default"]
    new: list[str] = []

    def reload() -> None:
        built = build_index(index, SkillCorpus(load_sample_corpus()[:7]), "bm25")
        new.append(built.info.version)
        status, body = ask(started.port, "/reload", {}, TOKEN)
        assert (status, body["outcomes"][0]["reloaded"]) == (200, True)
        time.sleep(0.5)

    answers = under_load(started.port, reload)
    assert {status for status, _ in answers} == {200}
    sizes = {body["version"]: len(body["hits"]) for _, body in answers}
    assert sizes == {before: 100, new[0]: 7}


@pytest.mark.ray
def test_a_killed_replica_loses_no_search_and_is_replaced(server: tuple[Server, Path]) -> None:
    started = server[0]
    (before,) = ask(started.port, "/healthz")[1]["replicas"]
    unavailable: list[int] = []

    def kill() -> None:
        time.sleep(0.3)
        (replica,) = started.replicas()
        replica.kill()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            status, body = ask(started.port, "/healthz")
            unavailable.append(status)
            if status == 200 and body["replicas"][0]["replica"] != before["replica"]:
                return
            time.sleep(0.1)
        raise AssertionError("no new replica came up")

    answers = under_load(started.port, kill)
    # Those that were with the replica are sent again; a wait beyond the time limit would be a 504.
    assert {status for status, _ in answers} == {200}
    assert 503 in unavailable


@pytest.mark.ray
def test_sigterm_ends_the_server_with_status_0_and_answers_what_is_under_way(server: tuple[Server, Path]) -> None:
    started = server[0]
    answers: list[tuple[int, Any]] = []

    def search() -> None:
        try:
            while started.process.poll() is None:
                answers.append(ask(started.port, "/search", {"query": "report"}, TOKEN))
        except OSError:
            pass  # the port is closed: the end

    thread = threading.Thread(target=search)
    thread.start()
    time.sleep(0.5)
    assert started.end() == 0
    thread.join()
    assert {status for status, _ in answers} <= {200, 503, 404}
    first_refusal = next((place for place, (status, _) in enumerate(answers) if status != 200), len(answers))
    assert first_refusal > 0
    assert all(status != 200 for status, _ in answers[first_refusal:])
    assert started.log.read_text().rstrip().endswith("ended")


@pytest.mark.ray
def test_an_index_that_cannot_be_opened_is_said_and_the_server_ends(tmp_path: Path, own_index: Path) -> None:
    version = (own_index / "current").read_text().strip()
    (own_index / "versions" / version / "skills.jsonl").write_text("{}\n")
    command = (sys.executable, "-m", "skillreason", "serve", "--port", "0", "--index", str(own_index))
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, start_new_session=True, check=False)
    assert result.returncode == 1
    assert "skills.jsonl" in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_run_takes_strings(sample_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    application = build(
        {
            "indexes": f"a={sample_index},b={sample_index}",
            "max_batch": "8",
            "replicas": "2",
            "token_variable": "MY_TOKEN",
        }
    )
    ingress = application._bound_deployment
    settings, searchers = list(ingress.init_args)
    assert (settings.max_batch, list(settings.indexes), len(settings.token_digests)) == (8, ["a", "b"], 1)
    assert TOKEN not in repr(settings)
    assert searchers._bound_deployment.num_replicas == 2


def test_more_replicas_at_most_means_autoscaling(sample_index: Path) -> None:
    application = build({"indexes": [str(sample_index)], "replicas": 1, "max_replicas": 4})
    _, searchers = list(application._bound_deployment.init_args)
    scaling = searchers._bound_deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (1, 4)


@pytest.mark.parametrize("argument, named", [("max_bach", "unknown argument 'max_bach'"), ("max_batch", "max_batch")])
def test_a_wrong_argument_of_serve_run_is_named(sample_index: Path, argument: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        build({"indexes": str(sample_index), argument: "many"})
