"""Rows of JSONL, gzip and Parquet files, and how their damage is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from data_pipeline.rows import RecordError, read_rows, write_rows

ROWS = [{"id": "a", "text": "naïve 技能"}, {"id": "b", "text": "line\nbreak"}]


def test_plain_lines_and_row_numbers_skip_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": 1}\n\n{"id": 2}\n')
    assert list(read_rows(path)) == [(1, {"id": 1}), (3, {"id": 2})]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.parquet"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name, ROWS)
    assert [row for _, row in read_rows(tmp_path / name)] == ROWS


def test_gzip_is_read_by_the_standard_tool(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl.gz", ROWS)
    lines = gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()).decode().splitlines()
    assert [json.loads(line) for line in lines] == ROWS


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_same_rows_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    write_rows(tmp_path / f"one{suffix}", ROWS)
    write_rows(tmp_path / f"two{suffix}", ROWS)
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1}\n')
    assert list(read_rows(path)) == [(1, {"id": 1})]


@pytest.mark.parametrize(
    "line, problem",
    [
        (b"{nope}\n", "not valid JSON"),
        (b"[1, 2]\n", "a JSON list; expected an object"),
        (b'{"a": NaN}\n', "NaN is not a JSON number"),
        (b'{"a": "\xff"}\n', "unreadable bytes"),
        (b'{"a": "cut of', "truncated: the file ends inside this record"),
    ],
)
def test_a_bad_line_is_named_by_file_and_row(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"id": 1}\n' + line)
    with pytest.raises(RecordError) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


def test_truncated_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"id": %d}\n' % i for i in range(5000)))[:-20])
    with pytest.raises(RecordError, match=r"cut\.jsonl\.gz:\d+: truncated or damaged gzip"):
        list(read_rows(path))


def test_damaged_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    write_rows(path, ROWS)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(RecordError, match=r"cut\.parquet:1: truncated or damaged Parquet"):
        list(read_rows(path))


def test_unknown_format_says_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a name ending in \.jsonl, \.jsonl\.gz, \.parquet"):
        list(read_rows(tmp_path / "x.csv"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_rows(path, ROWS)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="Out of range float"):
        write_rows(path, [{"id": "a"}, {"weight": float("nan")}])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.jsonl"]
