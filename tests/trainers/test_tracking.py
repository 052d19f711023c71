"""metrics.jsonl and the W&B curves: the same numbers, one row a step, also after a crash."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import pytest
import wandb

from configs.schema import TrackingConfig
from trainers.tracking import Tracker, read_metrics, reward_ends

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


def wandb_history(file: Path) -> dict[int, dict[str, float]]:
    """The logged rows of a ``.wandb`` file: a 7-byte head, then records in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2 as protocol

    data, position, part = file.read_bytes(), 7, b""
    rows: dict[int, dict[str, float]] = {}
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        part += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind not in (1, 4):  # the first or a middle piece of a longer record
            continue
        record = protocol.Record()  # type: ignore[attr-defined]
        record.ParseFromString(part)
        part = b""
        if record.WhichOneof("record_type") == "history":
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            rows[int(row["_step"])] = {key: value for key, value in row.items() if not key.startswith("_")}
    return rows


def test_an_offline_wandb_run_has_the_same_numbers_and_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
    file = tmp_path / "metrics.jsonl"
    tracker = Tracker(file, TrackingConfig(wandb="offline"), "named", {"stage": "stage1"})
    assert tracker.run_id
    tracker.log(1, {"loss/total": 2.5, "reward/margin/mean": -0.125})
    tracker.log(2, {"loss/total": 2.0, "reward/margin/mean": 0.5})
    tracker.close()
    wandb.teardown()  # ends W&B's own process, which may still be writing the file
    (found,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert tracker.run_id in found.name
    assert wandb_history(found) == {row.pop("step"): row for row in raw_rows(file)}


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
