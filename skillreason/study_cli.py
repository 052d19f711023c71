"""``skillreason grid`` and ``skillreason ablate``: many pipelines, or many trained systems, in one table."""

from __future__ import annotations

import warnings
from pathlib import Path

import typer

from skillreason.cluster_cli import ConfigArguments, ConfigOption, example

study_app = typer.Typer()


@study_app.command(
    epilog=example("skillreason grid grid_table4 out=runs/table4 retrievers.skillreason-4b.model=runs/mine-4b/export")
)
def grid(arguments: ConfigArguments = None, config: ConfigOption = None) -> None:
    """Retrieve–rerank pipelines (Table 4): every retriever with every reranker; finished cells are kept."""
    from configs.arguments import split_arguments
    from configs.load import load_config
    from evaluation.grid import GridConfig, run_grid, validate_grid

    loaded = load_config(GridConfig, *split_arguments(arguments or [], config), check=validate_grid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # notes about the benchmark stand in every result
        run_grid(loaded, progress=True)
    print(Path(loaded.out, "grid.md").read_text(encoding="utf-8"))
    print(f"written to {loaded.out}: grid.json, grid.md, grid.png, results/")


@study_app.command(epilog=example("skillreason ablate ablations_tiny out=runs/ablations seeds=[1,2,3]"))
def ablate(arguments: ConfigArguments = None, config: ConfigOption = None) -> None:
    """Ablations (Tables 3 and 9): train what the rows need, evaluate each; an interrupted study goes on where it was."""
    from configs.arguments import split_arguments
    from configs.load import load_config
    from skillreason.ablations.config import StudyConfig, validate_study
    from skillreason.ablations.run import run_study

    loaded = load_config(StudyConfig, *split_arguments(arguments or [], config), check=validate_study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        run_study(loaded, progress=True)
    print(Path(loaded.out, "study.md").read_text(encoding="utf-8"))
    print(f"written to {loaded.out}: study.json, study.md, plots/, results/, runs/")
