"""A study from its configuration to its tables: train what the rows need, evaluate them, write figures as they come."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.rationales import Augment
from evaluation.run import evaluate
from evaluation.study_table import TableRow, plot_study, study_markdown, table_rows
from evaluation.workbench import Workbench
from models.folders import atomic_write_text, write_json
from skillreason.ablations.config import RowSpec, StudyConfig, SystemSpec, parents_of, resolve_system
from skillreason.ablations.training import export_of, run_name, train_system, training_config

logger = logging.getLogger(__name__)


def run_study(config: StudyConfig, progress: bool = False) -> dict[str, Any]:
    """Run what is not done yet, and return what ``study.json`` holds.

    ``out`` gets runs/ (a run folder a trained system and seed), results/ (a result file a benchmark, system and seed),
    study.json, study.md and plots/. An interrupted study goes on where it was, inside a run too.

    Raises:
        ConfigError: the study or one of its runs cannot work; nothing has been trained then.
        ValueError, OSError, FloatingPointError: what training or evaluation raise; what is finished is kept.
    """
    if config.sample_library:
        from skillreason.ablations.sample import prepare_sample

        config = prepare_sample(config)
    jobs = list(study_jobs(config))
    for name, seed in jobs:  # a wrong key of the last system should not cost the days before it
        for link in [*parents_of(config, name), name]:
            if seed is not None and resolve_system(config, link).train:
                training_config(config, link, seed)
    workbench = Workbench()
    value = write_study(config)
    for number, (name, seed) in enumerate(jobs, start=1):
        logger.info("%d of %d: %s", number, len(jobs), name if seed is None else run_name(name, seed))
        spec = resolve_system(config, name)
        trained = spec.of or (name if spec.train else "")
        if trained and seed is not None:
            train_system(config, trained, seed)
        for bench in config.benches:
            _evaluate(config, name, spec, seed, bench, workbench, progress)
        value = write_study(config)
    return value


def study_jobs(config: StudyConfig) -> Iterator[tuple[str, int | None]]:
    """System and seed of everything that the tables list; seed None for what nothing is trained for.

    All systems of one seed come before the next seed, so that there is a whole table early.
    """
    wanted = dict.fromkeys(row.system for table in config.tables.values() for row in table.rows)
    names = [name for name in wanted if not config.only or name in config.only]
    waiting = [name for name in names if _waits(config, name)]
    if waiting:
        logger.warning("%s: left out, no teacher is configured (teacher.kind, teacher.model)", ", ".join(waiting))
    names = [name for name in names if name not in waiting]
    seedless = [name for name in names if not _is_trained_kind(resolve_system(config, name))]
    yield from ((name, None) for name in seedless)
    for seed in config.seeds:
        yield from ((name, seed) for name in names if name not in seedless)


def write_study(config: StudyConfig) -> dict[str, Any]:
    """Write ``study.json``, ``study.md`` and ``plots/<table>.png`` from the results there are; returns the first."""
    out = Path(config.out)
    tables = {
        name: table_rows([_row(config, row) for row in table.rows], config.benches, config.metrics)
        for name, table in config.tables.items()
    }
    value = {"title": config.title, "seeds": config.seeds, "metrics": config.metrics, "tables": tables}
    write_json(out / "study.json", value)
    parts = [f"# {config.title}", _seeds_sentence(config)]
    for table, rows in tables.items():
        parts += [f"## {table}", study_markdown(rows, config.benches, config.metrics).strip()]
        plot_study(rows, config.benches, out / "plots" / f"{table}.png", f"{config.title}: {table}", config.plot)
    atomic_write_text(out / "study.md", "\n\n".join(parts) + "\n")
    return value


def result_file(config: StudyConfig, name: str, seed: int | None, bench: str) -> Path:
    """The result of one system on one benchmark."""
    return Path(config.out) / "results" / bench / f"{name if seed is None else run_name(name, seed)}.json"


def _evaluate(
    config: StudyConfig,
    name: str,
    spec: SystemSpec,
    seed: int | None,
    bench: str,
    workbench: Workbench,
    progress: bool,
) -> None:
    source = config.benches[bench]
    trained = spec.of or (name if spec.train else "")
    model = str(export_of(config, trained, seed)) if trained and seed is not None else spec.model or _base(config)
    augment = None
    if spec.augment:
        augment = Augment(spec.augment, teacher=config.teacher, teacher_cache=str(Path(config.out) / ".teacher"))
    evaluate(
        model,
        source.corpus or None,
        source.bench,
        result_file(config, name, seed, bench),
        split=source.split or None,
        max_length=config.max_length,
        query_prompt=spec.query_prompt,
        augment=augment,
        cache_dir=config.cache_dir,
        workbench=workbench,
        reuse=True,
        progress=progress,
    )


def _base(config: StudyConfig) -> str:
    """The encoder of the base model: the sample's is exported, others are encoders themselves."""
    untrained = Path(config.out) / "sample" / "untrained"
    return str(untrained) if config.sample_library else config.base_model


def _row(config: StudyConfig, row: RowSpec) -> TableRow:
    spec = resolve_system(config, row.system)
    seeds = config.seeds if _is_trained_kind(spec) else [None]
    files = {bench: [result_file(config, row.system, seed, bench) for seed in seeds] for bench in config.benches}
    details = {"system": row.system, "set": spec.set}
    return TableRow(row.label or row.system, files, row.block, row.paper, details)


def _is_trained_kind(spec: SystemSpec) -> bool:
    return bool(spec.train or spec.of)


def _waits(config: StudyConfig, name: str) -> bool:
    return resolve_system(config, name).augment == "teacher" and config.teacher.kind == "offline"


def _seeds_sentence(config: StudyConfig) -> str:
    if len(config.seeds) == 1:
        return f"Percent; one seed of training, {config.seeds[0]}."
    return f"Percent; mean ± standard deviation (n − 1) over the seeds of training {', '.join(map(str, config.seeds))}."
