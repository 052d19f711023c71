"""Edges: which capability uses which parameter, which example shows which capability and sets which parameter to what.

Section 3.2.2 names the edges but its rules did not survive. Ours: a connection needs the same operation, the same section, or
words in common; what nothing connects goes to the skill's main capability.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Example, Parameter, ParameterType
from data_pipeline.skill2query.parsing.capabilities import Found, stems
from data_pipeline.skill2query.parsing.document import Document
from data_pipeline.skill2query.parsing.drafts import Draft
from data_pipeline.skill2query.parsing.examples import Shown
from data_pipeline.skill2query.parsing.values import clean_value, key_of

MIN_OVERLAP = 0.34
"""Of a capability's words that an example must share, where they stand in different sections."""
_VALUE = r"(\"[^\"\n]{0,80}\"|'[^'\n]{0,80}'|[^\s,;()\[\]{}\"']{1,80})"
_FLAG_PAIR = re.compile(r"--([A-Za-z][\w-]{1,40})[= ]" + _VALUE)
_PAIR = re.compile(r"(?<![\w-])([A-Za-z_]\w{1,40})\s?[=:]\s?" + _VALUE)
_VARIABLE = re.compile(r"$|[-<\[${]|[A-Z][A-Z_]{2,}$")  # and placeholders
_JSON_PAIR = re.compile(r"\"([A-Za-z_][\w.-]{0,40})\"\s*:\s*(\"[^\"\n]{0,80}\"|-?\d[\d.]{0,15}|true|false)")


def link(
    document: Document,
    capabilities: Sequence[tuple[Capability, Found]],
    parameters: Sequence[tuple[Parameter, Draft]],
    examples: Sequence[tuple[Example, Shown]],
) -> list[Edge]:
    """All edges of the graph, those from the skill first."""
    edges = [Edge("skill", c.node_id, EdgeType.HAS_CAPABILITY) for c, _ in capabilities]
    edges += [Edge("skill", p.node_id, EdgeType.HAS_PARAMETER) for p, _ in parameters]
    edges += [Edge("skill", e.node_id, EdgeType.HAS_EXAMPLE) for e, _ in examples]
    words = {c.node_id: stems(f"{c.text} {c.detail}") for c, _ in capabilities}
    for parameter, draft in parameters:
        edges += [
            Edge(c, parameter.node_id, EdgeType.USES_PARAMETER) for c in users(document, draft, capabilities, words)
        ]
    by_key = {key_of(p.name): p for p, _ in parameters}
    for example, shown in examples:
        edges += [
            Edge(example.node_id, c, EdgeType.SHOWS_CAPABILITY) for c in shown_by(document, shown, capabilities, words)
        ]
        edges += [
            Edge(example.node_id, p.node_id, EdgeType.SETS_PARAMETER, value) for p, value in settings(shown, by_key)
        ]
    return list(dict.fromkeys(edges))


def users(
    document: Document,
    draft: Draft,
    capabilities: Sequence[tuple[Capability, Found]],
    words: dict[str, frozenset[str]],
) -> list[str]:
    """The capabilities that use a parameter, by the first rule that gives any.

    1. The same operation of an OpenAPI or tool block. 2. A section around the parameter whose heading names the capability.
    3. All words of the parameter's name in the capability. 4. The capability that shares most words, at least two, with the
    parameter's heading and description. 5. The first capability: the document's main one.
    """
    if not capabilities:
        return []
    if draft.operation and (same := [c.node_id for c, found in capabilities if found.operation == draft.operation]):
        return same
    around = {s.number for number in draft.sections for s in document.chain(number) if s.level > 1}
    if near := [c.node_id for c, found in capabilities if around.intersection(found.headings)]:
        return near
    name = stems(re.sub(r"(?<=[a-z])(?=[A-Z])|[_.-]", " ", draft.name))
    if name and (named := [c.node_id for c, _ in capabilities if name <= words[c.node_id]]):
        return named
    titles = " ".join(document.sections[n].title for n in draft.sections[:2])
    about = name | stems(f"{titles} {draft.description}")
    best = max(((len(about & words[c.node_id]), -i) for i, (c, _) in enumerate(capabilities)), default=(0, 0))
    return [capabilities[-best[1] if best[0] > 1 else 0][0].node_id]


def shown_by(
    document: Document,
    shown: Shown,
    capabilities: Sequence[tuple[Capability, Found]],
    words: dict[str, frozenset[str]],
) -> list[str]:
    """The capabilities that an example shows.

    Those whose heading it stands under, and the one that it shares most words with (at least :data:`MIN_OVERLAP` of them). A
    request that no rule places shows the only capability where there is one.
    """
    around = {s.number for s in document.chain(shown.section) if s.level > 1}
    near = [c.node_id for c, found in capabilities if around.intersection(found.headings)]
    said = stems(shown.text[:400])
    scored = [(len(said & stems(c.text)) / (len(stems(c.text)) or 1), -i) for i, (c, _) in enumerate(capabilities)]
    score, position = max(scored, default=(0.0, 0))
    if score >= MIN_OVERLAP:
        near.append(capabilities[-position][0].node_id)
    if not near and shown.kind == "request" and len(capabilities) == 1:
        near.append(capabilities[0][0].node_id)
    return list(dict.fromkeys(near))


def settings(shown: Shown, by_key: dict[str, Parameter]) -> list[tuple[Parameter, str]]:
    """The parameters that an example sets and the values that it gives them.

    Flags and assignments in commands and code, members of JSON objects, and, in requests, values of an enumeration by their word.
    """
    found: dict[str, tuple[Parameter, str]] = {}
    pairs = _JSON_PAIR.findall(shown.text)
    if shown.kind != "request":
        pairs += _FLAG_PAIR.findall(shown.text) + _PAIR.findall(shown.text)
    for name, written in pairs:
        parameter, value = by_key.get(key_of(name)), clean_value(written)
        if parameter is not None and not _VARIABLE.match(value) and _fits(parameter, value):
            found.setdefault(parameter.node_id, (parameter, value))
    if shown.kind == "command":
        for flag in re.findall(r"--([A-Za-z][\w-]{1,40})(?=\s+-|\s*$)", shown.text):
            parameter = by_key.get(key_of(flag))
            if parameter is not None and parameter.type == ParameterType.BOOLEAN:
                found.setdefault(parameter.node_id, (parameter, "true"))
    if shown.kind == "request":
        said = set(re.findall(r"[\w.+-]+", shown.text.lower()))
        for parameter in by_key.values():
            value = next((v for v in parameter.values if len(v) > 2 and v.lower() in said), None)
            if value is not None:
                found.setdefault(parameter.node_id, (parameter, value))
    return list(found.values())


def _fits(parameter: Parameter, value: str) -> bool:
    """Whether a value that code shows can be one of the parameter's: code also holds variables."""
    if parameter.type == ParameterType.BOOLEAN:
        return value.lower() in ("true", "false")
    if parameter.type in (ParameterType.INTEGER, ParameterType.NUMBER):
        try:
            json.loads(value)
        except ValueError:
            return False
        return bool(re.fullmatch(r"-?[\d.]+", value))
    return parameter.type != ParameterType.ENUM or value in parameter.values
