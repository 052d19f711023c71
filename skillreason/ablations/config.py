"""The typed configuration of a study: its systems, each one line away from another, and the tables that list them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING

from configs.load import ConfigError
from data_pipeline.teacher import TeacherConfig, validate_teacher
from evaluation.grid import validate_benches
from evaluation.paper_figures import METRICS, paper_metrics
from evaluation.study_table import BenchSpec

STAGES = ("stage1", "grpo")
AUGMENTS = ("self", "teacher")
SAMPLES = ("tiny", "small")
SAMPLE_BENCH = "sample"
"""Key of the benchmark that the sample library is, where a study is about it."""


@dataclass
class StageSpec:
    """The configuration that all systems of one stage begin with."""

    config: str = ""  # YAML file, or the name of one in configs/
    set: list[str] = field(default_factory=list)  # key=value, for every system of the stage


@dataclass
class SystemSpec:
    """One system: trained, or evaluated as it is; with neither train, model nor of, it is the base model."""

    like: str = ""  # a system whose keys hold where this one has none, and whose settings come before its own
    train: str = ""  # stage1 or grpo
    parent: str = ""  # the system whose language model training begins with; empty: the base model
    set: list[str] = field(default_factory=list)  # key=value of the stage: the line in which it differs
    implicit: bool = False  # Stage I on the implicit requests of Stage II's records
    model: str = ""  # evaluated without training: bm25, a model folder or hub id
    of: str = ""  # evaluates this system's model, in another way
    augment: str = ""  # self or teacher: requests get a rationale
    query_prompt: str | None = None


@dataclass
class RowSpec:
    """A row of a table."""

    system: str = MISSING
    label: str = ""
    block: str = ""
    paper: str = ""  # row of the paper's figures, such as table3/raw


@dataclass
class TableSpec:
    rows: list[RowSpec] = field(default_factory=list)


@dataclass
class StudyConfig:
    """A study. Figures of a trained system are means over ``seeds``."""

    out: str = MISSING  # folder of everything
    title: str = "Ablations"
    seeds: list[int] = field(default_factory=lambda: [42])
    base_model: str = ""  # folder or hub id of the causal LM that training begins with
    sample_library: str = ""  # tiny or small: data and base model are made from the embedded sample library
    stage1: StageSpec = field(default_factory=StageSpec)
    grpo: StageSpec = field(default_factory=StageSpec)
    systems: dict[str, SystemSpec] = field(default_factory=dict)
    tables: dict[str, TableSpec] = field(default_factory=dict)
    only: list[str] = field(
        default_factory=list
    )  # systems whose rows are wanted, with what they begin with; empty: all
    benches: dict[str, BenchSpec] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=lambda: list(METRICS))
    plot: str = "recall@10"  # the metric that is drawn
    teacher: TeacherConfig = field(
        default_factory=TeacherConfig
    )  # for augment=teacher; such rows wait while it is offline
    max_length: int | None = None  # tokens kept in evaluation; null: each model's
    cache_dir: str | None = None


def resolve_system(config: StudyConfig, name: str) -> SystemSpec:
    """A system with what it takes over from the one it is ``like``; its own settings come last."""
    chain: list[str] = []
    while name:
        if name not in config.systems:
            where = f"systems.{chain[-1]}.like" if chain else "a system"
            raise ConfigError(f"{where} is {name!r}; expected one of {', '.join(config.systems)}")
        if name in chain:
            raise ConfigError(f"systems.{name}.like leads back to itself: {' -> '.join([*chain, name])}")
        chain.append(name)
        name = config.systems[name].like
    merged: dict[str, Any] = {"set": []}
    for link in reversed(chain):
        spec = config.systems[link]
        given = {f.name: getattr(spec, f.name) for f in fields(spec) if f.name not in ("like", "set")}
        merged |= {key: value for key, value in given.items() if value not in ("", False, None)}
        merged["set"] = [*merged["set"], *spec.set]
    return SystemSpec(**merged)


def parents_of(config: StudyConfig, name: str) -> list[str]:
    """The systems that must be trained before this one, first things first.

    Raises:
        ConfigError: one leads back to itself.
    """
    found: list[str] = []
    while (parent := resolve_system(config, name).parent) or resolve_system(config, name).of:
        name = parent or resolve_system(config, name).of
        if name in found:
            raise ConfigError(f"systems.{name}: its parents lead back to itself: {' -> '.join([*found, name])}")
        found.append(name)
    return found[::-1]


def validate_study(config: StudyConfig) -> None:
    """Refuse a study that cannot be run to its end, before anything is trained.

    Raises:
        ConfigError: naming the key, its value and what would be accepted.
    """
    if config.sample_library not in ("", *SAMPLES):
        raise ConfigError(
            f"sample_library is {config.sample_library!r}; expected one of {', '.join(SAMPLES)}, or nothing"
        )
    if not config.seeds or len(set(config.seeds)) != len(config.seeds):
        raise ConfigError(f"seeds is {config.seeds}; expected at least one, each once")
    if not config.base_model and not config.sample_library:
        raise ConfigError(
            "base_model is empty; expected the folder or hub id of a causal LM, such as Qwen/Qwen3-Embedding-0.6B"
        )
    given = {key: spec for key, spec in config.benches.items() if key != SAMPLE_BENCH or not config.sample_library}
    if given or not config.sample_library:
        validate_benches(given)
    validate_teacher(config.teacher)
    for spec in config.benches.values():
        paper_metrics("table3/base", spec.paper)
    for name in config.systems:
        _validate_system(config, name)
    if not any(table.rows for table in config.tables.values()):
        raise ConfigError("tables has no rows; expected at least one, such as tables.main.rows=[{system: base}]")
    for name, table in config.tables.items():
        for row in table.rows:
            if row.system not in config.systems:
                raise ConfigError(
                    f"tables.{name}: {row.system!r} is no system; expected one of {', '.join(config.systems)}"
                )
            paper_metrics(row.paper, "skillret")
    for name in config.only:
        if name not in config.systems:
            raise ConfigError(f"only has {name!r}; expected some of {', '.join(config.systems)}")


def _validate_system(config: StudyConfig, name: str) -> None:
    spec, key = resolve_system(config, name), f"systems.{name}"
    if "/" in name:
        raise ConfigError(f"{key}: a system's name is a folder's; expected one without /")
    if spec.train not in ("", *STAGES):
        raise ConfigError(f"{key}.train is {spec.train!r}; expected one of {', '.join(STAGES)}, or nothing")
    if spec.augment not in ("", *AUGMENTS):
        raise ConfigError(f"{key}.augment is {spec.augment!r}; expected one of {', '.join(AUGMENTS)}, or nothing")
    if sum(map(bool, (spec.train, spec.model, spec.of))) > 1:
        raise ConfigError(f"{key} has several of train, model and of; expected one")
    if (spec.set or spec.parent) and not spec.train:
        raise ConfigError(f"{key} has set or parent and trains nothing; expected train: stage1 or grpo")
    if spec.implicit and spec.train != "stage1":
        raise ConfigError(f"{key}.implicit is true; expected it with train: stage1 only, Stage II is implicit anyway")
    stage = getattr(config, spec.train) if spec.train else None
    if stage is not None and not stage.config:
        raise ConfigError(
            f"{spec.train}.config is empty and {key} trains it; expected a YAML file or a name such as {spec.train}_0.6b"
        )
    for where, other in (("parent", spec.parent), ("of", spec.of)):
        if other and (other not in config.systems or not resolve_system(config, other).train):
            raise ConfigError(f"{key}.{where} is {other!r}; expected a system that is trained")
    parents_of(config, name)
