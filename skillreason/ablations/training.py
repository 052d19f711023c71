"""Training the systems of a study: each in a run folder of its own, shared parents once, unfinished runs resumed."""

from __future__ import annotations

import difflib
import logging
from pathlib import Path
from typing import Any

from configs import ConfigError, GrpoConfig, Stage1Config, load_config, to_yaml
from data_pipeline.records import Stage1Record, read_stage2, write_records
from skillreason.ablations.config import StudyConfig, resolve_system

logger = logging.getLogger(__name__)


def run_root(config: StudyConfig, name: str, seed: int) -> Path:
    """The run folder of a trained system."""
    return Path(config.out) / "runs" / run_name(name, seed)


def run_name(name: str, seed: int) -> str:
    """Of a run's folder and of its results."""
    return f"{name}-seed{seed}"


def export_of(config: StudyConfig, name: str, seed: int) -> Path:
    """The retriever of a trained system."""
    return run_root(config, name, seed) / "export"


def is_trained(config: StudyConfig, name: str, seed: int) -> bool:
    """Whether its export, the retriever and the language model, is complete: each of the two appears whole."""
    export = export_of(config, name, seed)
    return (export / "modules.json").is_file() and (export / "causal_lm" / "config.json").is_file()


def training_config(config: StudyConfig, name: str, seed: int) -> Stage1Config | GrpoConfig:
    """The configuration of one run: the stage's, the study's settings for it, then those of the system.

    Raises:
        ConfigError: see :func:`configs.load_config`; the message begins with the system's name.
    """
    spec = resolve_system(config, name)
    stage = config.stage1 if spec.train == "stage1" else config.grpo
    model = str(export_of(config, spec.parent, seed) / "causal_lm") if spec.parent else config.base_model
    overrides = [
        *stage.set,
        *([f"data.train_file={_implicit_file(config)}"] if spec.implicit else []),
        *spec.set,
        f"model.path={model}",
        f"run.root={Path(config.out) / 'runs'}",
        f"run.name={run_name(name, seed)}",
        f"run.seed={seed}",
    ]
    try:
        return load_config(Stage1Config if spec.train == "stage1" else GrpoConfig, stage.config, overrides)  # type: ignore[return-value]
    except ConfigError as error:
        raise ConfigError(f"systems.{name}: {error}") from error


def train_system(config: StudyConfig, name: str, seed: int) -> Path:
    """Train a system, its parent first, where that is not done yet; returns its export.

    Raises:
        ConfigError: its run folder was made with other settings; what the trainers raise.
    """
    spec = resolve_system(config, name)
    if spec.parent:
        train_system(config, spec.parent, seed)
    wanted = training_config(config, name, seed)
    root = run_root(config, name, seed)
    _check_unchanged(root, to_yaml(wanted))
    if not is_trained(config, name, seed):
        if spec.implicit:
            write_implicit_records(config)
        logger.info("training %s", run_name(name, seed))
        if isinstance(wanted, Stage1Config):
            from trainers.stage1 import train_stage1

            train_stage1(wanted)
        else:
            from trainers.grpo import train_grpo

            train_grpo(wanted)
    return export_of(config, name, seed)


def write_implicit_records(config: StudyConfig) -> Path:
    """Stage II's records as records of Stage I: the implicit request, and everything else as it is (Table 9)."""
    file = Path(_implicit_file(config))
    if not file.is_file():
        keys = Stage1Record.__dataclass_fields__
        source = _stage2_file(config)
        records = [Stage1Record(**{key: getattr(record, key) for key in keys}) for record in read_stage2(source)]
        write_records(file, records)
    return file


def _implicit_file(config: StudyConfig) -> str:
    return str(Path(config.out) / "implicit.jsonl")


def _stage2_file(config: StudyConfig) -> str:
    plain: Any = load_config(GrpoConfig, config.grpo.config, [*config.grpo.set, "model.path=x", "run.name=x"])
    return plain.data.train_file


def _check_unchanged(root: Path, wanted: str) -> None:
    """A finished or interrupted run is only taken for what it is."""
    file = root / "config.yaml"
    found = file.read_text(encoding="utf-8") if file.is_file() else wanted
    if found == wanted:
        return
    changes = list(difflib.unified_diff(found.splitlines(), wanted.splitlines(), n=0, lineterm=""))[2:]
    shown = "; ".join(line[0] + " " + line[1:].strip() for line in changes if line[0] in "+-")
    raise ConfigError(
        f"{root} was trained with other settings ({shown}); give another out=, remove that folder, or go back to its settings"
    )
