"""metrics.jsonl and the W&B curves: the same numbers, one row a step, also after a crash."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb

from configs.schema import TrackingConfig
from trainers.tracking import UPDATE, Tracker, read_metrics, reward_ends, wandb_environment

DISABLED = TrackingConfig(wandb="disabled")


def track(file: Path, rows: dict[int, dict[str, float]], resume_step: int = 0) -> None:
    tracker = Tracker(file, DISABLED, "run", {}, resume_step=resume_step)
    for step, metrics in rows.items():
        tracker.log(step, metrics)
    tracker.close()


def raw_rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_one_row_a_step(tmp_path: Path):
    file = tmp_path / "run" / "metrics.jsonl"
    track(file, {1: {"loss/total": 2.5, "time/step": 0.1}, 2: {"loss/total": 2.25}})
    assert raw_rows(file) == [{"step": 1, "loss/total": 2.5, "time/step": 0.1}, {"step": 2, "loss/total": 2.25}]
    assert read_metrics(file) == raw_rows(file)


def test_a_row_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    tracker = Tracker(file, DISABLED, "run", {})
    tracker.log(1, {"loss/total": 2.5})
    assert raw_rows(file) == [{"step": 1, "loss/total": 2.5}]
    tracker.close()


def test_resuming_drops_the_rows_after_the_checkpoint(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    track(file, {step: {"loss/total": float(step)} for step in (1, 2, 3, 4)})
    track(file, {3: {"loss/total": 30.0}, 4: {"loss/total": 40.0}}, resume_step=2)
    assert [(row["step"], row["loss/total"]) for row in raw_rows(file)] == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]


def test_a_rewound_tracker_drops_rows_and_goes_on(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    tracker = Tracker(file, TrackingConfig(wandb="disabled"), "run", {})
    for step, value in ((1, 1.0), (2, 2.0), (3, 3.0)):
        tracker.log(step, {"loss/total": value})
    tracker.rewind(1)
    tracker.log(2, {"loss/total": 20.0})
    tracker.close()
    assert [(row["step"], row["loss/total"]) for row in raw_rows(file)] == [(1, 1.0), (2, 20.0)]


def test_a_run_without_a_checkpoint_starts_its_metrics_over(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    track(file, {1: {"loss/total": 1.0}})
    track(file, {1: {"loss/total": 9.0}})
    assert raw_rows(file) == [{"step": 1, "loss/total": 9.0}]


def test_a_last_line_cut_by_a_crash_costs_that_line_alone(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    track(file, {step: {"loss/total": float(step)} for step in (1, 2, 3)})
    file.write_text(file.read_text()[:-12])
    assert [row["step"] for row in read_metrics(file)] == [1, 2]
    track(file, {3: {"loss/total": 30.0}}, resume_step=2)
    assert [row["step"] for row in raw_rows(file)] == [1, 2, 3]


def test_a_damaged_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not JSON"):
        read_metrics(file)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_by_key(tmp_path: Path, value: float):
    file = tmp_path / "metrics.jsonl"
    tracker = Tracker(file, DISABLED, "run", {})
    with pytest.raises(ValueError, match=rf"actor/kl_loss at step 7 is {value}"):
        tracker.log(7, {"loss/total": 1.0, "actor/kl_loss": value})
    tracker.close()
    assert raw_rows(file) == []


def wandb_records(file: Path, kind: str) -> list:
    """The records of one kind of a ``.wandb`` file: a 7-byte head, then records in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2 as protocol

    data, position, part = file.read_bytes(), 7, b""
    found = []
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, piece = struct.unpack("<IHB", data[position : position + 7])
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if piece not in (1, 4):  # the first or a middle piece of a longer record
            continue
        record = protocol.Record()  # type: ignore[attr-defined]
        record.ParseFromString(part)
        part = b""
        if record.WhichOneof("record_type") == kind:
            found.append(getattr(record, kind))
    return found


def wandb_rows(file: Path) -> list[dict[str, float]]:
    """Every logged row with our step as ``step``, in the order of W&B's own steps."""
    rows = []
    for history in wandb_records(file, "history"):
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
        rows.append((row["_step"], {key: value for key, value in row.items() if not key.startswith("_")}))
    assert [step for step, _ in rows] == list(range(len(rows)))  # W&B drops rows whose own step does not go up
    return [{"step": row.pop(UPDATE), **row} for _, row in rows]


def refuse_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self, address):
        if self.family != socket.AF_UNIX and not str(address[0]).startswith(("127.", "localhost", "::1")):
            raise AssertionError(f"connected to {address}")
        return connect(self, address)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    # whatever the W&B service process would call goes to a port where nobody listens
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def test_an_offline_wandb_run_has_the_same_numbers_and_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    refuse_network(monkeypatch)
    file = tmp_path / "metrics.jsonl"
    tracker = Tracker(file, TrackingConfig(wandb="offline"), "named", {"stage": "stage1"})
    assert tracker.run_id
    tracker.log(1, {"loss/total": 2.5, "reward/margin/mean": -0.125})
    tracker.log(2, {"loss/total": 2.0, "reward/margin/mean": 0.5})
    tracker.close()
    wandb.teardown()  # ends W&B's own process, which may still be writing the file
    (found,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert tracker.run_id in found.name
    assert wandb_rows(found) == raw_rows(file)


def test_wandb_takes_the_rows_that_are_logged_again_after_a_resume_and_draws_them_over_our_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    refuse_network(monkeypatch)
    file, offline = tmp_path / "metrics.jsonl", TrackingConfig(wandb="offline")
    tracker = Tracker(file, offline, "named", {})
    for step in (1, 2, 3, 4):
        tracker.log(step, {"loss/total": float(step)})
    tracker.rewind(2)  # a lost group: updates 3 and 4 are made again, in the same W&B run
    for step in (3, 4):
        tracker.log(step, {"loss/total": 10.0 * step})
    tracker.close()
    resumed = Tracker(file, offline, "named", {}, resume_step=3, run_id=tracker.run_id)  # and in another process
    resumed.log(4, {"loss/total": 400.0})
    resumed.close()
    wandb.teardown()
    assert resumed.run_id == tracker.run_id
    first, second = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    steps = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (3, 30.0), (4, 40.0)]
    assert [(row["step"], row["loss/total"]) for row in wandb_rows(first)] == steps
    assert [(row["step"], row["loss/total"]) for row in wandb_rows(second)] == [(4, 400.0)]
    metrics = {metric.glob_name or metric.name: metric.step_metric for metric in wandb_records(first, "metric")}
    assert metrics == {UPDATE: "", "*": UPDATE}
    assert [(row["step"], row["loss/total"]) for row in raw_rows(file)] == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 400.0)]


def reward_rows(values: list[float]) -> list[dict]:
    return [{"step": i, "reward/total/mean": v} for i, v in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "start", "end"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0], 1.5, 8.0),
        ([1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 9.0], 1.0, 9.0),  # a quarter of seven is one
        ([2.0, 4.0], 2.0, 4.0),
        ([3.0], 3.0, 3.0),
    ],
)
def test_the_reward_at_start_and_end_is_the_mean_of_a_quarter(values: list[float], start: float, end: float):
    assert reward_ends(reward_rows(values)) == {"start": start, "end": end}


def test_rows_without_a_reward_do_not_count():
    rows = [{"step": 0, "val/recall@10": 1.0}, *reward_rows([1.0, 2.0, 3.0, 4.0])]
    assert reward_ends(rows) == {"start": 1.0, "end": 4.0}


def test_a_run_without_rewards_has_no_start_and_end():
    with pytest.raises(ValueError, match="reward/total/mean"):
        reward_ends([{"step": 1, "loss/total": 1.0}])


def test_a_run_goes_on_without_wandb_when_its_process_is_gone(tmp_path: Path):
    def lost(*_: object) -> None:
        raise ConnectionResetError("Connection lost")

    tracker = Tracker(tmp_path / "metrics.jsonl", DISABLED, "run", {})
    tracker._run = SimpleNamespace(log=lost, finish=lost)
    tracker.log(1, {"loss": 1.0})
    tracker.log(2, {"loss": 0.5})
    tracker.close()
    assert [row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 0.5]


def test_another_machine_gets_every_setting_of_the_tracker_but_this_machines_own_process(monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    settings = {"WANDB_API_KEY": "secret", "WANDB_ENTITY": "team", "WANDB_MODE": "offline", "WANDB_RUN_GROUP": "scale"}
    for name, value in {**settings, "WANDB_SERVICE": "3-1-unix-/tmp/socket", "HF_TOKEN": "other"}.items():
        monkeypatch.setenv(name, value)
    assert wandb_environment() == settings
