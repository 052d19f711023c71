"""Answers on disk: what finds them, what they cost, and who may ask."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from data_pipeline.teacher.cache import Reply, ResponseCache, cache_key

REPLY = Reply("{}", "stop", 7, 3)
ASKED = (
    "openai",
    "model-a",
    "system",
    [{"role": "user", "content": "hello"}],
    {"type": "object"},
    {"temperature": 0.0},
)


def test_an_answer_outlives_the_object(tmp_path: Path):
    ResponseCache(tmp_path).put("k", "openai", "m", "task", REPLY)
    assert ResponseCache(tmp_path).get("k") == REPLY
    assert ResponseCache(tmp_path).get("other") is None


@pytest.mark.parametrize(
    "position, other",
    [
        (0, "anthropic"),
        (1, "model-b"),
        (2, "another system"),
        (3, [{"role": "user", "content": "hello!"}]),
        (4, {"type": "array"}),
        (5, {"temperature": 1.0}),
    ],
)
def test_everything_that_decides_an_answer_is_in_its_key(position: int, other: object):
    changed = (*ASKED[:position], other, *ASKED[position + 1 :])
    assert cache_key(*ASKED) == cache_key(*ASKED)
    assert cache_key(*changed) != cache_key(*ASKED)  # type: ignore[arg-type]


def test_spending_adds_up_by_model_and_across_objects(tmp_path: Path):
    cache = ResponseCache(tmp_path)
    cache.put("a", "openai", "m", "task", REPLY)
    cache.put("b", "openai", "m", "task", REPLY)
    cache.put_lost("openai", "m", 100, 50)
    cache.put("c", "anthropic", "m", "task", REPLY)
    assert ResponseCache(tmp_path).spent("openai", "m") == (114, 56)
    assert cache.spent("openai", "unknown") == (0, 0)


def test_one_claim_at_a_time_within_a_process(tmp_path: Path):
    first, second = ResponseCache(tmp_path), ResponseCache(tmp_path)
    key, other = "a" * 64, "b" * 64
    assert first.claim(key)
    assert not second.claim(key)
    assert second.claim(other)
    first.release(key)
    assert second.claim(key)
    second.release(key)
    second.release(other)


def test_a_claim_binds_other_processes_until_its_holder_dies(tmp_path: Path):
    code = (
        "import sys, time; from data_pipeline.teacher.cache import ResponseCache\n"
        "print(ResponseCache(sys.argv[1]).claim('a' * 64), flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        cache = ResponseCache(tmp_path)
        assert not cache.claim("a" * 64)
        assert cache.claim("c" * 64)
        cache.release("c" * 64)
    finally:
        holder.kill()
        holder.communicate()
    assert cache.claim("a" * 64)
    cache.release("a" * 64)


def test_many_threads_write_and_read(tmp_path: Path):
    def work(number: int) -> None:
        cache = ResponseCache(tmp_path)
        for i in range(10):
            cache.put(f"{number}-{i}", "openai", "m", "task", Reply(str(i), "stop", 1, 1))
            assert cache.get(f"{number}-{i}") == Reply(str(i), "stop", 1, 1)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ResponseCache(tmp_path).spent("openai", "m") == (40, 40)


def test_a_damaged_file_is_named(tmp_path: Path):
    (tmp_path / "answers.sqlite3").write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(ValueError, match=r"answers\.sqlite3: .*expected"):
        ResponseCache(tmp_path)


def test_a_file_of_another_format_is_refused_untouched(tmp_path: Path):
    ResponseCache(tmp_path)
    with sqlite3.connect(tmp_path / "answers.sqlite3") as database:
        database.execute("PRAGMA user_version=99")
    before = (tmp_path / "answers.sqlite3").read_bytes()
    with pytest.raises(ValueError, match="format 99"):
        ResponseCache(tmp_path)
    assert (tmp_path / "answers.sqlite3").read_bytes() == before
