"""``skillreason skg …``: what it prints, draws and writes, and its errors in one line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from data_pipeline import Skill, SkillCorpus
from data_pipeline.rows import read_rows
from data_pipeline.sample_library import load_sample_corpus
from data_pipeline.skill2query import SkillGraph, parse_skill
from data_pipeline.skill2query.drawing import MAX_SHOWN, graph_figure
from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Example, Parameter
from skillreason.cli import app, main

BODY = """
## Draw maps
| Parameter | Type | Required | Default | Description |
|---|---|---|---|---|
| `format` | string | yes | png | one of `png`, `svg` |
| `width` | integer | no | 800 | in pixels, between 100 and 4000 |

## Example prompts
- "Draw a map of my stores as svg"
- "Tell me a joke"

## Merge layers
"""
DOCUMENT = f"---\nname: map-tools\ndescription: Rotates globes.\nlicense: MIT\n---\n{BODY}"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["skg", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def skill_md(tmp_path: Path) -> Path:
    path = tmp_path / "map-tools" / "SKILL.md"
    path.parent.mkdir()
    path.write_text(DOCUMENT)
    return path


def test_show_prints_capabilities_with_their_parameters_and_examples(skill_md: Path):
    result = run("show", skill_md)
    assert result.exit_code == 0, result.output
    lines = [line.strip(" │├└─") for line in result.output.splitlines()]
    drawn = lines.index("draw maps  [heading]")
    assert lines[drawn + 1 : drawn + 4] == [
        "parameter format",
        "parameter width",
        "request: Draw a map of my stores as svg",
    ]
    assert lines[lines.index("other examples") + 1] == "request: Tell me a joke"
    (row,) = [line for line in result.output.splitlines() if line.startswith("│ width")]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "width",
        "integer",
        "",
        "800",
        "100 to 4000",
        "pixels",
        "table",
    ]


def test_show_json_is_the_graph(skill_md: Path):
    result = run("show", skill_md, "--json")
    graph = SkillGraph.from_dict(json.loads(result.output))
    assert graph.name == "map-tools"
    assert graph.metadata["license"] == "MIT"
    assert [c.text for c in graph.capabilities] == ["rotate globes", "draw maps", "merge layers"]


def test_show_takes_a_skill_of_a_corpus(tmp_path: Path):
    SkillCorpus([Skill("a/one", "one", "Draws maps.", "x"), Skill("a/two", "two", "Rotates globes.", "x")]).to_jsonl(
        tmp_path / "c.jsonl.gz"
    )
    result = run("show", tmp_path / "c.jsonl.gz", "--skill-id", "a/two")
    assert result.exit_code == 0
    assert "rotate globes" in result.output
    assert "draw maps" not in result.output


def test_show_draws_a_picture(skill_md: Path, tmp_path: Path):
    result = run("show", skill_md, "--plot", tmp_path / "graph.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rows", [6, 3 * MAX_SHOWN])
def test_no_two_labels_of_a_picture_overlap(rows: int):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    texts = [f"draw the wide and winding rivers of region {i} without any of their lakes" for i in range(rows)]
    graph = SkillGraph(
        "a/b",
        "a name $of$ the skill",
        "",
        tuple(Capability(f"c{i}", text, "list") for i, text in enumerate(texts)),
        tuple(Parameter(f"p{i}", f"a_parameter_with_a_name_that_is_long_{i}") for i in range(rows)),
        tuple(Example(f"e{i}", f"please {text}", "request") for i, text in enumerate(texts)),
        tuple(Edge(f"c{i}", f"p{rows - 1 - i}", EdgeType.USES_PARAMETER) for i in range(rows)),
    )
    figure = graph_figure(graph)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    shown = min(rows, MAX_SHOWN)
    assert len(boxes) == 1 + 3 * shown + (
        3 if rows > shown else 0
    )  # the skill, the nodes, and "and 48 more" below each column
    assert not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    inside = figure.bbox
    assert all(inside.x0 <= b.x0 and b.x1 <= inside.x1 and inside.y0 <= b.y0 and b.y1 <= inside.y1 for b in boxes)


@pytest.mark.parametrize("processes", [1, 2])
def test_build_writes_all_graphs_in_order_and_counts_them(tmp_path: Path, processes: int):
    skills = list(load_sample_corpus())[:20]
    SkillCorpus(skills).to_jsonl(tmp_path / "c.jsonl")
    result = run("build", tmp_path / "c.jsonl", "--out", tmp_path / "g.jsonl", "--processes", processes)
    assert result.exit_code == 0, result.output
    graphs = [SkillGraph.from_dict(row) for _, row in read_rows(tmp_path / "g.jsonl")]
    assert graphs == [parse_skill(skill) for skill in skills]
    assert "20 graphs in" in result.output
    total = sum(len(graph.capabilities) for graph in graphs)
    assert f"capabilities  {total:>7} in " in result.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["show", "c.jsonl"], "--skill-id"),
        (["show", "c.jsonl", "--skill-id", "a/none"], "a/none"),
        (["show", "SKILL.md", "--plot", "graph.txt"], "graph.txt"),
        (["show", "bad.md"], "closing"),
        (["show", "absent.md"], "absent.md"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    SkillCorpus([Skill("a/one", "one", "Draws maps.", "x")]).to_jsonl("c.jsonl")
    Path("SKILL.md").write_text(DOCUMENT)
    Path("bad.md").write_text("---\nname: x\n")
    with pytest.raises(SystemExit) as stop:
        main(["skg", *arguments])
    printed = capsys.readouterr()
    assert stop.value.code == 1
    assert message in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_show_says_so_where_a_document_gives_nothing(tmp_path: Path):
    (tmp_path / "SKILL.md").write_text("---\nname: bare\n---\n")
    assert "nothing was found" in run("show", tmp_path / "SKILL.md").output
