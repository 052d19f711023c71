"""``skillreason serve``: every option reaches the server, and what cannot be is one line and exit status 1."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from serving.auth import token_digest
from serving.serve import Listen
from serving.settings import Scaling, ServeSettings
from skillreason.cli import main

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``run_server`` was given, instead of a server."""
    given: list[Any] = []
    monkeypatch.setattr("serving.serve.run_server", lambda *arguments, **_: given.extend(arguments))
    monkeypatch.delenv("SKILLREASON_TOKEN", raising=False)
    return given


def serve(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", *arguments])
    assert end.value.code in (0, None)


def test_the_defaults_are_those_of_the_settings(started: list[Any], tmp_path: Path) -> None:
    serve("--index", str(tmp_path))
    settings, scaling, listen = started
    assert settings == ServeSettings({"default": str(tmp_path)}, threads=os.cpu_count() or 1)
    assert (scaling, listen) == (Scaling(), Listen())


def test_every_option_reaches_the_server(started: list[Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "tokens").write_text(TOKEN)
    serve(
        *("--index", f"new={tmp_path}/one", "--index", f"old={tmp_path}/two", "--reranker", "r"),
        *("--host", "0.0.0.0", "--port", "81", "--token-file", f"{tmp_path}/tokens", "--address", "auto"),
        *("--replicas", "2", "--max-replicas", "4", "--cpus", "3", "--gpus", "0.5"),
        *("--max-batch", "8", "--batch-wait-ms", "5", "--max-queue", "90", "--max-k", "7", "--max-queries", "6"),
        *("--max-query-chars", "99", "--max-body-bytes", "4096", "--rate", "1.5", "--burst", "3", "--timeout", "9"),
        *("--reload-every", "11", "--cors-origin", "https://a.example"),
    )
    settings, scaling, listen = started
    assert settings == ServeSettings(
        {"new": f"{tmp_path}/one", "old": f"{tmp_path}/two"},
        reranker="r",
        token_digests=(token_digest(TOKEN),),
        cors_origins=("https://a.example",),
        max_batch=8,
        batch_wait_s=0.005,
        max_queue=90,
        max_k=7,
        max_queries=6,
        max_query_chars=99,
        max_body_bytes=4096,
        rate=1.5,
        burst=3,
        timeout_s=9.0,
        reload_s=11.0,
        threads=3,  # as many as a replica reserves on the cluster
    )
    assert (scaling, listen) == (Scaling(2, 4, 3.0, 0.5), Listen("0.0.0.0", 81, "auto"))


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["--index", "/no/such/folder"], "no folder /no/such/folder"),
        (["--index", ".", "--replicas", "0"], "replicas is 0"),
        (["--index", ".", "--max-batch", "0"], "max_batch is 0"),
        (["--index", ".", "--token-file", "/no/such/file"], "token file /no/such/file"),
    ],
)
def test_what_cannot_be_is_one_line(
    started, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", *arguments])
    assert end.value.code == 1
    assert started == []
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_the_token_may_stand_in_the_environment_but_is_no_option(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKILLREASON_TOKEN", TOKEN)
    serve("--index", str(tmp_path))
    assert started[0].token_digests == (token_digest(TOKEN),)
    with pytest.raises(SystemExit) as end:
        main(["serve", "--index", str(tmp_path), "--token", TOKEN])
    assert end.value.code == 2
