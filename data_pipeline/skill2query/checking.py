"""Static validation of a filled template against the skill's parameters (3.3.3, A.4.1); nothing is executed."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from data_pipeline.skill2query.grammar import word_set
from data_pipeline.skill2query.graph import Capability, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.pseudo_query import Template
from data_pipeline.skill2query.values import OWN, array_items
from data_pipeline.skill2query.wording import MARK

CHECKS = ("name", "required", "type", "range", "enum")
"""The five checks of 3.3.3: parameter-name matching, required coverage, type compatibility, range, enumeration."""

SWITCHES = word_set("true false yes no on off 1 0")
_POINTED_AT = frozenset(
    (ParameterType.STRING, ParameterType.PATH, ParameterType.URL, ParameterType.ARRAY, ParameterType.OBJECT)
)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")  # 100,000
_DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%Y-%m",
    "%Y",
    "%B %d, %Y",
    "%d %B %Y",
    "%b %d, %Y",
    "%B %Y",
)
_RELATIVE_DATE = re.compile(
    r"(?:today|now|yesterday|tomorrow|(?:last|next|this) (?:day|week|month|quarter|year)|"
    r"-?\d+ ?(?:d|w|m|y|h|days?|weeks?|months?|years?|hours?)(?: ago)?|(?:last|next|past) \d+ (?:days|weeks|months|years))",
    re.I,
)


def check(template: Template, values: Mapping[str, str], graph: SkillGraph) -> tuple[str, ...]:
    """The problems of a template filled with ``values`` (mark to value), as ``check: detail``; v_i of A.4.1 is 1 where none is.

    - ``name``: every mark stands for a parameter of the graph and has a value, and no value is for anything else.
    - ``required``: every required parameter of the template's capability has a slot. A template without a capability (the
      baselines of A.1) passes where it covers the required parameters of at least one capability of the skill, or of the skill
      itself where it has none: it cannot be blamed for the one that it did not mean.
    - ``type``: the value can be read as the parameter's type. A value that begins with "my " points at what the person has at
      hand; it is accepted for strings, paths, URLs, lists and objects, and for nothing else.
    - ``range``: a number lies within minimum and maximum, both inclusive.
    - ``enum``: the value is one of the enumerated ones, spelled as in the document.
    """
    parameters = {parameter.node_id: parameter for parameter in graph.parameters}
    marks = list(dict.fromkeys(MARK.findall(template.text)))
    problems: list[str] = []
    covered: set[str] = set()
    for mark in marks:
        parameter = parameters.get(template.slots.get(mark, ""))
        if parameter is None:
            problems.append(f"name: {{{mark}}} is no parameter of the skill")
        elif mark not in values:
            problems.append(f"name: {{{mark}}} has no value")
        else:
            covered.add(parameter.node_id)
            problems.extend(value_problems(parameter, values[mark]))
    problems.extend(f"name: a value for {{{mark}}}, which the template lacks" for mark in values if mark not in marks)
    missing = _missing(template, graph, covered)
    problems.extend(f"required: {parameter.name} has no slot" for parameter in missing)
    return tuple(problems)


def value_problems(parameter: Parameter, value: str) -> list[str]:
    """What is wrong with one value: type first; range and enumeration only where the type is right."""
    if not _readable(parameter, value):
        return [f"type: {parameter.name} = {value!r} is not {_A_TYPE[parameter.type]}"]
    problems = []
    number = _number(value)
    if number is not None:
        low, high = parameter.minimum, parameter.maximum
        if (low is not None and number < low) or (high is not None and number > high):
            bounds = f"{'-∞' if low is None else f'{low:g}'} to {'∞' if high is None else f'{high:g}'}"
            problems.append(f"range: {parameter.name} = {value} is outside {bounds}")
    if parameter.values and not _enumerated(parameter, value):
        problems.append(f"enum: {parameter.name} = {value!r} is none of {', '.join(parameter.values)}")
    return problems


def required_parameters(graph: SkillGraph, capability: Capability) -> tuple[Parameter, ...]:
    """The required parameters among those that a capability uses."""
    return tuple(parameter for parameter in graph.parameters_of(capability) if parameter.required)


def _missing(template: Template, graph: SkillGraph, covered: set[str]) -> list[Parameter]:
    wanted = [c for c in graph.capabilities if c.node_id == template.capability_id] or list(graph.capabilities)
    if not wanted:
        return [p for p in graph.parameters if p.required and p.node_id not in covered]
    return min(
        ([p for p in required_parameters(graph, capability) if p.node_id not in covered] for capability in wanted),
        key=len,
    )


def _readable(parameter: Parameter, value: str) -> bool:
    kind = parameter.type
    if not value.strip():
        return False
    if value.startswith(OWN) and kind in _POINTED_AT:
        return True
    if kind in (ParameterType.INTEGER, ParameterType.NUMBER):
        number = _number(value)
        return number is not None and (kind == ParameterType.NUMBER or number == int(number))
    if kind == ParameterType.BOOLEAN:
        return value.lower() in SWITCHES
    if kind == ParameterType.PATH:
        return "\n" not in value and "://" not in value
    if kind == ParameterType.URL:
        parts = urlsplit(value) if not re.search(r"\s", value) else None
        return parts is not None and bool(parts.scheme) and bool(parts.netloc)
    if kind == ParameterType.DATE:
        return _is_date(value)
    if kind == ParameterType.ARRAY:
        return bool(array_items(value))
    return _is_object(value) if kind == ParameterType.OBJECT else True


def _number(value: str) -> float | None:
    try:
        number = float(value.replace(",", "") if _GROUPED.fullmatch(value) else value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _is_date(value: str) -> bool:
    if _RELATIVE_DATE.fullmatch(value.strip()):
        return True
    try:
        datetime.datetime.fromisoformat(value.strip())
        return True
    except ValueError:
        pass
    for written in _DATE_FORMATS:
        try:
            datetime.datetime.strptime(value.strip(), written)
            return True
        except ValueError:
            continue
    return False


def _is_object(value: str) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False


def _enumerated(parameter: Parameter, value: str) -> bool:
    if value in parameter.values:
        return True
    return parameter.type == ParameterType.ARRAY and all(item in parameter.values for item in array_items(value))


_A_TYPE = {
    ParameterType.STRING: "a text",
    ParameterType.INTEGER: "a whole number",
    ParameterType.NUMBER: "a number",
    ParameterType.BOOLEAN: "true or false",
    ParameterType.ENUM: "a text",
    ParameterType.PATH: "a path",
    ParameterType.URL: "a URL",
    ParameterType.DATE: "a date",
    ParameterType.ARRAY: "a list",
    ParameterType.OBJECT: "a JSON object",
}
