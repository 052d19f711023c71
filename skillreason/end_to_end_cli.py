"""The commands about task accuracy with retrieved skills: ``skillreason end-to-end run | table``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from skillreason.cluster_cli import example
from skillreason.evaluate_cli import CacheDir

end_to_end_app = typer.Typer(
    help="Do better skills make a downstream model solve more tasks? (Table 5)", no_args_is_help=True
)


@end_to_end_app.command(
    epilog=example(
        "skillreason end-to-end run model=Qwen/Qwen3-4B base_url=http://127.0.0.1:8000/v1 --bench sra-bench "
        '--system "SkillReason-0.6B=sra.json" --out runs/qwen3-4b'
    )
)
def run(
    out: Annotated[Path, typer.Option(help="folder of this model: answers.jsonl, result.json; a stopped run goes on")],
    bench: Annotated[str, typer.Option(help="SRA-Bench: folder, sra-bench or hf:owner/name")] = "sra-bench",
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="the downstream model: model, base_url, temperature, budget_usd …"
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(help="YAML with the downstream model's keys")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(help="[NAME=]result of skillreason evaluate, or [NAME=]model folder, hub id, bm25 (repeatable)"),
    ] = None,
    condition: Annotated[list[str] | None, typer.Option(help="none, gold (repeatable; default: both)")] = None,
    split: Annotated[str | None, typer.Option(help="one suite")] = None,
    limit: Annotated[int, typer.Option(help="at most so many instances of each suite (0: all)")] = 0,
    top_k: Annotated[int, typer.Option(help="skills of each system that are shown")] = 1,
    seed: Annotated[int, typer.Option(help="sent with every request; below 0: none")] = 42,
    skill_chars: Annotated[int, typer.Option(help="characters of a skill that are shown")] = 24_000,
    skill_tokens: Annotated[int, typer.Option(help="the same in tokens; needs --tokenizer")] = 0,
    tokenizer: Annotated[str, typer.Option(help="folder or hub id of the model that counts them")] = "",
    run_code: Annotated[
        bool, typer.Option("--run-code", help="run the programs of code suites, in a sandbox without network and files")
    ] = False,
    code_python: Annotated[
        str | None, typer.Option(help="interpreter with the libraries that they may import (default: this one)")
    ] = None,
    code_workers: Annotated[int, typer.Option(help="programs at the same time")] = 2,
    code_seconds: Annotated[float, typer.Option(help="for each program")] = 120.0,
    code_memory: Annotated[int, typer.Option(help="MiB for each process of a program")] = 4096,
    no_code_isolation: Annotated[
        bool,
        typer.Option(
            "--no-code-isolation", help="run them with limits alone: they can reach the network and your files"
        ),
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG (default: accuracy.png in OUT)")] = None,
    cache_dir: CacheDir = None,
) -> None:
    """Let a model solve SRA-Bench without skills, with the right ones and with retrieved ones; score by the suites' rules."""
    from configs.load import load_config
    from data_pipeline.teacher import TeacherStopped, validate_teacher
    from evaluation.end_to_end import (
        CodeConfig,
        DownstreamConfig,
        EndToEndConfig,
        Limits,
        comparison_table,
        plot_end_to_end,
        run_end_to_end,
        suite_table,
        table5,
    )

    downstream = load_config(
        DownstreamConfig, config, model or [], check=lambda value: validate_teacher(value, "downstream")
    )
    code = None
    if run_code:
        limits = Limits(wall_s=code_seconds, cpu_s=max(1, round(code_seconds)), memory_mb=code_memory)
        code = CodeConfig(code_python, not no_code_isolation, code_workers, limits)
    elif no_code_isolation or code_python:
        raise ValueError("--no-code-isolation and --code-python say how code is run; expected --run-code with them")
    asked = EndToEndConfig(
        bench,
        split,
        system or (),
        tuple(condition) if condition is not None else ("none", "gold"),
        top_k,
        limit,
        None if seed < 0 else seed,
        skill_chars,
        skill_tokens,
        tokenizer,
        code,
    )
    try:
        result = run_end_to_end(asked, downstream, out, cache_dir, progress=True)
    except TeacherStopped as stopped:
        raise ValueError(str(stopped)) from stopped
    for note in result["notes"]:
        logging.getLogger("skillreason").warning(note)
    for table in (table5([result]), suite_table(result), comparison_table(result)):
        print(f"{table}\n")
    print(f"asked {downstream.name}: {result['usage']}")
    print(f"written to {out / 'result.json'}")
    _print_plot(plot_end_to_end([result], plot or out / "accuracy.png"))


@end_to_end_app.command(epilog=example("skillreason end-to-end table runs/qwen3-4b runs/qwen3-32b --plot accuracy.png"))
def table(
    results: Annotated[list[Path], typer.Argument(help="results of several downstream models, or their folders")],
    paper: Annotated[bool, typer.Option(help="the paper's figures beside ours")] = True,
    suites: Annotated[bool, typer.Option("--suites", help="each model's suites and differences, too")] = False,
    plot: Annotated[Path | None, typer.Option(help="PNG of the accuracies")] = None,
) -> None:
    """Put the results of several downstream models into one table, as in the paper's Table 5."""
    from evaluation.end_to_end import comparison_table, plot_end_to_end, read_end_to_end, suite_table, table5

    read = [read_end_to_end(path) for path in results]
    print(table5(read, paper))
    for result in read if suites else ():
        print(f"\n{result['model']}\n\n{suite_table(result)}\n\n{comparison_table(result)}")
    if plot is not None:
        _print_plot(plot_end_to_end(read, plot))


def _print_plot(path: Path | None) -> None:
    print(f"plot: {path}" if path else "no plot: nothing was answered")
