"""``skillreason data``: building training records, a benchmark and reranker groups from a skill library, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

data_app = typer.Typer(
    help="Build training records and benchmarks from a library, in stages that resume.", no_args_is_help=True
)

Config = Annotated[
    str | None, typer.Option("--config", "-c", help="YAML file, or the name of one in configs/ (such as data_library)")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="configuration overrides", show_default=False)
]


def _example(text: str) -> str:
    return f"[bold]Example:[/bold] {text}"


def _pipeline(config: str | None, overrides: list[str] | None) -> Any:
    from data_pipeline.pipeline import ALL_STAGES, Pipeline
    from data_pipeline.pipeline.config import load_pipeline_config

    loaded = load_pipeline_config(config, overrides or [])
    return Pipeline(ALL_STAGES, loaded, loaded.out)


@data_app.command(epilog=_example("skillreason data build -c data_library out=data/mine sources=[skills]"))
def build(
    overrides: Overrides = None,
    config: Config = None,
    until: Annotated[
        list[str] | None, typer.Option(help="stop after this stage (repeatable; default: the training records)")
    ] = None,
    force: Annotated[list[str] | None, typer.Option(help="run this stage even if it is up to date")] = None,
) -> None:
    """Run every stage that is missing or whose inputs have changed."""
    import contextlib

    from data_pipeline.pipeline import DEFAULT_TARGETS

    pipeline = _pipeline(config, overrides)
    with contextlib.ExitStack() as stack:
        if pipeline.config.encoding.workers > 1:
            from cluster.placement import ray_session

            stack.enter_context(ray_session())
        ran = pipeline.run(until or DEFAULT_TARGETS, force or [], progress=True)
    _print_status(pipeline, only=set(ran) or None)
    print(f"{len(ran)} stages ran; artifacts are in {pipeline.out}")


@data_app.command(epilog=_example("skillreason data status -c data_library out=data/mine sources=[skills]"))
def status(overrides: Overrides = None, config: Config = None) -> None:
    """Which stages are done, which are stale and why, what each kept and rejected."""
    _print_status(_pipeline(config, overrides))


@data_app.command(epilog=_example("skillreason data report data/mine"))
def report(out: Annotated[Path, typer.Argument(help="folder of a pipeline (its out)")]) -> None:
    """Write a readable page with plots: lengths, categories, negatives by source, rejections by reason."""
    from evaluation.data_report import write_report

    print(write_report(out))


@data_app.command(epilog=_example("skillreason data audit data/mine/records --corpus data/mine/corpus/corpus.jsonl.gz"))
def audit(
    records: Annotated[Path, typer.Argument(help="folder with stage1.jsonl, stage2.jsonl and exclusions.json")],
    corpus: Annotated[Path, typer.Option(help="skills that the records were made from")],
    out: Annotated[Path | None, typer.Option(help="JSON with counts and examples")] = None,
) -> None:
    """Check finished records independently of what made them (D.1); exit status 1 where something is found."""
    from dataclasses import asdict

    from data_pipeline import ExclusionGraph, SkillCorpus
    from data_pipeline.audit import audit_records
    from data_pipeline.records import read_both_stages
    from models.folders import write_json

    found = audit_records(
        *read_both_stages(records),
        SkillCorpus.from_jsonl(corpus),
        ExclusionGraph.read(records / "exclusions.json"),
    )
    if out is not None:
        write_json(out, asdict(found))
    print(f"{found.records} records, {found.negative_positions} negative positions")
    for kind, count in found.found.items():
        print(f"  {kind:<20} {count}")
    for kind, examples in found.examples.items():
        print(f"  first {kind}: {examples[0]}")
    if not found.clean:
        raise typer.Exit(1)


@data_app.command(
    epilog=_example("skillreason data isolation --train data/mine/records --bench mine=bench.jsonl --out isolation")
)
def isolation(
    train: Annotated[Path, typer.Option(help="folder with stage1.jsonl and stage2.jsonl")],
    bench: Annotated[list[str], typer.Option(help="NAME=FILE of test requests (repeatable)")],
    out: Annotated[Path, typer.Option(help="folder for isolation.json, isolation.md and review.jsonl")],
    near: Annotated[float, typer.Option(help="similarity that counts as a near-duplicate")] = 0.85,
    review: Annotated[float, typer.Option(help="similarity from which pairs are listed for review")] = 0.70,
) -> None:
    """Whether test requests are near any training request (D.2, Table 14); exit status 1 for a match or near-duplicate."""
    from data_pipeline.isolation import isolate_records, isolation_table

    benchmarks = {}
    for item in bench:
        name, separator, file = item.partition("=")
        if not (name and separator and file):
            raise ValueError(f"--bench {item!r}; expected NAME=FILE")
        benchmarks[name] = file
    reports = isolate_records(train, benchmarks, out, near=near, review=review, progress=True)
    print(isolation_table(reports, near))
    if any(r.exact or r.near for r in reports):
        raise typer.Exit(1)


@data_app.command(
    epilog=_example("skillreason data review data/mine/judge/queue.jsonl --decisions decisions.jsonl --reviewer ada")
)
def review(
    queue: Annotated[Path, typer.Argument(help="judge/queue.jsonl, or quality_audit/disputed.jsonl")],
    decisions: Annotated[
        Path, typer.Option(help="JSONL that decisions are appended to; an existing one is gone on with")
    ],
    reviewer: Annotated[str, typer.Option(help="who decides, as the file names them")] = "",
) -> None:
    """Decide what two judges disagreed on, one item after the other; build with bench.decisions_file=DECISIONS then."""
    from data_pipeline.pipeline.review import review_queue

    summary = review_queue(queue, decisions, reviewer)
    print(f"kept {summary.made['keep']}, rejected {summary.made['reject']}; {summary.undecided} without a decision")


@data_app.command(
    epilog=_example(
        "skillreason data alternatives --bench bench.jsonl --corpus corpus.jsonl --results bm25.json --results stage2.json "
        "--out alternatives.jsonl kind=openai model=NAME base_url=http://127.0.0.1:8000/v1"
    )
)
def alternatives(
    bench: Annotated[Path, typer.Option(help="test requests")],
    corpus: Annotated[Path, typer.Option(help="skills that were searched")],
    results: Annotated[list[Path], typer.Option(help="what skillreason evaluate wrote for a retriever (repeatable)")],
    out: Annotated[Path, typer.Option(help="JSONL of judged candidates")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="the teacher, as below teachers.<role>")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="YAML with the teacher's keys")] = None,
    cache: Annotated[Path | None, typer.Option(help="folder of its answers (default: .teacher beside OUT)")] = None,
    depth: Annotated[int, typer.Option(help="how much of every list is pooled")] = 5,
) -> None:
    """Pool the best candidates of several retrievers and judge which could stand in for the target (A.2)."""
    from configs.load import load_config
    from data_pipeline.pipeline.alternatives import audit_alternatives
    from data_pipeline.teacher import TeacherConfig, validate_teacher

    config = load_config(TeacherConfig, teacher, overrides or [], check=validate_teacher)
    found = audit_alternatives(bench, corpus, results, out, config, cache, depth=depth, progress=True)
    print(f"{found.predictions} non-target predictions, {found.pairs} different request-candidate pairs")
    for name, count in {**found.decisions, **found.failed}.items():
        print(f"  {name:<20} {count}")
    print(f"asked {found.teacher['teacher']}: {found.teacher['usage']}")


def _print_status(pipeline: Any, only: set[str] | None = None) -> None:
    for stage in pipeline.status():
        if only is not None and stage.name not in only:
            continue
        manifest = stage.manifest
        counts = ", ".join(f"{key} {value}" for key, value in manifest.get("counts", {}).items())
        rejected = ", ".join(f"{key} {value}" for key, value in manifest.get("rejected", {}).items())
        line = f"{stage.name:<18} {stage.state:<8}"
        line += f" {manifest['seconds']:>8.1f} s  {counts}" if manifest else ""
        print(line + (f"; rejected: {rejected}" if rejected else "") + (f"  ({stage.why})" if stage.why else ""))
