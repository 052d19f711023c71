"""The skill knowledge graph: what one skill document says it can do, with what parameters, shown by which examples.

Section 3.2 of the Skill2Query paper. Its lists of node and edge types did not survive in the text; the ones here follow its
prose: skill metadata, capabilities, parameters and examples, and who uses or shows what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx


class NodeType(StrEnum):
    """Section 3.2.1: what a node stands for."""

    SKILL = "skill"
    CAPABILITY = "capability"
    PARAMETER = "parameter"
    EXAMPLE = "example"


class EdgeType(StrEnum):
    """Section 3.2.2: how two nodes are connected, from source to target."""

    HAS_CAPABILITY = "has_capability"  # skill to capability
    HAS_PARAMETER = "has_parameter"  # skill to parameter
    HAS_EXAMPLE = "has_example"  # skill to example
    USES_PARAMETER = "uses_parameter"  # capability to parameter
    SHOWS_CAPABILITY = "shows_capability"  # example to capability
    SETS_PARAMETER = "sets_parameter"  # example to parameter; the edge's value is the value that the example gives it


class ParameterType(StrEnum):
    """The type of a parameter's values."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ENUM = "enum"
    PATH = "path"
    URL = "url"
    DATE = "date"
    ARRAY = "array"
    OBJECT = "object"


@dataclass(frozen=True)
class Capability:
    """One thing that the skill does; ``text`` is a phrase that begins with a verb in its base form: ``extract tables``."""

    node_id: str
    text: str
    source: str  # where in the document it stands: description, heading, list, table, openapi, ...
    detail: str = ""  # the sentence after it, if any


@dataclass(frozen=True)
class Parameter:
    """One input of the skill. Values are kept as the document writes them; ``minimum`` and ``maximum`` are inclusive."""

    node_id: str
    name: str
    type: ParameterType = ParameterType.STRING
    required: bool = False
    default: str | None = None
    values: tuple[str, ...] = ()  # the enumerated ones
    minimum: float | None = None
    maximum: float | None = None
    examples: tuple[str, ...] = ()
    unit: str = ""
    description: str = ""
    source: str = ""  # table, json_schema, openapi, cli, signature, list


@dataclass(frozen=True)
class Example:
    """One usage example: a request in words, or a command or code that shows one."""

    node_id: str
    text: str
    kind: str  # request, command or code
    source: str = ""


@dataclass(frozen=True)
class Edge:
    """A directed connection between two node ids."""

    source: str
    target: str
    type: EdgeType
    value: str | None = None


@dataclass(frozen=True)
class SkillGraph:
    """The graph of one skill, section 3.2. The skill's own node id is ``skill``; the others are ``c1``, ``p1``, ``e1``, ... ."""

    skill_id: str
    name: str
    description: str
    capabilities: tuple[Capability, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    examples: tuple[Example, ...] = ()
    edges: tuple[Edge, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict, hash=False)

    def parameters_of(self, capability: Capability) -> tuple[Parameter, ...]:
        """The parameters that a capability uses, in the document's order."""
        used = self._targets(capability.node_id, EdgeType.USES_PARAMETER)
        return tuple(p for p in self.parameters if p.node_id in used)

    def examples_of(self, capability: Capability) -> tuple[Example, ...]:
        """The examples that show a capability, in the document's order."""
        showing = {
            e.source for e in self.edges if e.type == EdgeType.SHOWS_CAPABILITY and e.target == capability.node_id
        }
        return tuple(e for e in self.examples if e.node_id in showing)

    def example_values(self, parameter: Parameter) -> tuple[str, ...]:
        """The values that examples give a parameter, each once, in the document's order."""
        set_by = (e for e in self.edges if e.type == EdgeType.SETS_PARAMETER and e.target == parameter.node_id)
        return tuple(dict.fromkeys(e.value for e in set_by if e.value is not None))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dictionaries, as JSON holds them; :meth:`from_dict` reads them back."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> SkillGraph:
        """The graph that :meth:`to_dict` wrote.

        Raises:
            ValueError: a missing key, or an unknown node key, type or edge; the message names it.
        """
        try:
            return cls(
                skill_id=value["skill_id"],
                name=value["name"],
                description=value["description"],
                capabilities=tuple(Capability(**row) for row in value["capabilities"]),
                parameters=tuple(_parameter(row) for row in value["parameters"]),
                examples=tuple(Example(**row) for row in value["examples"]),
                edges=tuple(Edge(**{**row, "type": EdgeType(row["type"])}) for row in value["edges"]),
                metadata=dict(value["metadata"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a skill knowledge graph: {type(error).__name__} {error}") from error

    def to_networkx(self) -> networkx.MultiDiGraph:
        """The same graph for networkx: node attributes are the fields and ``type``, edge attributes ``type`` and ``value``."""
        import networkx

        graph = networkx.MultiDiGraph(skill_id=self.skill_id)
        skill = {"name": self.name, "description": self.description, **self.metadata}
        graph.add_node("skill", type=str(NodeType.SKILL), **skill)
        kinds = (
            (NodeType.CAPABILITY, self.capabilities),
            (NodeType.PARAMETER, self.parameters),
            (NodeType.EXAMPLE, self.examples),
        )
        for kind, nodes in kinds:
            for node in nodes:
                fields = {key: value for key, value in asdict(node).items() if key not in ("node_id", "type")}
                if isinstance(node, Parameter):
                    fields["value_type"] = str(node.type)
                graph.add_node(node.node_id, type=str(kind), **fields)
        for edge in self.edges:
            graph.add_edge(edge.source, edge.target, type=str(edge.type), value=edge.value)
        return graph

    def _targets(self, source: str, kind: EdgeType) -> set[str]:
        return {edge.target for edge in self.edges if edge.type == kind and edge.source == source}


def _parameter(row: Mapping[str, Any]) -> Parameter:
    lists = {"values": tuple(row.get("values", ())), "examples": tuple(row.get("examples", ()))}
    return Parameter(**{**row, **lists, "type": ParameterType(row["type"])})
