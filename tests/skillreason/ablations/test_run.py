"""Studies as they run: what is trained from what, how often, and how an interrupted one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs import to_yaml
from configs.load import ConfigError, load_config
from data_pipeline.records import Stage2Record, read_stage1, write_records
from skillreason.ablations import run
from skillreason.ablations.config import StudyConfig, validate_study
from skillreason.ablations.run import run_study

SCORES = {"base": 0.1, "raw-seed1": 0.2, "raw-seed2": 0.4, "full-seed1": 0.5, "full-seed2": 0.5}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., StudyConfig]:
    """``make(*overrides)``: base, raw, full, rl after full, no-gain after full, implicit after full, and rl with rationales."""
    record = Stage2Record(
        record_id="r",
        query="implicit",
        query_capability="c",
        positive_id="p",
        positive="P",
        negative_ids=("n",),
        negatives=("N",),
        category="x",
        original_query="explicit",
    )
    write_records(tmp_path / "stage2.jsonl", [record])

    def load(*overrides: str) -> StudyConfig:
        keys = [
            f"out={tmp_path / 'out'}",
            "base_model=base-model",
            "stage1.config=stage1_tiny",
            "stage1.set=[data.train_file=a.jsonl]",
            "grpo.config=grpo_tiny",
            f"grpo.set=[data.train_file={tmp_path / 'stage2.jsonl'}]",
            "systems.base.model=",
            "systems.raw={train: stage1, set: [loss.lambda_cot=0]}",
            "systems.full={train: stage1}",
            "systems.rl={train: grpo, parent: full}",
            "systems.no-gain={like: rl, set: [reward.terms.gain.weight=0]}",
            "systems.implicit={like: full, parent: full, implicit: true}",
            "systems.self={of: rl, augment: self}",
            "benches.lib={bench: bench.jsonl, corpus: corpus.jsonl}",
            "metrics=[recall@10]",
        ]
        if not any(o.startswith("tables") for o in overrides):
            keys.append("tables.t.rows=[{system: base}, {system: raw, label: + Raw}, {system: full}]")
        return load_config(StudyConfig, None, [*keys, *overrides], check=validate_study)

    return load


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trainers that leave what is looked for afterwards, an evaluation that knows its figures, and a list of both's calls."""
    made: list[str] = []

    def train(config: Any) -> None:
        made.append(f"train {config.run.name} from {Path(config.model.path).parent.parent.name or config.model.path}")
        root = Path(config.run.root) / config.run.name
        (root / "export" / "causal_lm").mkdir(parents=True)
        (root / "config.yaml").write_text(to_yaml(config))
        for file in ("modules.json", "causal_lm/config.json"):
            (root / "export" / file).write_text("{}")

    def evaluate(model: str, corpus: str, bench: str, out: Path, **options: Any) -> None:
        augment = options["augment"]
        made.append(f"evaluate {out.stem}" + (f" with {augment.source}" if augment else ""))
        assert options["reuse"]
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"model": model, "metrics": {"recall@10": SCORES.get(out.stem, 0.9)}}))

    monkeypatch.setattr("trainers.stage1.train_stage1", train)
    monkeypatch.setattr("trainers.grpo.train_grpo", train)
    monkeypatch.setattr(run, "evaluate", evaluate)
    return made


def test_figures_are_means_over_seeds_in_the_order_of_the_table(make: Callable[..., StudyConfig], tmp_path: Path):
    value = run_study(make("seeds=[1,2]"))
    base, raw, full = value["tables"]["t"]
    assert base["benches"]["lib"]["mean"] == {"recall@10": pytest.approx(0.1)}
    assert raw["benches"]["lib"]["mean"] == {"recall@10": pytest.approx(0.3)}
    assert raw["benches"]["lib"]["sd"] == {"recall@10": pytest.approx(0.1 * 2**0.5)}
    assert full["benches"]["lib"]["sd"] == {"recall@10": 0}
    assert (raw["label"], raw["system"], raw["set"]) == ("+ Raw", "raw", ["loss.lambda_cot=0"])
    assert json.loads((tmp_path / "out" / "study.json").read_text()) == value
    assert "30.0 ± 14.1" in (tmp_path / "out" / "study.md").read_text()
    assert (tmp_path / "out" / "plots" / "t.png").is_file()


def test_shared_parents_are_trained_once_a_seed_and_each_system_from_its_own(
    make: Callable[..., StudyConfig], calls: list[str]
):
    run_study(make("seeds=[1]", "tables.t.rows=[{system: rl},{system: no-gain},{system: self}]"))
    assert calls == [
        "train full-seed1 from base-model",
        "train rl-seed1 from full-seed1",
        "evaluate rl-seed1",
        "train no-gain-seed1 from full-seed1",
        "evaluate no-gain-seed1",
        "evaluate self-seed1 with self",
    ]


def test_what_is_finished_is_not_trained_again(make: Callable[..., StudyConfig], calls: list[str]):
    run_study(make("seeds=[1]"))
    calls.clear()
    run_study(make("seeds=[1,2]"))
    assert [call for call in calls if call.startswith("train")] == [
        "train raw-seed2 from base-model",
        "train full-seed2 from base-model",
    ]


def test_an_interrupted_run_is_handed_to_its_trainer_again(
    make: Callable[..., StudyConfig], calls: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    import trainers.stage1

    finish = trainers.stage1.train_stage1

    def stop(config: Any) -> None:
        if config.run.name == "full-seed1":
            folder = Path(config.run.root) / config.run.name
            (folder / "checkpoints").mkdir(parents=True)
            (folder / "config.yaml").write_text(to_yaml(config))
            raise KeyboardInterrupt
        finish(config)

    monkeypatch.setattr("trainers.stage1.train_stage1", stop)
    with pytest.raises(KeyboardInterrupt):
        run_study(make("seeds=[1]"))
    rows = json.loads((tmp_path / "out" / "study.json").read_text())["tables"]["t"]
    assert [row["benches"]["lib"]["n"] for row in rows] == [1, 1, 0]  # what is done stands in the table already

    def resume(config: Any) -> None:
        folder = Path(config.run.root) / config.run.name
        assert (folder / "checkpoints").is_dir()
        for name in ("modules.json", "causal_lm/config.json"):
            (folder / "export" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "export" / name).write_text("{}")
        calls.append("resumed")

    calls.clear()
    monkeypatch.setattr("trainers.stage1.train_stage1", resume)
    run_study(make("seeds=[1]"))
    assert calls == ["evaluate base", "evaluate raw-seed1", "resumed", "evaluate full-seed1"]


def test_a_run_that_was_made_with_other_settings_is_not_taken_for_this_one(make: Callable[..., StudyConfig]):
    run_study(make("seeds=[1]"))
    with pytest.raises(ConfigError, match=r"raw-seed1 was trained with other settings \(- tau: 0.05; \+ tau: 0.1\)"):
        run_study(make("seeds=[1]", "stage1.set=[data.train_file=a.jsonl,loss.tau=0.1]"))


def test_a_wrong_key_of_the_last_system_is_refused_before_the_first_is_trained(
    make: Callable[..., StudyConfig], calls: list[str]
):
    with pytest.raises(ConfigError, match=r"systems\.no-gain: .*reward\.terms"):
        run_study(make("tables.t.rows=[{system: raw},{system: no-gain}]", "systems.no-gain.set=[reward.terms=3]"))
    assert calls == []


def test_implicit_requests_become_records_of_stage_1(
    make: Callable[..., StudyConfig], calls: list[str], tmp_path: Path
):
    run_study(make("seeds=[1]", "tables.t.rows=[{system: implicit}]"))
    assert calls[1] == "train implicit-seed1 from full-seed1"
    (record,) = read_stage1(tmp_path / "out" / "implicit.jsonl")
    assert (record.query, record.positive_id, record.negatives) == ("implicit", "p", ("N",))
