"""``skillreason report tables``: the paper's tables from results of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skillreason.cluster_cli import example

tables_app = typer.Typer()


@tables_app.command(
    epilog=example("skillreason report tables --runs results --name runs/mine/export=SkillReason-0.6B --out tables")
)
def tables(
    runs: Annotated[
        list[Path], typer.Option(help="result file, run folder, or a folder with any of them (repeatable)")
    ],
    out: Annotated[Path, typer.Option(help="folder for tables.md, each table as .md, .tex and .csv, and plots/")],
    name: Annotated[
        list[str] | None,
        typer.Option(help="MODEL=LABEL (repeatable); a label of the paper's tables puts its figures beside ours"),
    ] = None,
    paper: Annotated[
        str, typer.Option(help="rows of the paper: matching (same configuration), all, or none")
    ] = "matching",
) -> None:
    """Tables 2 to 5 and 7 to 11 as Markdown, LaTeX and CSV from whatever results are found, with plots."""
    from evaluation.tables import report_tables
    from trainers.tracking import read_metrics

    written = report_tables(runs, out, names=name or [], paper=paper, read_run=read_metrics, progress=True)
    print(written[0].read_text(encoding="utf-8"))
    print(f"{len(written)} files in {out}")
