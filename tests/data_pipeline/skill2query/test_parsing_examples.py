"""Examples of small documents, and the edges that tie examples, capabilities and parameters together."""

from __future__ import annotations

import pytest

from data_pipeline import Skill
from data_pipeline.skill2query import SkillGraph, parse_skill
from data_pipeline.skill2query.graph import EdgeType
from data_pipeline.skill2query.parsing.examples import as_request


def parse(body: str, description: str = "Draws maps.") -> SkillGraph:
    return parse_skill(Skill("atlas/maps", "maps", description, body))


def examples(body: str, kind: str = "request", description: str = "Draws maps.") -> list[str]:
    return [e.text for e in parse(body, description).examples if e.kind == kind]


def edges(graph: SkillGraph, kind: EdgeType) -> set[tuple[str, str, str | None]]:
    """The edges of a kind between the texts or names of their ends."""
    text = {node.node_id: node.text for node in (*graph.capabilities, *graph.examples)}
    text |= {p.node_id: p.name for p in graph.parameters} | {"skill": "skill"}
    return {(text[e.source], text[e.target], e.value) for e in graph.edges if e.type == kind}


def test_requests_quoted_in_the_description():
    text = (
        'Draws maps. Use when the user says "draw my stores on a map" or \'show me the coast\'. Never for "Atlas GmbH".'
    )
    assert examples("", description=text)[:2] == ["draw my stores on a map", "show me the coast"]


def test_requests_below_a_heading_on_examples():
    body = """
## Example prompts
- "Draw the coast of Norway"
- How many tiles does this map have?
- Keep layers small
> User: merge these two layers

## Rules
- "Draw the coast of Sweden"
"""
    assert examples(body) == [
        "Draw the coast of Norway",
        "How many tiles does this map have?",
        "merge these two layers",
    ]


def test_requests_in_tables_and_dialogues():
    body = """
| When you ask for... | You get... |
|---|---|
| "a map of my stores" | a map |

```
User: color the map by year
Assistant: done
```
"""
    assert examples(body) == ["a map of my stores", "color the map by year"]


@pytest.mark.parametrize("text", ["maps", "x = draw(1)", "report.pdf", "{a: b} c", "", "—— ——", "a " * 61])
def test_what_is_no_request(text: str):
    assert as_request(text) == ""


def test_commands_and_code():
    body = "```bash\n# draw\n$ maptool draw --width 900\ncd maps\n```\n```python\nm = draw()\n```\n"
    assert examples(body, "command") == ["maptool draw --width 900"]
    assert examples(body, "code") == ["m = draw()"]


def test_what_is_wrong_is_no_example():
    body = '## Common mistakes\n- "Draw the coast twice"\n```bash\nmaptool draw --twice\n```\n'
    assert parse(body).examples == ()


SECTIONS = """
## Draw coast lines
```bash
coasttool --width 900 --format svg
```
| Parameter | Type | Description |
|---|---|---|
| `width` | integer | of the picture |
| `format` | string | one of `svg`, `png` |

## Merge layers
- `first` (string): a layer

## Settings
- `tile_count` (integer): how many
"""


def test_the_skill_has_every_node():
    graph = parse(SECTIONS)
    assert {e.target for e in graph.edges if e.source == "skill"} == {"c1", "c2", "c3", "p1", "p2", "p3", "p4", "e1"}


def test_parameters_belong_to_the_capability_of_their_section():
    used = edges(parse(SECTIONS, ""), EdgeType.USES_PARAMETER)
    assert {("draw coast lines", "width", None), ("draw coast lines", "format", None)} <= used
    assert ("merge layers", "first", None) in used


def test_a_parameter_belongs_to_the_capability_that_names_it():
    body = "## Capabilities\n- Draw coast lines\n- Set the tile count of a map\n## Settings\n- `tile_count` (integer): how many\n"
    assert edges(parse(body, ""), EdgeType.USES_PARAMETER) == {("set the tile count of a map", "tile_count", None)}


def test_a_parameter_that_nothing_claims_belongs_to_the_main_capability():
    body = "## Capabilities\n- Draw coast lines\n- Merge layers\n## Settings\n- `seed` (integer): start\n"
    assert edges(parse(body, ""), EdgeType.USES_PARAMETER) == {("draw coast lines", "seed", None)}


def test_an_operation_has_its_own_parameters():
    body = """```yaml
paths:
  /maps:
    get:
      summary: List all maps
      parameters: [{name: limit, in: query, schema: {type: integer}}]
    post:
      summary: Create a map
      parameters: [{name: title, in: query, schema: {type: string}}]
```"""
    used = edges(parse(body, ""), EdgeType.USES_PARAMETER)
    assert used == {("list all maps", "limit", None), ("create a map", "title", None)}


def test_examples_show_the_capability_of_their_section_or_of_their_words():
    graph = parse(SECTIONS, 'Use when the user asks to "merge my two layers".')
    shown = edges(graph, EdgeType.SHOWS_CAPABILITY)
    assert ("coasttool --width 900 --format svg", "draw coast lines", None) in shown
    assert any(example == "merge my two layers" and "merge" in capability for example, capability, _ in shown)


def test_commands_set_parameters():
    assert edges(parse(SECTIONS), EdgeType.SETS_PARAMETER) == {
        ("coasttool --width 900 --format svg", "width", "900"),
        ("coasttool --width 900 --format svg", "format", "svg"),
    }


def test_json_members_assignments_and_words_set_parameters():
    body = """
## Parameters
| Parameter | Type | Description |
|---|---|---|
| `width` | integer | of the picture |
| `format` | string | one of `svg`, `png` |

## Example requests
- "Draw the coast as png"

```json
{"width": 700, "format": "tiff"}
```
```python
draw(width=650)
```
"""
    assert edges(parse(body), EdgeType.SETS_PARAMETER) == {
        ("Draw the coast as png", "format", "png"),
        ('{"width": 700, "format": "tiff"}', "width", "700"),  # tiff is none of the values
        ("draw(width=650)", "width", "650"),
    }
