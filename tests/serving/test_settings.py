"""Settings are refused by name before anything starts; so are ports and folders."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from serving.serve import Listen, check_port, run_server
from serving.settings import Scaling, ServeSettings, parse_indexes


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"max_batch": 0}, "max_batch is 0; expected at least 1"),
        ({"max_queue": 10, "max_queries": 11}, "max_queries is 11 and max_queue 10"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0; expected a number above 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"rate": -1.0}, "rate is -1.0; expected a number of at least 0"),
        ({"max_body_bytes": 10}, "max_body_bytes is 10; expected at least 1024"),
        ({"threads": -1}, "threads is -1"),
        ({"indexes": {}}, "--index DIR"),
        ({"indexes": {"a/b": "x"}}, "index name 'a/b'"),
    ],
)
def test_a_setting_that_cannot_be_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        ServeSettings(**{"indexes": {"default": "x"}, **changed})


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"replicas": 0}, "replicas is 0"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas is 2"),
        ({"gpus": -1}, "gpus is -1"),
    ],
)
def test_scaling_that_cannot_be_is_named(changed: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Scaling(**changed)


def test_indexes_are_named_or_default_and_the_first_is_searched(tmp_path: Path) -> None:
    for name in ("one", "two", "a=b"):
        (tmp_path / name).mkdir()
    indexes = parse_indexes([f"new={tmp_path}/one", f"{tmp_path}/two"])
    assert indexes == {"new": f"{tmp_path}/one", "default": f"{tmp_path}/two"}
    assert ServeSettings(indexes).default_index == "new"
    assert parse_indexes([f"{tmp_path}/a=b"]) == {"default": f"{tmp_path}/a=b"}


def test_a_missing_folder_and_a_name_given_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="skillreason index build"):
        parse_indexes([f"{tmp_path}/none"])
    with pytest.raises(ValueError, match="'default' is taken"):
        parse_indexes([str(tmp_path), str(tmp_path)])


def test_a_taken_port_is_named_before_ray_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said: list[str] = []
        with pytest.raises(ValueError, match=f"127.0.0.1:{port}: Address already in use; expected a free --port"):
            run_server(ServeSettings({"default": str(tmp_path)}), Scaling(), Listen(port=port), said.append)
    assert said == []
    assert check_port("127.0.0.1", 0) > 0


def test_no_token_and_an_open_address_are_refused_before_ray_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no token"):
        run_server(ServeSettings({"default": str(tmp_path)}), Scaling(), Listen("0.0.0.0"), lambda _: None)
