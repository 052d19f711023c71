"""Parameters of small documents, from every source, against what a reader takes from them."""

from __future__ import annotations

from typing import Any

import pytest

from data_pipeline import Skill
from data_pipeline.skill2query import parse_skill
from data_pipeline.skill2query.graph import Parameter, ParameterType
from data_pipeline.skill2query.parsing.drafts import Draft


def parameters(body: str, name: str = "maps", **metadata: str) -> dict[str, Parameter]:
    graph = parse_skill(Skill("atlas/maps", name, "Draws maps.", body, metadata))
    return {p.name: p for p in graph.parameters}


def facts(parameter: Parameter) -> dict[str, Any]:
    """The fields that are not at their default, but for id and description."""
    empty = Parameter("", "")
    keys = ("type", "required", "default", "values", "minimum", "maximum", "examples", "unit", "source")
    return {key: getattr(parameter, key) for key in keys if getattr(parameter, key) != getattr(empty, key)}


def code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


def test_a_table_of_parameters():
    found = parameters("""
| Parameter | Type | Required | Default | Description |
|-----------|------|----------|---------|-------------|
| `format` | string | Yes | png | one of `png`, `svg`, or `pdf` |
| `width` | int | No | 800 | Width in pixels, between 100 and 4000 |
| `verbose` | bool | ✗ | false | print more |
| `source` | path | ✓ | - | where to read from |
""")
    assert facts(found["format"]) == {
        "type": ParameterType.ENUM,
        "required": True,
        "default": "png",
        "values": ("png", "svg", "pdf"),
        "source": "table",
    }
    assert facts(found["width"]) == {
        "type": ParameterType.INTEGER,
        "default": "800",
        "minimum": 100,
        "maximum": 4000,
        "unit": "pixels",
        "source": "table",
    }
    assert facts(found["verbose"]) == {"type": ParameterType.BOOLEAN, "default": "false", "source": "table"}
    assert facts(found["source"]) == {"type": ParameterType.PATH, "required": True, "source": "table"}


def test_other_words_for_the_columns():
    found = parameters("""
| Flag | Meaning | Allowed values |
|---|---|---|
| `--mode`, `-m` | how to draw | fast, exact |
| `--seed N` | start of the random numbers | |
""")
    assert facts(found["mode"]) == {"type": ParameterType.ENUM, "values": ("fast", "exact"), "source": "cli"}
    assert facts(found["seed"]) == {"type": ParameterType.INTEGER, "source": "cli"}


@pytest.mark.parametrize(
    "table",
    [
        "| Name | Role |\n|---|---|\n| Ada | painter |\n",
        "| Issue | Solution |\n|---|---|\n| `width` | wider |\n",
        "| Parameter | Color |\n|---|---|\n| `width` | red |\n",
    ],
)
def test_a_table_that_declares_nothing_is_left_alone(table: str):
    assert parameters(table) == {}


def test_lists_of_parameters():
    found = parameters("""
## Inputs
- `region` (string, required): the area to draw, e.g. `alps` or `andes`
- `dpi`: dots per inch (default: 300)
- **scale** (number, optional): from 0.5 to 4
- a remark that declares nothing

## Notes
- `alone`: no parameter in a section on something else
- `title` (string): declared anywhere
""")
    assert set(found) == {"region", "dpi", "scale", "title"}
    assert facts(found["region"]) == {
        "required": True,
        "examples": ("alps", "andes"),
        "source": "list",
    }
    assert found["dpi"].default == "300"
    assert found["dpi"].type == ParameterType.INTEGER
    assert (found["scale"].minimum, found["scale"].maximum) == (0.5, 4)


def test_a_command_line():
    found = parameters(
        code(
            "bash",
            "pip install --upgrade maptool\n"
            "maptool draw <region> --format {png,svg} --width 800 [--title TEXT] --dry-run  # draws",
        )
    )
    assert set(found) == {"format", "width", "title", "dry-run", "region"}
    assert facts(found["format"]) == {"type": ParameterType.ENUM, "values": ("png", "svg"), "source": "cli"}
    assert facts(found["width"]) == {"type": ParameterType.INTEGER, "examples": ("800",), "source": "cli"}
    assert facts(found["title"]) == {"source": "cli"}
    assert facts(found["dry-run"]) == {"type": ParameterType.BOOLEAN, "source": "cli"}
    assert facts(found["region"]) == {"required": True, "source": "cli"}


def test_a_flag_may_have_a_name_that_no_other_parameter_has():
    body = code("bash", "maptool draw --yes --all") + "| Option | Description |\n|---|---|\n| None | nothing |\n"
    assert set(parameters(body)) == {"yes", "all"}


def test_continued_lines_and_pipes_are_one_command_and_several():
    found = parameters(code("bash", "maptool draw \\\n  --width 800 \\\n  --json | jq --raw-output .a"))
    assert found["width"].examples == ("800",)
    assert found["json"].type == ParameterType.BOOLEAN


def test_everyday_commands_count_only_for_a_skill_about_them():
    body = code("bash", "git commit --amend")
    assert parameters(body) == {}
    assert set(parameters(body, name="git helper")) == {"amend"}


def test_help_text():
    found = parameters(
        code(
            "",
            """usage: maptool [options]
  -w, --width PIXELS   width of the map (default: 800)
  --mode {fast,exact}  how to draw
  --quiet              say nothing""",
        )
    )
    assert (found["width"].default, found["width"].type) == ("800", ParameterType.INTEGER)
    assert found["mode"].values == ("fast", "exact")
    assert found["quiet"].type == ParameterType.BOOLEAN


def test_argparse():
    found = parameters(
        code(
            "python",
            """
parser.add_argument("region", help="area to draw")
parser.add_argument("--format", choices=["png", "svg"], default="png", help="kind of file")
parser.add_argument("-w", "--width", type=int, required=True)
parser.add_argument("--fast", action="store_true")
""",
        )
    )
    assert facts(found["region"]) == {"required": True, "source": "cli"}
    assert facts(found["format"]) == {
        "type": ParameterType.ENUM,
        "default": "png",
        "values": ("png", "svg"),
        "source": "cli",
    }
    assert facts(found["width"]) == {"type": ParameterType.INTEGER, "required": True, "source": "cli"}
    assert facts(found["fast"]) == {"type": ParameterType.BOOLEAN, "source": "cli"}


def test_python_signatures():
    found = parameters(
        code(
            "python",
            """
def draw(region: str, width: int = 800, *, mode: Literal["fast", "exact"] = "fast", engine: Engine = None) -> Map:
    ...

def _private(secret: str): ...
""",
        )
    )
    assert set(found) == {"region", "width", "mode"}
    assert facts(found["region"]) == {"required": True, "source": "signature"}
    assert facts(found["width"]) == {"type": ParameterType.INTEGER, "default": "800", "source": "signature"}
    assert facts(found["mode"]) == {
        "type": ParameterType.ENUM,
        "default": "fast",
        "values": ("fast", "exact"),
        "source": "signature",
    }


def test_a_function_of_sample_code_gives_what_can_be_set_and_one_that_the_text_names_everything():
    body = code("python", "def draw(region: str, width: int = 800):\n    return engine(region, width)")
    assert set(parameters(body)) == {"width"}
    assert set(parameters("Call `draw(region)` for a map.\n\n" + body)) == {"region", "width"}


def test_a_signature_that_is_not_quite_python():
    found = parameters(code("python", "def draw(region: str, ..., width=800)"))
    assert facts(found["region"]) == {"required": True, "source": "signature"}
    assert facts(found["width"]) == {"type": ParameterType.INTEGER, "default": "800", "source": "signature"}


def test_typescript():
    found = parameters(
        code(
            "typescript",
            """interface DrawOptions {
  region: string;
  width?: number; // in pixels, default: 800
  mode?: "fast" | "exact";
}
interface Planet { mass: number }
export function draw(title: string, scale: number = 2) {}""",
        )
    )
    assert set(found) == {"region", "width", "mode", "scale"}  # a title without default belongs to some sample code
    assert facts(found["region"]) == {"required": True, "source": "signature"}
    assert (found["width"].default, found["width"].unit, found["width"].required) == ("800", "pixels", False)
    assert found["mode"].values == ("fast", "exact")
    assert (found["scale"].default, found["scale"].required) == ("2", False)


SCHEMA = """{
  "name": "draw_map", "description": "Draws one map.",
  "input_schema": {
    "type": "object",
    "properties": {
      "format": {"type": "string", "enum": ["png", "svg"], "default": "png"},
      "width": {"type": "integer", "minimum": 100, "exclusiveMaximum": 4001},
      "day": {"type": "string", "format": "date", "examples": ["2030-01-02"]},
      "home": {"type": "string", "format": "uri"},
      "layers": {"type": ["array", "null"], "description": "what to draw"}
    },
    "required": ["format", "day"]
  }
}"""


def test_json_schema():
    found = parameters(code("json", SCHEMA))
    assert facts(found["format"]) == {
        "type": ParameterType.ENUM,
        "required": True,
        "default": "png",
        "values": ("png", "svg"),
        "source": "json_schema",
    }
    # Below 4001 is at most 4000 for an integer.
    assert facts(found["width"]) == {
        "type": ParameterType.INTEGER,
        "minimum": 100,
        "maximum": 4000,
        "source": "json_schema",
    }
    assert facts(found["day"]) == {
        "type": ParameterType.DATE,
        "required": True,
        "examples": ("2030-01-02",),
        "source": "json_schema",
    }
    assert found["home"].type == ParameterType.URL
    assert (found["layers"].type, found["layers"].description) == (ParameterType.ARRAY, "what to draw")


def test_openapi_parameters_bodies_and_references():
    found = parameters(
        code(
            "yaml",
            """
paths:
  /maps/{map_id}:
    put:
      summary: Update a map
      parameters:
        - name: map_id
          in: path
          required: true
          schema: {type: integer}
        - $ref: "#/components/parameters/Limit"
      requestBody:
        content:
          application/json:
            schema:
              $ref: "#/components/schemas/Map"
components:
  parameters:
    Limit: {name: limit, in: query, schema: {type: integer, default: 20, maximum: 100}}
  schemas:
    Map:
      type: object
      required: [title]
      properties:
        title: {type: string}
        zoom: {type: number}
""",
        )
    )
    assert facts(found["map_id"]) == {"type": ParameterType.INTEGER, "required": True, "source": "openapi"}
    assert facts(found["limit"]) == {
        "type": ParameterType.INTEGER,
        "default": "20",
        "maximum": 100,
        "source": "openapi",
    }
    assert (found["title"].required, found["zoom"].required) == (True, False)


def test_workflow_inputs():
    found = parameters(
        code("yaml", "inputs:\n  layer:\n    description: what to draw\n    required: true\n    default: roads\n")
    )
    assert facts(found["layer"]) == {"required": True, "default": "roads", "source": "json_schema"}


def test_the_argument_hint_of_the_frontmatter():
    found = parameters("", **{"argument-hint": "<region> [--days N]"})
    assert (found["region"].required, found["days"].required) == (True, False)


def test_mentions_of_one_parameter_become_one():
    body = "| Option | Description |\n|---|---|\n| `max_pages` | how many (default: 3) |\n\n" + code(
        "bash", "maptool draw --max-pages 7"
    )
    found = parameters(body)
    assert facts(found["max_pages"]) == {
        "type": ParameterType.INTEGER,
        "default": "3",
        "examples": ("7",),
        "source": "table",
    }


@pytest.mark.parametrize(
    "text, expected",
    [
        ("timeout in seconds", {"unit": "seconds"}),
        ("quality, 0-100", {"minimum": 0, "maximum": 100}),
        ("between 1 and 10", {"minimum": 1, "maximum": 10}),
        ("at least 2, at most 8", {"minimum": 2, "maximum": 8}),
        ("up to 50 MB", {"maximum": 50, "unit": "mb"}),
        ("the file of 2024-01-02", {}),
        ("default: 5", {"default": "5"}),
        ('defaults to "fast"', {"default": "fast"}),
        ("the default behavior", {}),
        ("one of a, b, c", {"values": ["a", "b", "c"]}),
        ("`a` | `b`", {"values": ["a", "b"]}),
        ("either north or south", {"values": ["north", "south"]}),
        ("(required)", {"required": True}),
        ("not required", {"required": False}),
        ("a name such as `alps`", {"examples": ["alps"]}),
    ],
)
def test_facts_in_prose(text: str, expected: dict[str, Any]):
    draft = Draft("x", "list")
    draft.read_prose(text)
    empty = Draft("x", "list")
    keys = ("default", "values", "minimum", "maximum", "unit", "required", "examples")
    assert {key: getattr(draft, key) for key in keys if getattr(draft, key) != getattr(empty, key)} == expected


def test_a_default_that_is_none_of_the_values_joins_them_and_bounds_need_a_number():
    draft = Draft("mode", "list", values=["a", "b"], default="c", minimum=1)
    node = draft.finish("p1")
    assert (node.values, node.default, node.minimum) == (("a", "b", "c"), "c", None)


def test_what_follows_a_warning_heading_declares_nothing():
    assert parameters("## Common mistakes\n| Parameter | Type |\n|---|---|\n| `width` | int |\n") == {}
