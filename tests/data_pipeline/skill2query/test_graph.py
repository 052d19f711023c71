"""The graph itself: what its look-ups, its JSON, its networkx form and its statistics say."""

from __future__ import annotations

import json

import pytest

from data_pipeline.skill2query import graph_statistics
from data_pipeline.skill2query.graph import (
    Capability,
    Edge,
    EdgeType,
    Example,
    Parameter,
    ParameterType,
    SkillGraph,
)

DRAW = Capability("c1", "draw maps", "description")
MERGE = Capability("c2", "merge map layers", "list", "two or more")
WIDTH = Parameter(
    "p1", "width", ParameterType.INTEGER, default="800", minimum=100, maximum=4000, unit="pixels", source="table"
)
FORMAT = Parameter("p2", "format", ParameterType.ENUM, required=True, values=("png", "svg"), source="cli")
REQUEST = Example("e1", "draw my stores as svg", "request", "item")
COMMAND = Example("e2", "maptool --width 900 --format svg", "command", "code")
GRAPH = SkillGraph(
    "atlas/maps",
    "maps",
    "Draws maps.",
    (DRAW, MERGE),
    (WIDTH, FORMAT),
    (REQUEST, COMMAND),
    (
        Edge("skill", "c1", EdgeType.HAS_CAPABILITY),
        Edge("c1", "p2", EdgeType.USES_PARAMETER),
        Edge("c1", "p1", EdgeType.USES_PARAMETER),
        Edge("e2", "c1", EdgeType.SHOWS_CAPABILITY),
        Edge("e1", "c1", EdgeType.SHOWS_CAPABILITY),
        Edge("e1", "p2", EdgeType.SETS_PARAMETER, "svg"),
        Edge("e2", "p2", EdgeType.SETS_PARAMETER, "svg"),
        Edge("e2", "p1", EdgeType.SETS_PARAMETER, "900"),
    ),
    {"license": "MIT"},
)


def test_neighbours_come_in_the_documents_order():
    assert GRAPH.parameters_of(DRAW) == (WIDTH, FORMAT)
    assert GRAPH.parameters_of(MERGE) == ()
    assert GRAPH.examples_of(DRAW) == (REQUEST, COMMAND)


def test_example_values_are_listed_once():
    assert GRAPH.example_values(FORMAT) == ("svg",)
    assert GRAPH.example_values(WIDTH) == ("900",)


def test_json_gives_the_same_graph_back():
    assert SkillGraph.from_dict(json.loads(json.dumps(GRAPH.to_dict()))) == GRAPH


@pytest.mark.parametrize(
    "change, named",
    [({"nodes": None}, None), ({"capabilities": [{"text": "draw"}]}, "node_id"), ({"edges": None}, "NoneType")],
)
def test_what_is_no_graph_is_named(change: dict[str, object], named: str | None):
    row = GRAPH.to_dict() | change
    if named is None:
        del row["name"]
        named = "name"
    with pytest.raises(ValueError, match=named):
        SkillGraph.from_dict(row)


def test_networkx_holds_every_node_and_every_edge():
    network = GRAPH.to_networkx()
    assert set(network) == {"skill", "c1", "c2", "p1", "p2", "e1", "e2"}
    assert network.nodes["skill"] == {"type": "skill", "name": "maps", "description": "Draws maps.", "license": "MIT"}
    assert network.nodes["p1"]["type"] == "parameter"
    assert network.nodes["p1"]["value_type"] == "integer"
    assert network.number_of_edges() == 8
    assert [d["value"] for _, _, d in network.edges("e2", data=True) if d["type"] == "sets_parameter"] == ["svg", "900"]


def test_statistics_count_documents_nodes_and_sources():
    empty = SkillGraph("a", "a", "")
    one = SkillGraph("b", "b", "", (DRAW,), (), (REQUEST,))
    found = graph_statistics([GRAPH, empty, one])
    assert found["documents"] == 3
    # Two documents give capabilities: two and one of them.
    assert found["capabilities"] == {
        "documents": 2,
        "total": 3,
        "median": 1.5,
        "most": 2,
        "sources": {"description": 2, "list": 1},
    }
    assert found["parameters"]["documents"] == 1
    assert found["examples"]["sources"] == {"request": 2, "command": 1}
    assert found["edges"] == {
        "sets_parameter": 3,
        "uses_parameter": 2,
        "shows_capability": 2,
        "has_capability": 1,
    }
