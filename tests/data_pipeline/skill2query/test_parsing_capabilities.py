"""Capabilities of small documents, against what a reader takes from them."""

from __future__ import annotations

import pytest

from data_pipeline import Skill
from data_pipeline.skill2query import parse_skill
from data_pipeline.skill2query.parsing.capabilities import MAX_CAPABILITIES
from data_pipeline.skill2query.parsing.verbs import capability_phrases, inner_phrases, verb_form


def capabilities(description: str, body: str = "") -> list[str]:
    graph = parse_skill(Skill("atlas/maps", "maps", description, body))
    return [c.text for c in graph.capabilities]


@pytest.mark.parametrize(
    "word, base, form",
    [
        ("merge", "merge", "base"),
        ("merges", "merge", "s"),
        ("merging", "merge", "ing"),
        ("planning", "plan", "ing"),
        ("applies", "apply", "s"),
        ("classifies", "classify", "s"),
        ("re-run", "re-run", "base"),
        ("string", "", ""),
        ("maps", "map", "s"),
        ("bing", "", ""),
    ],
)
def test_verbs_are_brought_to_their_base_form(word: str, base: str, form: str):
    assert verb_form(word) == (base, form)


@pytest.mark.parametrize(
    "text, phrases",
    [
        ("Create and edit maps with layers", ["create and edit maps with layers"]),
        ("Reviews plans and writes reports", ["review plans", "write reports"]),
        ("Creates, edits, and deletes map files", ["create, edit, and delete map files"]),
        ("Use when drawing maps, merging layers, or exporting tiles", ["draw maps", "merge layers", "export tiles"]),
        ("building tables with paging, sorting, or filtering", ["build tables with paging, sorting, or filtering"]),
        ("This skill should be used when the user asks to merge layers", ["merge layers"]),
        ("Step 2: Export the tiles", ["export the tiles"]),
        ("3. Merging Layers", ["merge Layers"]),
        ("Draw maps (see below), which takes a while", ["draw maps"]),
        ("Build maps that people like when they travel", ["build maps that people like"]),
        ("Cartography for everyone", []),
        ("Draw", []),
        ("Draw it", []),
        ("Draw carefully", []),
        ("Finish and share", []),
        ("Trace, distant coasts, coast lines", []),
        ("Create and edit maps", ["create and edit maps"]),
        ("run_job(path) and wait", []),
        ("Merge C:\\layers\\all", []),
    ],
)
def test_phrases_begin_with_a_verb_and_hold_no_code(text: str, phrases: list[str]):
    assert capability_phrases(text) == phrases


@pytest.mark.parametrize(
    "title",
    [
        "Query optimization",
        "Testing strategies",
        "Design patterns",
        "Test Coverage",
        "Model Selection",
        "Pricing Models",
    ],
)
def test_a_heading_that_names_a_topic_is_no_capability(title: str):
    assert capability_phrases(title, strict=True) == []


def test_a_noun_phrase_may_say_what_it_is_for():
    assert inner_phrases("Toolkit for testing web maps") == ["test web maps"]
    assert inner_phrases("A guide to the city") == []


def test_the_description_gives_what_it_does_and_when_it_is_used():
    text = (
        'Draws maps from tables. Use when the user asks to "merge map layers" or "count map tiles", or mentions cartography. '
        "Do not use to translate texts."
    )
    assert capabilities(text) == ["draw maps from tables", "merge map layers", "count map tiles"]


def test_numbered_points_of_a_description_are_read_one_by_one():
    assert capabilities(
        "Map tools. Use when: (1) drawing coast lines, (2) merging layers, or (3) printing posters"
    ) == [
        "draw coast lines",
        "merge layers",
        "print posters",
    ]


def test_lists_count_below_a_heading_on_capabilities_alone():
    body = """
## Core Capabilities
- **Draw maps**: from any table
- Merging of layers
- Merges layers from *several* [sources](https://example.org)
- Never delete layers

## Best practices
- Keep layers small

## When not to use
- Translate texts
"""
    assert capabilities("", body) == ["draw maps", "merge layers from several sources"]
    graph = parse_skill(Skill("a/b", "b", "", body))
    assert graph.capabilities[0].detail == "from any table"
    assert {c.source for c in graph.capabilities} == {"list"}


def test_headings_that_tell_to_do_something_are_capabilities():
    body = "# Maps\n## Drawing Coast Lines\ntext\n### Export to SVG\n## Installation\n### Install the package\n## Overview\n"
    assert capabilities("", body) == ["draw coast lines", "export to SVG"]


def test_tables_of_tasks_are_read():
    body = "| Task | Command |\n|---|---|\n| Merge two layers | `merge a b` |\n| Tiles | `tiles` |\n"
    body += "\n| Error | Fix |\n|---|---|\n| Drop layers | no |\n"
    assert capabilities("", body) == ["merge two layers"]


def test_each_capability_stands_once():
    body = "## Capabilities\n- Draw a map from tables\n- Drawing maps from a table\n## Draw maps from tables\n"
    assert capabilities("Draws maps from tables.", body) == ["draw maps from tables"]


def test_there_are_at_most_twenty_and_the_description_stays():
    verbs = [
        "audit",
        "benchmark",
        "calibrate",
        "classify",
        "compress",
        "debug",
        "deploy",
        "diagnose",
        "draw",
        "export",
        "merge",
    ]
    things = ["rivers", "coasts"]
    body = "## Capabilities\n" + "\n".join(f"- {verb} {thing} of {verb}land" for verb in verbs for thing in things)
    found = capabilities("Rotates globes.", body)
    assert len(found) == MAX_CAPABILITIES
    assert found[0] == "rotate globes"


def test_other_lists_help_where_nothing_else_speaks():
    assert capabilities("About maps", "## Workflow\n1. Collect the layers\n2. Merge the layers\n") == [
        "collect the layers",
        "merge the layers",
    ]


def test_operations_of_an_api_are_capabilities():
    body = """
```yaml
openapi: 3.0.0
paths:
  /layers/{layer_id}:
    get:
      operationId: getLayer
      summary: Retrieve one layer
    delete:
      operationId: deleteLayer
```
"""
    graph = parse_skill(Skill("a/b", "b", "", body))
    assert [(c.text, c.source) for c in graph.capabilities] == [
        ("retrieve one layer", "openapi"),
        ("delete layer", "openapi"),
    ]
