"""Studies as configured: one line between systems, the paper's settings at the end of the chain, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from configs import GrpoConfig, Stage1Config, load_config
from configs.load import ConfigError
from skillreason.ablations.config import StudyConfig, parents_of, resolve_system, validate_study
from skillreason.ablations.run import study_jobs
from skillreason.ablations.training import training_config

SHIPPED = ("ablations_0.6b", "ablations_tiny")


def load(name: str | None, *overrides: str) -> StudyConfig:
    return load_config(StudyConfig, name, ["out=out", *overrides], check=validate_study)


def small(*overrides: str) -> StudyConfig:
    return load(
        None,
        *("base_model=base", "stage1.config=stage1_0.6b", "grpo.config=grpo_0.6b", "benches.b.bench=x"),
        *("systems.raw.train=stage1", "systems.raw.set=[loss.lambda_cot=0]", "tables.t.rows=[{system: raw}]"),
        *overrides,
    )


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix[:-1]: value}
    return {key: item for name, below in value.items() for key, item in flat(below, f"{prefix}{name}.").items()}


def settings(config: StudyConfig, name: str) -> dict[str, Any]:
    """Every key of a system's run but its name."""
    found = flat(OmegaConf.to_container(OmegaConf.structured(training_config(config, name, 42))))
    del found["run.name"]
    return found


@pytest.mark.parametrize(
    ("first", "second", "changed"),
    [
        ("raw", "raw-cot", {"loss.lambda_cot": (0, 1)}),
        ("raw-cot", "transfer", {"loss.lambda_kl": (0, 5)}),
        ("transfer", "stage1", {"loss.lambda_lm": (0, 0.2)}),
        ("raw", "raw-transfer", {"loss.lambda_kl": (0, 5)}),
        ("raw", "raw-lm", {"loss.lambda_lm": (0, 0.2)}),
        ("stage2", "no-margin", {"reward.terms.margin.weight": (1, 0)}),
        ("stage2", "no-gain", {"reward.terms.gain.weight": (1, 0)}),
        ("stage2", "no-length", {"reward.terms.length.weight": (1, 0)}),
        (
            "stage1",
            "implicit-sft",
            {
                "model.path": ("Qwen/Qwen3-Embedding-0.6B", "out/runs/stage1-seed42/export/causal_lm"),
                "data.train_file": ("data/stage1.jsonl", "out/implicit.jsonl"),
            },
        ),
    ],
)
def test_systems_of_the_papers_tables_are_one_line_apart(first: str, second: str, changed: dict[str, tuple[Any, Any]]):
    config = load("ablations_0.6b")
    one, other = settings(config, first), settings(config, second)
    assert {key: (one[key], other[key]) for key in one if one[key] != other[key]} == changed


def test_the_complete_systems_are_the_shipped_configurations():
    config = load("ablations_0.6b")
    run = ["run.root=out/runs", "run.seed=42"]
    stage1 = load_config(Stage1Config, "stage1_0.6b", [*run, "run.name=stage1-seed42"])
    assert training_config(config, "stage1", 42) == stage1
    path = "model.path=out/runs/stage1-seed42/export/causal_lm"
    grpo = load_config(GrpoConfig, "grpo_0.6b", [*run, "run.name=stage2-seed42", path])
    assert training_config(config, "stage2", 42) == grpo


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_studies_have_the_rows_of_both_tables(name: str):
    from evaluation.paper_figures import TABLES

    config = load(name)
    for table in ("table3", "table9"):
        assert [row.paper for row in config.tables[table].rows] == [f"{table}/{row}" for row in TABLES[table]]


def test_every_seed_trains_every_system_and_what_is_not_trained_runs_once():
    config = load("ablations_tiny", "seeds=[1,2]", "only=[base,raw,self-cot,teacher-cot]")
    # nobody is asked for teacher-cot: no teacher is configured
    assert list(study_jobs(config)) == [("base", None), ("raw", 1), ("self-cot", 1), ("raw", 2), ("self-cot", 2)]
    assert parents_of(config, "self-cot") == ["stage1", "stage2"]
    named = load("ablations_tiny", "only=[teacher-cot]", "teacher.kind=openai", "teacher.model=m")
    assert list(study_jobs(named)) == [("teacher-cot", 42)]


def test_a_system_takes_over_what_it_is_like_and_its_own_line_comes_last():
    config = small("systems.other.like=raw", "systems.other.set=[loss.lambda_cot=2]", "systems.other.parent=raw")
    spec = resolve_system(config, "other")
    assert (spec.train, spec.parent, spec.set) == ("stage1", "raw", ["loss.lambda_cot=0", "loss.lambda_cot=2"])
    assert training_config(config, "other", 7).loss.lambda_cot == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("tables.t.rows=[{system: nothing}]",), "tables.t: 'nothing' is no system; expected one of raw"),
        (("tables.t.rows=[]",), "tables has no rows"),
        (("seeds=[1,1]",), r"seeds is \[1, 1\]"),
        (("base_model=''",), "base_model is empty"),
        (("systems.raw.train=stage3",), "systems.raw.train is 'stage3'"),
        (("systems.a.like=gone",), "systems.a.like is 'gone'"),
        (("systems.a.like=b", "systems.b.like=a"), "leads back to itself: a -> b"),
        (("systems.a.like=raw", "systems.a.parent=a"), "systems.a: its parents lead back to itself"),
        (("systems.a.of=gone",), "systems.a.of is 'gone'; expected a system that is trained"),
        (("systems.a.model=bm25", "systems.a.set=[x=1]"), "has set or parent and trains nothing"),
        (("systems.a.model=bm25", "systems.a.of=raw"), "several of train, model and of"),
        (("systems.a.of=raw", "systems.a.augment=oracle"), "augment is 'oracle'"),
        (("stage1.config=''",), "stage1.config is empty and systems.raw trains it"),
        (("tables.t.rows=[{system: raw, paper: table3/x}]",), "no row 'table3/x'"),
        (("benches.b.paper=beir",), "no benchmark 'beir'"),
        (("only=[gone]",), "only has 'gone'"),
        (("sample_library=huge",), "sample_library is 'huge'"),
        (("teacher.kind=openai",), "teacher.model"),
    ],
)
def test_a_study_that_cannot_run_is_refused_by_key(overrides: tuple[str, ...], message: str):
    with pytest.raises(ValueError, match=message):
        small(*overrides)


def test_a_wrong_key_of_a_run_is_refused_with_its_systems_name():
    with pytest.raises(ConfigError, match=r"systems\.raw: .*loss\.lambda_cott.*did you mean loss\.lambda_cot"):
        training_config(small("systems.raw.set=[loss.lambda_cott=0]"), "raw", 1)
