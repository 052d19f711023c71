"""Parameters while they are being collected: what is known so far, what prose adds, and how several mentions become one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from data_pipeline.skill2query.graph import Parameter, ParameterType
from data_pipeline.skill2query.parsing.values import (
    BOOLEANS,
    DATE,
    MAX_VALUES,
    NUMBER,
    QUOTES,
    TICKED,
    clean_value,
    listed_values,
    piped_values,
    to_number,
    type_of_name,
    type_of_value,
)

MAX_PARAMETERS = 40
_DESCRIPTION_CHARS = 300
_DEFAULT = re.compile(
    rf"\bdefaults?(?: value)?(?: is| to|:|=)?\s*((?:[{QUOTES}][^{QUOTES}\n]{{1,60}}[{QUOTES}])|[^\s,;)\]]+)",
    re.IGNORECASE,
)
_BEFORE_DEFAULT = re.compile(rf"[{QUOTES}]?([\w./-]{{1,40}})[{QUOTES}]?\s*\(default\)", re.IGNORECASE)
_RANGES = (
    re.compile(rf"\bbetween ({NUMBER}) and ({NUMBER})", re.IGNORECASE),
    re.compile(rf"\bfrom ({NUMBER}) (?:to|through) ({NUMBER})", re.IGNORECASE),
    re.compile(
        rf"(?<![\w.-])({NUMBER})\s?(?:-|–|to|\.\.\.?)\s?({NUMBER})(?![\w.-]|\s?(?:days?|weeks?|words?) (?:ago|before))"
    ),
)
_AT_LEAST = re.compile(rf"(?:\bat least|\bmin(?:imum)?\.?(?: of| is|:)?|>=|≥)\s*({NUMBER})", re.IGNORECASE)
_AT_MOST = re.compile(rf"(?:\bat most|\bup to|\bmax(?:imum)?\.?(?: of| is|:)?|<=|≤)\s*({NUMBER})", re.IGNORECASE)
_EXAMPLES = re.compile(r"(?:\be\.g\.,?|\bfor example,?|\bexamples?:|\bsuch as|\blike)\s*(.{1,120})", re.IGNORECASE)
_UNITS = (
    "milliseconds|ms|seconds|secs?|minutes|mins?|hours|days|weeks|months|years|pixels|px|points|pt|inches|mm|cm|bytes|kb|mb|gb|"
    "kilobytes|megabytes|gigabytes|tokens|words|characters|chars|lines|pages|rows|percent|degrees|celsius|fahrenheit|dpi|fps|hz|khz|"
    "kg|km|usd|dollars|eur|bpm|requests per second|db"
)
_UNIT = re.compile(rf"(?:\bin |\(|\bnumber of |\d\s?)({_UNITS})\b|(%)", re.IGNORECASE)
_REQUIRED = re.compile(r"(?<!not )\b(?:required|mandatory)\b", re.IGNORECASE)
_OPTIONAL = re.compile(r"\boptional\b|\bnot required\b", re.IGNORECASE)
_NO_DEFAULT = frozenset(
    {
        "",
        "in",
        "for",
        "to",
        "of",
        "the",
        "a",
        "an",
        "if",
        "when",
        "with",
        "and",
        "or",
        "behavior",
        "behaviour",
        "values",
        "value",
        "from",
        "by",
        "as",
        "on",
    }
)


@dataclass
class Draft:
    """A parameter before it has an id: ``sections`` are where it was seen, ``operation`` is the OpenAPI operation it is of."""

    name: str
    source: str
    sections: list[int] = field(default_factory=list)
    type: ParameterType | None = None
    required: bool | None = None
    default: str | None = None
    values: list[str] = field(default_factory=list)
    minimum: float | None = None
    maximum: float | None = None
    examples: list[str] = field(default_factory=list)
    unit: str = ""
    description: str = ""
    operation: str = ""

    def read_prose(self, text: str) -> None:
        """Take default, range, values, unit, requiredness and examples from what the document says about the parameter."""
        text = text[:600]
        self.description = self.description or " ".join(text.split())[:_DESCRIPTION_CHARS]
        if self.default is None and (match := _DEFAULT.search(text) or _BEFORE_DEFAULT.search(text)):
            value = clean_value(match.group(1))
            self.default = None if value.lower() in _NO_DEFAULT else value
        if self.required is None and (match := _OPTIONAL.search(text) or _REQUIRED.search(text)):
            self.required = bool(_REQUIRED.fullmatch(match.group()))
        if not self.values:
            self.values = listed_values(text)
        if not self.values:
            self._read_range(text)
        if not self.unit and (match := _UNIT.search(text)):
            self.unit = (match.group(1) or match.group(2)).lower()
        if not self.examples and (match := _EXAMPLES.search(text)):
            self.examples = TICKED.findall(match.group(1))[:5]

    def _read_range(self, text: str) -> None:
        if (
            self.minimum is not None
            or self.maximum is not None
            or self.type in (ParameterType.DATE, ParameterType.URL, ParameterType.PATH)
        ):
            return
        for pattern in _RANGES:
            if match := pattern.search(DATE.sub("", text)):
                low, high = (to_number(value) for value in match.groups())
                if low is not None and high is not None and low < high:
                    self.minimum, self.maximum = low, high
                    return
        if match := _AT_LEAST.search(text):
            self.minimum = to_number(match.group(1))
        if match := _AT_MOST.search(text):
            self.maximum = to_number(match.group(1))

    def read_type(self, text: str) -> None:
        """Take the type, and the values of an enumeration, from a type's name: ``string``, ``int[]``, ``"a" | "b"``."""
        text = text.strip()[:200]
        if not self.values and (values := piped_values(text)):
            kinds = [kind for value in values if (kind := type_of_name(value))]
            if not kinds:
                self.values = values
                return
        if self.type is None:
            self.type = type_of_name(text)

    def merge(self, other: Draft) -> None:
        """Fill what is not known here from another mention of the same parameter."""
        self.sections = list(dict.fromkeys(self.sections + other.sections))
        for key in ("type", "required", "default", "minimum", "maximum"):
            if getattr(self, key) is None:
                setattr(self, key, getattr(other, key))
        self.values = self.values or other.values
        self.examples = list(dict.fromkeys(self.examples + other.examples))[:MAX_VALUES]
        self.unit, self.description = self.unit or other.unit, self.description or other.description
        self.operation = self.operation or other.operation

    def finish(self, node_id: str) -> Parameter:
        """The node: its type is inferred where nothing names one; bounds and defaults that contradict it are dropped."""
        values = list(dict.fromkeys(v for v in map(clean_value, self.values) if v))[:MAX_VALUES]
        examples = tuple(dict.fromkeys(v for v in map(clean_value, self.examples) if v))[:10]
        default = (
            self.default
            if self.default and self.default.lower() not in ("none", "null", "undefined", "-", "—", "n/a")
            else None
        )
        kind = self.type or self._inferred(values, default, examples)
        if values and {v.lower() for v in values} <= BOOLEANS:
            kind, values = ParameterType.BOOLEAN, []
        if len(values) > 1 and kind not in (ParameterType.INTEGER, ParameterType.NUMBER, ParameterType.ARRAY):
            kind = ParameterType.ENUM
            if default is not None and default not in values:
                values.append(default)
        elif kind == ParameterType.ENUM:
            kind = ParameterType.STRING
        if kind == ParameterType.BOOLEAN:
            examples = tuple(v for v in examples if v.lower() in BOOLEANS)
        numeric = kind in (ParameterType.INTEGER, ParameterType.NUMBER)
        if numeric and default is not None and to_number(default) is None:
            default = None
        return Parameter(
            node_id=node_id,
            name=self.name,
            type=kind,
            required=bool(self.required) if self.required is not None else False,
            default=default,
            values=tuple(values),
            minimum=self.minimum if numeric else None,
            maximum=self.maximum if numeric else None,
            examples=examples,
            unit=self.unit if numeric else "",
            description=self.description,
            source=self.source,
        )

    def _inferred(self, values: list[str], default: str | None, examples: tuple[str, ...]) -> ParameterType:
        if len(values) > 1:
            return ParameterType.ENUM
        shown = [v for v in (default, *examples) if v]
        if shown:
            return type_of_value(shown[0])
        words = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()))
        if self.unit and self.minimum is None and self.maximum is None:
            return ParameterType.INTEGER
        if self.minimum is not None or self.maximum is not None:
            return (
                ParameterType.NUMBER
                if any(b is not None and b % 1 for b in (self.minimum, self.maximum))
                else ParameterType.INTEGER
            )
        if words & {"url", "uri", "endpoint", "webhook"}:
            return ParameterType.URL
        if words & {"path", "file", "filename", "dir", "directory", "folder"}:
            return ParameterType.PATH
        if words & {"date", "deadline"}:
            return ParameterType.DATE
        if words & {"count", "limit", "port", "timeout", "retries", "width", "height", "days", "num", "size", "seed"}:
            return ParameterType.INTEGER
        return ParameterType.STRING
