"""A skill knowledge graph as a picture: examples, capabilities and parameters in three columns below the skill."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from data_pipeline.skill2query.graph import EdgeType, NodeType, SkillGraph
from models.folders import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SHOWN = 24
"""Nodes of one kind in a picture; a larger graph says how many it leaves out."""
_COLORS = {
    NodeType.SKILL: "#2f4858",
    NodeType.CAPABILITY: "#2b6cb0",
    NodeType.PARAMETER: "#b7791f",
    NodeType.EXAMPLE: "#2f855a",
}
_EDGES: dict[EdgeType, tuple[str, Literal["-", ":"]]] = {
    EdgeType.HAS_CAPABILITY: ("#c0c6cc", "-"),
    EdgeType.USES_PARAMETER: ("#b7791f", "-"),
    EdgeType.SHOWS_CAPABILITY: ("#2f855a", "-"),
    EdgeType.SETS_PARAMETER: ("#8a8a8a", ":"),
}
_COLUMN_INCHES, _ROW_INCHES, _LABEL_CHARS, _LABEL_LINES = 4.2, 0.62, 34, 2


def plot_graph(graph: SkillGraph, path: str | Path) -> Path:
    """Draw a graph into an image file (its suffix names the format), which appears whole or not at all; returns the path."""
    figure = graph_figure(graph)
    with atomic_file(path) as handle:
        figure.savefig(handle, format=Path(path).suffix.lstrip(".") or "png", dpi=130)
    return Path(path)


def graph_figure(graph: SkillGraph) -> Figure:
    """The picture. Labels are wrapped and cut so that no two overlap; of the skill's own edges it shows those to capabilities."""
    import networkx
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = {
        NodeType.EXAMPLE: [(e.node_id, e.text) for e in graph.examples],
        NodeType.CAPABILITY: [(c.node_id, c.text) for c in graph.capabilities],
        NodeType.PARAMETER: [
            (p.node_id, f"{p.name}: {p.type}" + ("*" if p.required else "")) for p in graph.parameters
        ],
    }
    rows = min(MAX_SHOWN, max(map(len, columns.values()))) + 2
    figure = Figure(figsize=(3 * _COLUMN_INCHES, rows * _ROW_INCHES + 0.6))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-0.5, 2.5)
    axes.set_ylim(-rows + 0.2, 0.8)
    positions: dict[str, tuple[float, float]] = {"skill": (1.0, 0.0)}
    labels = {"skill": (NodeType.SKILL, graph.name)}
    for x, (kind, nodes) in enumerate(columns.items()):
        shown = nodes[:MAX_SHOWN]
        gap = (rows - 2) / max(len(shown), 1)
        for i, (node_id, label) in enumerate(shown):
            positions[node_id] = (x, -1.0 - gap * (i + 0.5) + 0.25)
            labels[node_id] = (kind, label)
        if len(nodes) > len(shown):
            axes.text(x, -rows + 0.35, f"and {len(nodes) - len(shown)} more", ha="center", fontsize=8, color="#555555")
    network = graph.to_networkx().subgraph(positions)
    for kind, (color, style) in _EDGES.items():
        chosen = [(a, b) for a, b, value in network.edges(data="type") if value == kind]
        networkx.draw_networkx_edges(
            networkx.DiGraph(chosen),
            positions,
            chosen,
            ax=axes,
            edge_color=color,
            style=style,
            arrows=False,
        )
    for node_id, (kind, label) in labels.items():
        box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": _COLORS[kind], "linewidth": 1.4}
        x, y = positions[node_id]
        axes.text(
            x, y, _wrapped(label), ha="center", va="center", fontsize=8, color=_COLORS[kind], bbox=box, parse_math=False
        )
    handles = [
        Line2D([], [], color=color, marker="s", linestyle="", label=str(kind)) for kind, color in _COLORS.items()
    ]
    handles += [Line2D([], [], color=c, linestyle=s, label=str(k).replace("_", " ")) for k, (c, s) in _EDGES.items()]
    axes.legend(handles=handles, loc="upper left", fontsize=7, frameon=False, ncols=2)
    return figure


def _wrapped(label: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in label).split())
    lines = textwrap.wrap(text, _LABEL_CHARS) or ["(empty)"]
    return "\n".join(lines[:_LABEL_LINES]) + ("…" if len(lines) > _LABEL_LINES else "")
