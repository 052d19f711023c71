"""``skillreason skg``: the knowledge graphs of skill documents, shown, drawn and written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from data_pipeline.corpus import Skill
    from data_pipeline.skill2query import SkillGraph

skg_app = typer.Typer(
    help="Skill knowledge graphs: capabilities, parameters and examples of a skill document.", no_args_is_help=True
)
_CHUNK = 16


def _example(text: str) -> str:
    return f"[bold]Example:[/bold] {text}"


@skg_app.command(epilog=_example("skillreason skg show my-skill/SKILL.md --plot graph.png"))
def show(
    file: Annotated[Path, typer.Argument(help="a SKILL.md, or a corpus (.jsonl, .jsonl.gz, .parquet) with --skill-id")],
    skill_id: Annotated[str | None, typer.Option(help="which skill of a corpus")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the graph as JSON")] = False,
    plot: Annotated[Path | None, typer.Option(help="also draw it into this image file (.png, .svg or .pdf)")] = None,
) -> None:
    """Print the graph of one skill: what it does, with which parameters, and the examples that show it."""
    from data_pipeline.skill2query import parse_skill

    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--plot is {plot}; expected a name that ends in .png, .svg or .pdf")
    graph = parse_skill(_read_skill(file, skill_id))
    if as_json:
        import json

        print(json.dumps(graph.to_dict(), ensure_ascii=False, indent=2))
    else:
        _print(graph)
    if plot is not None:
        from data_pipeline.skill2query.drawing import plot_graph

        plot_graph(graph, plot)
        if not as_json:
            print(f"drawn in {plot}")


@skg_app.command(epilog=_example("skillreason skg build corpus.jsonl --out graphs.jsonl"))
def build(
    corpus: Annotated[Path, typer.Argument(help="skills (JSONL, plain or gzipped, or Parquet)")],
    out: Annotated[Path, typer.Option(help="graphs to write, one JSON object a line (.jsonl or .jsonl.gz)")],
    processes: Annotated[int, typer.Option(min=1, help="parse in so many processes")] = 1,
) -> None:
    """Parse every skill of a corpus and write the graphs, in the corpus' order; prints what they hold."""
    import gc
    import multiprocessing

    from tqdm import tqdm

    from data_pipeline.corpus import SkillCorpus
    from data_pipeline.rows import write_rows
    from data_pipeline.skill2query import graph_statistics, parse_skill

    skills = SkillCorpus.from_jsonl(corpus)
    gc.freeze()  # or the collector looks through the whole corpus again and again
    if processes == 1:
        graphs = [parse_skill(skill) for skill in tqdm(skills, desc="graphs", unit="skill")]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            parsed = pool.imap(parse_skill, skills, chunksize=_CHUNK)
            graphs = list(tqdm(parsed, total=len(skills), desc="graphs", unit="skill"))
    write_rows(out, (graph.to_dict() for graph in graphs))
    counts = graph_statistics(graphs)
    print(f"{counts['documents']} graphs in {out}")
    for name in ("capabilities", "parameters", "examples"):
        row = counts[name]
        print(
            f"  {name:<13} {row['total']:>7} in {row['documents']} documents (median {row['median']:g}, at most {row['most']})"
        )
        print("                " + ", ".join(f"{source} {count}" for source, count in row["sources"].items()))
    print("  edges         " + ", ".join(f"{kind} {count}" for kind, count in counts["edges"].items()))


def _read_skill(file: Path, skill_id: str | None) -> Skill:
    from data_pipeline.corpus import Skill, SkillCorpus
    from data_pipeline.skill_md import parse_skill_md

    if file.suffix.lower() != ".md":
        if skill_id is None:
            raise ValueError(f"{file} is a corpus; say which of its skills to show: --skill-id ID")
        skills = SkillCorpus.from_jsonl(file)
        if skill_id not in skills:
            raise ValueError(f"{file} has no skill {skill_id!r}; expected one of its {len(skills)} ids")
        return skills.get(skill_id)
    raw = parse_skill_md(file.read_bytes(), file.parent.name or file.stem, str(file))
    if raw.problem is not None:
        raise ValueError(f"{file}: {raw.problem[1]}")
    name = raw.name or file.resolve().parent.name
    return Skill(raw.skill_id or name, name, raw.description or "", raw.body or "", dict(raw.metadata))


def _print(graph: SkillGraph) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    console = Console()
    tree = Tree(Text(graph.name, style="bold"))
    placed: set[str] = set()
    for capability in graph.capabilities:
        branch = tree.add(Text.assemble((capability.text, "blue"), (f"  [{capability.source}]", "dim")))
        for parameter in graph.parameters_of(capability):
            branch.add(Text(f"parameter {parameter.name}", style="yellow"))
        for example in graph.examples_of(capability):
            placed.add(example.node_id)
            branch.add(Text(f"{example.kind}: {_line(example.text)}", style="green"))
    others = [example for example in graph.examples if example.node_id not in placed]
    if others:
        branch = tree.add("other examples")
        for example in others:
            branch.add(Text(f"{example.kind}: {_line(example.text)}", style="green"))
    if not (graph.capabilities or graph.parameters or graph.examples):
        tree.add("nothing was found: no capability, parameter or example")
    console.print(tree)
    if not graph.parameters:
        return
    table = Table("parameter", "type", "required", "default", "values", "unit", "from", title="Parameters")
    for p in graph.parameters:
        low, high = (("" if bound is None else f"{bound:g}") for bound in (p.minimum, p.maximum))
        bounds = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else ""
        values = ", ".join(p.values) or bounds or ", ".join(f"e.g. {v}" for v in p.examples[:2])
        cells = (p.name, str(p.type), "yes" if p.required else "", p.default or "", values, p.unit, p.source)
        table.add_row(*map(Text, cells))
    console.print(table)


def _line(text: str, width: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
