"""A teacher model's second look at a graph: what the rules missed, and what they took for two things (section 3.2, optional)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from data_pipeline.corpus import Skill
from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Parameter, ParameterType, SkillGraph
from data_pipeline.teacher.forms import FLAG, form, make_task, one_of, request_block, skill_blocks, text
from data_pipeline.teacher.task import Teacher, TeacherTask

KIND = "skill_graph"
MAX_ADDED, MAX_MERGED = 10, 10
_RULES = """
You complete the list of what a skill can do and of the inputs it takes. The data is the skill and two lists that a program made.
- add_capabilities: what the document says the skill does and the list lacks. Each begins with a verb in its base form and has
  2 to 16 words: "extract tables from scanned pages". Nothing that the document excludes, no advice, no steps of installation.
- merge_capabilities: groups of ids that mean the same thing; the clearest one first.
- add_parameters: inputs that the document names and the list lacks, with type, whether required, allowed values (an empty list
  where any will do) and the ids of the capabilities that use them.
- merge_parameters: groups of ids that are one input under several names.
Leave a list empty where nothing is to be done.
Form: {"add_capabilities": [], "merge_capabilities": [["c1", "c4"]], "add_parameters": [{"name": "dpi", "type": "integer",
"required": false, "values": [], "capabilities": ["c1"]}], "merge_parameters": []}
"""


def _list(item: Mapping[str, Any], limit: int, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": dict(item), "minItems": least, "maxItems": limit, "uniqueItems": True}


_GROUPS = _list(_list(text(12), 20, least=2), MAX_MERGED)
_PARAMETER = form(
    name={"type": "string", "pattern": r"^[A-Za-z_][\w.-]{0,59}$"},
    type=one_of([str(kind) for kind in ParameterType]),
    required=FLAG,
    values=_list(text(80), 30),
    capabilities=_list(text(12), 20),
)
_SCHEMA = form(
    add_capabilities=_list(text(160), MAX_ADDED),
    merge_capabilities=_GROUPS,
    add_parameters=_list(_PARAMETER, MAX_ADDED),
    merge_parameters=_GROUPS,
)


def refine_task(graph: SkillGraph, skill: Skill) -> TeacherTask:
    """The question about one graph."""
    capabilities = "\n".join(f"{c.node_id}: {c.text}" for c in graph.capabilities) or "(none)"
    parameters = "\n".join(f"{p.node_id}: {p.name} ({p.type})" for p in graph.parameters) or "(none)"
    blocks = skill_blocks(skill) | request_block(capabilities, "capabilities") | request_block(parameters, "parameters")

    def check(answer: Mapping[str, Any]) -> str | None:
        return _problem(graph, answer)

    order = "Complete the two lists of the skill above."
    return make_task(KIND, skill.skill_id, _RULES, blocks, order, _SCHEMA, {"skill": skill, "graph": graph}, check)


def refine_graph(graph: SkillGraph, skill: Skill, teacher: Teacher | None) -> SkillGraph:
    """The graph with what a teacher adds and merges; the same graph without a teacher, or where it has no usable answer.

    Ids stay: a merged node keeps the id that its group names first, and new nodes are numbered after the last one.
    """
    if teacher is None:
        return graph
    result = teacher.complete(refine_task(graph, skill))
    return graph if result.value is None else _apply(graph, result.value, teacher.name)


def _problem(graph: SkillGraph, answer: Mapping[str, Any]) -> str | None:
    for key, nodes in (("merge_capabilities", graph.capabilities), ("merge_parameters", graph.parameters)):
        known = {node.node_id for node in nodes}
        named = [node_id for group in answer[key] for node_id in group]
        if unknown := sorted(set(named) - known):
            return f"{key}: no {unknown[0]} in the list; expected ids of it"
        if len(named) != len(set(named)):
            return f"{key}: an id stands in two groups; expected each at most once"
    known = {c.node_id for c in graph.capabilities}
    for row in answer["add_parameters"]:
        if unknown := sorted(set(row["capabilities"]) - known):
            return f"add_parameters: {row['name']}: no capability {unknown[0]} in the list; expected ids of it"
    return None


def _apply(graph: SkillGraph, answer: Mapping[str, Any], source: str) -> SkillGraph:
    kept = {
        other: group[0]
        for key in ("merge_capabilities", "merge_parameters")
        for group in answer[key]
        for other in group
    }
    capabilities = [c for c in graph.capabilities if kept.get(c.node_id, c.node_id) == c.node_id]
    parameters = [_merged(p, graph, kept) for p in graph.parameters if kept.get(p.node_id, p.node_id) == p.node_id]
    edges = [replace(e, source=kept.get(e.source, e.source), target=kept.get(e.target, e.target)) for e in graph.edges]
    known = {c.text.lower() for c in graph.capabilities}
    for phrase in answer["add_capabilities"]:
        written = " ".join(phrase.split())
        if written.lower() not in known:
            capabilities.append(Capability(_next("c", [*graph.capabilities, *capabilities]), written, source))
            edges.append(Edge("skill", capabilities[-1].node_id, EdgeType.HAS_CAPABILITY))
            known.add(written.lower())
    names = {p.name.lower() for p in graph.parameters}
    for row in answer["add_parameters"]:
        if row["name"].lower() in names:
            continue
        names.add(row["name"].lower())
        node_id = _next("p", [*graph.parameters, *parameters])
        kind = ParameterType(row["type"])
        if kind == ParameterType.ENUM and not row["values"]:
            kind = ParameterType.STRING
        parameters.append(
            Parameter(node_id, row["name"], kind, row["required"], values=tuple(row["values"]), source=source)
        )
        edges.append(Edge("skill", node_id, EdgeType.HAS_PARAMETER))
        users = dict.fromkeys(kept.get(c, c) for c in row["capabilities"])
        edges.extend(Edge(c, node_id, EdgeType.USES_PARAMETER) for c in users)
    return replace(
        graph, capabilities=tuple(capabilities), parameters=tuple(parameters), edges=tuple(dict.fromkeys(edges))
    )


def _merged(parameter: Parameter, graph: SkillGraph, kept: Mapping[str, str]) -> Parameter:
    """A parameter with what the others of its group know and it does not; it keeps its name."""
    for other in graph.parameters:
        if other is not parameter and kept.get(other.node_id) == parameter.node_id:
            parameter = replace(
                parameter,
                required=parameter.required or other.required,
                default=parameter.default if parameter.default is not None else other.default,
                examples=tuple(dict.fromkeys(parameter.examples + other.examples)),
                description=parameter.description or other.description,
            )
    return parameter


def _next(letter: str, nodes: Sequence[Capability | Parameter]) -> str:
    return f"{letter}{max((int(node.node_id[1:]) for node in nodes), default=0) + 1}"
