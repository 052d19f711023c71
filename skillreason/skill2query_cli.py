"""``skillreason skill2query …``: pseudo-queries from the skills' own structure, and how good they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Write pseudo-queries from the structure of skill documents, and use them.", no_args_is_help=True
)


def _example(text: str) -> str:
    return f"[bold]Example:[/bold] {text}"


@app.command(epilog=_example("skillreason skill2query generate corpus.jsonl --out pseudo.jsonl"))
def generate(
    corpus: Annotated[Path, typer.Argument(help="skills (JSONL, plain or gzipped)")],
    out: Annotated[Path, typer.Option(help="pseudo-queries to write (.jsonl or .jsonl.gz)")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="the teacher, such as kind=openai model=NAME", show_default=False
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="skill2query, or a baseline that needs a teacher: zero_shot, few_shot, skillflow")
    ] = "skill2query",
    teacher_config: Annotated[Path | None, typer.Option(help="YAML with the teacher's keys (default: by rule)")] = None,
    cache: Annotated[Path | None, typer.Option(help="folder of its answers (default: .teacher beside OUT)")] = None,
    per_capability: Annotated[int, typer.Option(help="templates of a capability")] = 4,
    max_capabilities: Annotated[int, typer.Option(help="capabilities of a skill; 0: all")] = 0,
    per_skill: Annotated[int, typer.Option(help="templates of a skill, for the baselines")] = 8,
    combinations: Annotated[int, typer.Option(help="pseudo-queries of a template, at most")] = 3,
    seed: Annotated[int, typer.Option(help="seed of frames, fallback values and few-shot examples")] = 0,
) -> None:
    """Write pseudo-queries for every skill of a corpus: by rule, or with templates from a teacher model (3.3, A.1)."""
    from configs.load import load_config
    from data_pipeline import SkillCorpus
    from data_pipeline.rows import file_format
    from data_pipeline.skill2query.generation import GenerationConfig, GenerationCounts
    from data_pipeline.skill2query.generation import generate as run
    from data_pipeline.skill2query.pseudo_query import write_pseudo_queries
    from data_pipeline.teacher import TeacherConfig, TeacherStopped, open_teacher, validate_teacher

    file_format(out)  # a name that cannot be written is refused before anything is asked
    config = GenerationConfig(method, per_capability, max_capabilities, per_skill, combinations, seed)
    asked = load_config(TeacherConfig, teacher_config, overrides or [], check=validate_teacher)
    teacher = open_teacher(asked, cache or out.parent / ".teacher")
    counts = GenerationCounts()
    try:
        write_pseudo_queries(out, run(SkillCorpus.from_jsonl(corpus), config, teacher, progress=True, counts=counts))
    except TeacherStopped as stopped:
        raise ValueError(str(stopped)) from stopped
    print(f"{counts.queries} pseudo-queries in {out}, {counts.valid} of them pass every check")
    print(
        f"{counts.skills} skills: {counts.from_capabilities} by capability, {counts.from_description} by description, "
        f"{counts.none} without any"
    )
    for kind, found in (
        ("queries that fail the check", counts.problems),
        ("questions without an answer", counts.failed),
    ):
        for name, count in sorted(found.items()):
            print(f"  {kind} ({name}): {count}")


@app.command(epilog=_example("skillreason skill2query quality pseudo.jsonl --corpus corpus.jsonl"))
def quality(
    files: Annotated[list[Path], typer.Argument(help="pseudo-queries, of one or several methods")],
    corpus: Annotated[Path, typer.Option(help="the skills that they were written for")],
    out: Annotated[Path | None, typer.Option(help="JSON (default: FILE.quality.json beside the first file)")] = None,
) -> None:
    """Print Exec-Pass, Func-Coverage and Distinct-3 of each method (A.4), and write them as JSON."""
    from tqdm import tqdm

    from data_pipeline import SkillCorpus
    from data_pipeline.skill2query.parsing import parse_skill
    from data_pipeline.skill2query.pseudo_query import read_pseudo_queries
    from data_pipeline.skill2query.quality import quality_report
    from models.folders import write_json

    queries = [query for file in files for query in read_pseudo_queries(file)]
    skills = SkillCorpus.from_jsonl(corpus)
    report = quality_report(queries, [parse_skill(skill) for skill in tqdm(skills, desc="graphs", unit="skill")])
    print(report.table())
    print(f"{report.capabilities} capabilities in {report.with_capabilities} of {report.skills} skills")
    for row in report.methods:
        for name, count in row.problems.items():
            print(f"  {row.method}: {count} queries fail the check {name}")
    target = out or files[0].with_name(f"{files[0].name}.quality.json")
    write_json(target, report.to_dict())
    print(f"written to {target}")
