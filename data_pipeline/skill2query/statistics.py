"""What the graphs of a library hold: counts, medians and sources."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from data_pipeline.skill2query.graph import SkillGraph

NODES = ("capabilities", "parameters", "examples")


def graph_statistics(graphs: Iterable[SkillGraph]) -> dict[str, Any]:
    """Counts over all graphs.

    ``documents``: how many graphs; ``edges``: how many edges of each type. For each of capabilities, parameters and examples:
    ``documents`` that give any, ``total``, the ``median`` and ``most`` over the documents that give any, and how many nodes come
    from each ``source`` (examples: of each ``kind``).
    """
    counts: dict[str, list[int]] = {name: [] for name in NODES}
    sources: dict[str, Counter[str]] = {name: Counter() for name in NODES}
    edges: Counter[str] = Counter()
    for graph in graphs:
        for name in NODES:
            nodes = getattr(graph, name)
            counts[name].append(len(nodes))
            sources[name].update(getattr(node, "kind", node.source) for node in nodes)
        edges.update(str(edge.type) for edge in graph.edges)
    found: dict[str, Any] = {"documents": len(counts["capabilities"])}
    for name in NODES:
        given = [n for n in counts[name] if n]
        found[name] = {
            "documents": len(given),
            "total": sum(given),
            "median": statistics.median(given) if given else 0,
            "most": max(given, default=0),
            "sources": dict(sources[name].most_common()),
        }
    return found | {"edges": dict(edges.most_common())}
