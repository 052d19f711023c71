"""Where a step's time went: curves, rows and the picture."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from trainers.timeline import Timeline, plot_timeline, step_curves
from trainers.tracking import read_metrics


def test_curves_of_a_step_by_hand():
    curves = step_curves(
        {
            "rollout": [(0.5, 4.0)],
            "reward": [(4.0, 6.0)],
            "reference": [(4.5, 7.0)],
            "update": [(7.0, 12.0)],
            "weight_sync": [(12.0, 12.5)],
            "validation": [(13.0, 20.0)],
        }
    )
    assert curves == {
        "time/rollout": 3.5,
        "time/reward": 2.0,
        "time/reference": 2.5,
        "time/update": 5.0,
        "time/weight_sync": 0.5,
        "time/validation": 7.0,
        "time/step": 12.0,  # 0.5 to 12.5: what an update needs
        "time/overlap_saved": 1.5,  # 2.0 + 2.5 one after the other, 3.0 from 4.0 to 7.0
    }


def test_nothing_is_saved_where_nothing_overlaps():
    spans = {"reward": [(0.0, 1.0)], "reference": [(2.0, 3.0)]}
    assert step_curves(spans)["time/overlap_saved"] == 0.0  # 2 seconds of work took 3


def test_a_part_that_was_begun_again_counts_whole():
    assert step_curves({"reference": [(0.0, 1.0), (4.0, 6.0)]})["time/reference"] == 3.0


def test_parts_of_several_threads_are_measured_and_written(tmp_path: Path):
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.begin(3)

    def score() -> None:
        with timeline.span("reward"):
            time.sleep(0.2)

    thread = threading.Thread(target=score)
    thread.start()
    with timeline.span("reference"):
        time.sleep(0.1)
    thread.join()
    curves = timeline.curves()
    timeline.end()
    (row,) = read_metrics(tmp_path / "timeline.jsonl")
    assert row["step"] == 3
    assert abs(row["began"] - time.time()) < 60
    assert set(row["spans"]) == {"reward", "reference"}
    assert curves["time/reward"] >= 0.2
    assert 0.05 < curves["time/overlap_saved"] < curves["time/reference"] + 1e-3


def test_a_part_that_raises_is_measured_too(tmp_path: Path):
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.begin(1)
    with pytest.raises(ValueError, match="lost"), timeline.span("update"):
        raise ValueError("lost")
    assert timeline.curves()["time/update"] >= 0.0


def test_a_step_that_is_begun_again_has_one_row_of_its_second_time(tmp_path: Path):
    timeline = Timeline(tmp_path / "timeline.jsonl")
    for step in (1, 2):
        timeline.begin(step)
        with timeline.span("rollout"):
            pass
        timeline.end()
    timeline.begin(3)
    with timeline.span("rollout"):
        pass
    timeline.rewind(1)  # update 3 was cut short, and update 2 was not saved
    timeline.begin(2)
    with timeline.span("update"):
        pass
    timeline.end()
    rows = read_metrics(timeline.file)
    assert [(row["step"], list(row["spans"])) for row in rows] == [(1, ["rollout"]), (2, ["update"])]


def test_the_picture_is_drawn_for_one_step_and_for_many(tmp_path: Path):
    rows = [
        {"step": step, "began": 0.0, "spans": {"rollout": [[0.0, 2.0]], "update": [[2.0, 3.0 + step]]}}
        for step in range(1, 9)
    ]
    for name, shown in (("one.png", rows[:1]), ("many.png", rows)):
        assert plot_timeline(shown, tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "many.png").stat().st_size > (tmp_path / "one.png").stat().st_size


def test_without_a_step_there_is_no_picture(tmp_path: Path):
    Timeline(tmp_path / "timeline.jsonl").plot(tmp_path / "timeline.png")
    assert not (tmp_path / "timeline.png").exists()
