"""Names, values and types of parameters as documents write them."""

from __future__ import annotations

import math
import re

from data_pipeline.skill2query.graph import ParameterType

NUMBER = r"-?\d{1,15}(?:[.,]\d{1,9})?"
MAX_VALUES = 30
MAX_VALUE_CHARS = 80
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,59}(?:\[\])?")
QUOTES = "`'\"“”‘’"
_CHOICES = re.compile(
    r"\b(?:one of|either|enum|choices|options|allowed(?: values)?|valid values|values|can be|must be)\b(?: are|"
    r" is)?:?\s*(.{3,200})",
    re.IGNORECASE,
)
_PIPED = re.compile(rf"[{QUOTES}]?[\w.+-]{{1,40}}[{QUOTES}]?(?:\s?\\?\|\s?[{QUOTES}]?[\w.+-]{{1,40}}[{QUOTES}]?)+")
TICKED = re.compile(r"[`\"']([\w.+/-]{1,40})[`\"']")
_TYPES: tuple[tuple[ParameterType, str], ...] = (
    (ParameterType.ARRAY, r"array|list|sequence|tuple|set|vector|\w+\[\]|multiple"),
    (ParameterType.OBJECT, r"object|dict|dictionary|mapping|map|json|record|struct"),
    (ParameterType.BOOLEAN, r"bool|boolean|flag|true/false|yes/no|switch"),
    (ParameterType.INTEGER, r"int|integer|int32|int64|long|count|uint\d*"),
    (ParameterType.NUMBER, r"number|float|double|decimal|numeric|real"),
    (ParameterType.DATE, r"date|datetime|timestamp|date-time"),
    (ParameterType.URL, r"url|uri|link|href"),
    (ParameterType.PATH, r"path|file|filename|filepath|directory|dir|folder|pathlike"),
    (ParameterType.ENUM, r"enum|choice|literal|select"),
    (ParameterType.STRING, r"str|string|text|char|varchar|uuid|email|id"),
)
_TYPE = {
    kind: re.compile(rf"(?<![\w]){words}(?![\w])", re.IGNORECASE)
    for kind, alternatives in _TYPES
    for words in [f"(?:{alternatives})"]
}
_NO_NAMES = frozenset({"none", "yes", "no", "true", "false", "default", "null", "any", "all", "ok", "na", "n.a."})
_EXAMPLE_CUE = re.compile(r"\be\.g\.|\bfor example|\bsuch as|\bexamples?\b|\blike\b|\bsee\b", re.IGNORECASE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ][\d:.Z+-]+)?")
_PATH = re.compile(r"(?:[~.]{0,2}/)?[\w.-]+(?:/[\w.*-]+)+/?|[\w-]+\.[A-Za-z][A-Za-z0-9]{1,4}")
BOOLEANS = frozenset({"true", "false", "yes", "no"})


def clean_name(text: str) -> str:
    """A parameter's name without dashes, quotes and marks; empty where the text is no name."""
    name = text.strip().strip(QUOTES + "*<>{}[]()$:?,").lstrip("-").strip()
    if name.lower() in _NO_NAMES and not text.strip().startswith("--"):
        return ""
    return name if _NAME.fullmatch(name) and len(name) > 1 else ""


def key_of(name: str) -> str:
    """What two spellings of a name share: ``maxPages``, ``max-pages`` and ``MAX_PAGES`` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def clean_value(text: str) -> str:
    """A value without quotes and closing marks, one line; empty where it is too long to be one."""
    value = " ".join(text.split()).strip(QUOTES + " ").rstrip(".,;:").strip(QUOTES + " ")
    if value.count("(") != value.count(")"):
        value = value.split(" (")[0].strip("() ") if "(" in value else value.rstrip(")")
    return value if len(value) <= MAX_VALUE_CHARS and value.isprintable() else ""


def to_number(text: str) -> float | None:
    """The number that a value begins with, finite; None where there is none."""
    match = re.match(r"-?\d{1,15}(?:[.,]\d{1,9})?(?![\d.])", text.strip())
    if not match:
        return None
    digits = match.group()
    value = float(
        digits.replace(",", "") if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+", digits) else digits.replace(",", ".")
    )
    return value if math.isfinite(value) else None


def type_of_name(text: str) -> ParameterType | None:
    """The type that a type's name stands for: ``Optional[List[str]]`` is an array, ``int`` an integer."""
    return next((kind for kind, _ in _TYPES if _TYPE[kind].search(text)), None)


def type_of_value(value: str) -> ParameterType:
    """The type of a value as it is written."""
    if value.lower() in BOOLEANS:
        return ParameterType.BOOLEAN
    if re.fullmatch(r"-?\d{1,15}", value):
        return ParameterType.INTEGER
    if re.fullmatch(r"-?(?:\d{0,15}\.\d{1,15}|\d{1,9}(?:\.\d{1,9})?e-?\d{1,3})", value):
        return ParameterType.NUMBER
    if re.match(r"https?://", value):
        return ParameterType.URL
    if DATE.fullmatch(value):
        return ParameterType.DATE
    if value[:1] == "[":
        return ParameterType.ARRAY
    if value[:1] == "{":
        return ParameterType.OBJECT
    return ParameterType.PATH if _PATH.fullmatch(value) else ParameterType.STRING


def piped_values(text: str) -> list[str]:
    """``a|b|c``, ``"a" | "b"`` or ``{a,b}`` as its values."""
    braces = re.search(r"\{([\w.+-]{1,40}(?:,\s?[\w.+-]{1,40})+)\}", text)
    if braces:
        return [clean_value(v) for v in braces.group(1).split(",")]
    match = _PIPED.search(text)
    return [v for part in match.group().replace("\\|", "|").split("|") if (v := clean_value(part))] if match else []


def listed_values(text: str) -> list[str]:
    """The values that prose enumerates: ``one of a, b or c``, ```a` | `b```, ``(`a`, `b`)``; empty where it does not."""
    if len(values := piped_values(text)) > 1 and not all(map(type_of_name, values)):
        return values
    if match := _CHOICES.search(text):
        part = re.split(r"[.;)\n](?:\s|$)", match.group(1), maxsplit=1)[0]
        ticked = TICKED.findall(part)
        if len(ticked) > 1:
            return ticked[:MAX_VALUES]
        words = [clean_value(w) for w in re.split(r",\s*(?:or |and )?|\s+or\s+|\s*/\s*", part.split("(")[0])]
        if len(words) > 1 and all(w and len(w.split()) == 1 for w in words):
            return words[:MAX_VALUES]
    text = _EXAMPLE_CUE.split(text, maxsplit=1)[0]
    ticked_row = re.search(r"(?:`\"?[\w.+/-]{1,40}\"?`(?:\s*(?:,|/|or|,\s*or)\s*)){1,20}`\"?[\w.+/-]{1,40}\"?`", text)
    return re.findall(r"`\"?([^`\"]{1,40})\"?`", ticked_row.group()) if ticked_row else []
