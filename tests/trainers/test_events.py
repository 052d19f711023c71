"""events.jsonl: one line an event, over all processes of a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainers.events import EventLog


def test_an_event_is_a_line_with_its_time_and_fields_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    log = EventLog(tmp_path / "run" / "events.jsonl")
    log.add("restart", "worker 1's process died", step=10, seconds=2.5)
    (row,) = [json.loads(line) for line in log.file.read_text().splitlines()]
    assert datetime.now(UTC) - datetime.fromisoformat(row.pop("time")) < timedelta(minutes=1)
    assert row == {"event": "restart", "detail": "worker 1's process died", "step": 10, "seconds": 2.5}
    assert "restart: worker 1's process died" in caplog.text


def test_counts_go_on_in_the_next_process(tmp_path: Path):
    file = tmp_path / "events.jsonl"
    first = EventLog(file)
    assert first.count("restart") == 0
    first.add("restart", "one")
    first.add("resize", "two")
    second = EventLog(file)
    second.add("restart", "three")
    assert (second.count("restart"), second.count("resize"), second.count("lost")) == (2, 1, 0)


def test_fields_add_up_over_processes(tmp_path: Path):
    EventLog(tmp_path / "events.jsonl").add("restart", "one", seconds=2.5)
    log = EventLog(tmp_path / "events.jsonl")
    log.add("lost", "without a cost")
    log.add("resize", "two", seconds=4.0)
    assert log.total("seconds") == 6.5


def test_a_line_cut_by_a_crash_costs_that_line_alone(tmp_path: Path):
    file = tmp_path / "events.jsonl"
    log = EventLog(file)
    for detail in ("one", "two"):
        log.add("restart", detail)
    file.write_text(file.read_text()[:-5])
    EventLog(file).add("restart", "three")
    assert [json.loads(line)["detail"] for line in file.read_text().splitlines()] == ["one", "three"]


def test_a_run_without_events_has_no_file(tmp_path: Path):
    EventLog(tmp_path / "events.jsonl")
    assert list(tmp_path.iterdir()) == []
