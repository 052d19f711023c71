"""JSON-schema and OpenAPI blocks, in JSON or YAML: properties as parameters, operations as capabilities."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from data_pipeline.skill2query.graph import ParameterType
from data_pipeline.skill2query.parsing.capabilities import Found
from data_pipeline.skill2query.parsing.document import Block, Document, plain
from data_pipeline.skill2query.parsing.drafts import Draft
from data_pipeline.skill2query.parsing.values import clean_name, clean_value
from data_pipeline.skill2query.parsing.verbs import capability_phrases

MAX_CHARS = 20_000
MAX_DEPTH = 24
"""Of nesting in a block that is read; a deeper one is left alone."""
MAX_PROPERTIES = 60
MAX_SCHEMAS = 12
_JSON = frozenset({"json", "jsonc", "json5", "javascript", "js", "python", "typescript", "ts", ""})
_HINT = re.compile(r"[\"']?(?:properties|paths|parameters|inputSchema|input_schema|inputs|arguments)[\"']?\s*:")
_METHODS = ("get", "post", "put", "patch", "delete")
_TYPES = {
    "string": ParameterType.STRING,
    "integer": ParameterType.INTEGER,
    "number": ParameterType.NUMBER,
    "boolean": ParameterType.BOOLEAN,
    "array": ParameterType.ARRAY,
    "object": ParameterType.OBJECT,
}
_FORMATS = {
    "date": ParameterType.DATE,
    "date-time": ParameterType.DATE,
    "uri": ParameterType.URL,
    "url": ParameterType.URL,
    "path": ParameterType.PATH,
    "file-path": ParameterType.PATH,
}


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases, which make a small text unfold into a huge value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def schema_nodes(document: Document) -> tuple[list[Draft], list[Found]]:
    """The parameters and the capabilities that schema blocks declare."""
    drafts: list[Draft] = []
    found: list[Found] = []
    for block in document.of("code"):
        if (
            len(block.text) <= MAX_CHARS
            and _HINT.search(block.text)
            and (value := load(block.text, block.language)) is not None
        ):
            reader = _Reader(block, value)
            reader.walk(value, 0)
            drafts.extend(reader.drafts)
            found.extend(reader.found)
    return drafts, found


def load(text: str, language: str) -> Any:
    """The value of a JSON or YAML block; None where it cannot be read safely."""
    if _depth(text) > MAX_DEPTH:
        return None
    try:
        if language in ("yaml", "yml") or (language == "" and not text.lstrip().startswith(("{", "["))):
            return yaml.load(text, Loader=_Loader)
        if language in _JSON and text.lstrip().startswith(("{", "[")):
            return json.loads(re.sub(r"(?m)(?:^|\s)//.*$", "", text))
    # PyYAML raises ValueError for impossible dates and numbers, and others for odd keys.
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return None


def _depth(text: str) -> int:
    """The deepest nesting of brackets, or of indentation in steps of two, or of list marks on one line."""
    deepest = depth = 0
    for char in text:
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    indents = {len(m) for m in re.findall(r"^ +", text, re.MULTILINE)}
    dashes = max((len(m) // 2 for m in re.findall(r"^\s*((?:[-?:] )+)", text, re.MULTILINE)), default=0)
    return max(deepest, len(indents), dashes)


class _Reader:
    def __init__(self, block: Block, root: Any) -> None:
        self.block, self.root = block, root
        self.drafts: list[Draft] = []
        self.found: list[Found] = []
        self.schemas = 0

    def walk(self, value: Any, depth: int) -> None:
        """Look for OpenAPI paths, tool declarations and schemas, the outermost first."""
        if depth > MAX_DEPTH or len(self.drafts) > MAX_PROPERTIES or self.schemas > MAX_SCHEMAS:
            return
        if isinstance(value, list):
            for item in value[:50]:
                self.walk(item, depth + 1)
        if not isinstance(value, dict):
            return
        if isinstance(paths := value.get("paths"), dict) and any(str(p).startswith("/") for p in paths):
            self._paths(paths)
        elif _is_properties(value.get("properties")):
            self._schema(value, "json_schema", "")
        elif schema := next(
            (value[k] for k in ("input_schema", "inputSchema", "parameters") if isinstance(value.get(k), dict)), None
        ):
            self._tool(value, schema)
        elif inputs := next((value[k] for k in ("inputs", "arguments", "options") if _is_inputs(value.get(k))), None):
            self._schema({"properties": inputs}, "json_schema", "")
        else:
            for item in list(value.values())[:50]:
                self.walk(item, depth + 1)

    def _tool(self, value: dict[Any, Any], schema: dict[Any, Any]) -> None:
        operation = clean_value(str(value.get("name", "")))
        if not _is_properties(schema.get("properties")):
            self.walk(schema, 1)
            return
        self._capability(value, operation, "json_schema")
        self._schema(schema, "json_schema", operation)

    def _paths(self, paths: dict[Any, Any]) -> None:
        for path, operations in list(paths.items())[:40]:
            if not isinstance(operations, dict):
                continue
            shared = operations.get("parameters")
            for method in _METHODS:
                operation = operations.get(method)
                if not isinstance(operation, dict):
                    continue
                name = clean_value(str(operation.get("operationId") or f"{method} {path}"))
                self._capability(operation, name, "openapi")
                for group in (shared, operation.get("parameters")):
                    for row in group[:40] if isinstance(group, list) else ():
                        row = self._resolve(row)
                        schema = row.get("schema")
                        draft = self._property(row.get("name"), {**row, **self._resolve(schema)}, "openapi", name)
                        if draft:
                            draft.required = row.get("required") is True
                body = self._resolve(operation.get("requestBody")).get("content")
                for media in list(body.values())[:1] if isinstance(body, dict) else ():
                    self._schema(self._resolve(self._resolve(media).get("schema")), "openapi", name)

    def _capability(self, row: dict[Any, Any], operation: str, source: str) -> None:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_-]", " ", operation).lower()
        texts = [str(row[k]) for k in ("summary", "description") if isinstance(row.get(k), str)]
        for text in (*texts, words):
            if phrases := capability_phrases(plain(text)):
                self.found.append(
                    Found(phrases[0], source, self.block.section, 1, plain(texts[-1])[:200] if texts else "", operation)
                )
                return

    def _resolve(self, value: Any) -> dict[Any, Any]:
        """A mapping, or the one in this block that its ``$ref`` points at; an empty one otherwise."""
        for _ in range(4):
            reference = value.get("$ref") if isinstance(value, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            value = self.root
            for key in reference[2:].split("/")[:8]:
                value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}

    def _schema(self, schema: dict[Any, Any], source: str, operation: str) -> None:
        self.schemas += 1
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        required = schema.get("required")
        for name, row in list(properties.items())[:MAX_PROPERTIES]:
            draft = self._property(name, self._resolve(row), source, operation)
            if draft and isinstance(required, list):
                draft.required = name in required

    def _property(self, name: Any, row: dict[Any, Any], source: str, operation: str) -> Draft | None:
        if not isinstance(name, str) or not (name := clean_name(name)):
            return None
        draft = Draft(name, source, [self.block.section], operation=operation)
        kind = row.get("type")
        kind = next((k for k in kind if k != "null"), None) if isinstance(kind, list) else kind
        draft.type = _FORMATS.get(str(row.get("format"))) or _TYPES.get(str(kind))
        if isinstance(values := row.get("enum"), list):
            draft.values = [_text(v) for v in values[:30]]
        draft.minimum, draft.maximum = (
            _bound(row, "minimum", "exclusiveMinimum", 1),
            _bound(row, "maximum", "exclusiveMaximum", -1),
        )
        if (default := row.get("default")) is not None and not isinstance(default, dict | list):
            draft.default = clean_value(_text(default))
        if isinstance(needed := row.get("required"), bool):
            draft.required = needed
        examples = row.get("examples", [row.get("example")])
        draft.examples = [
            _text(v) for v in (examples if isinstance(examples, list) else [])[:5] if isinstance(v, str | int | float)
        ]
        if isinstance(about := row.get("description"), str):
            draft.read_prose(about)
        self.drafts.append(draft)
        return draft


def _is_properties(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(v, dict) for v in value.values())
        and any(
            {"type", "$ref", "enum", "anyOf", "oneOf", "description", "items"} & set(map(str, v))
            for v in value.values()
        )
    )


def _is_inputs(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(v, dict) and {"type", "required", "default", "description"} & set(map(str, v))
            for v in value.values()
        )
    )


def _text(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 200:  # Python refuses to print very long ones
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)[:100]


def _bound(row: dict[Any, Any], inclusive: str, exclusive: str, step: int) -> float | None:
    """An inclusive bound; an exclusive one of an integer is moved by one, that of a number taken as it is."""
    for key in (inclusive, exclusive):
        value = row.get(key)
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < 1e15
            and math.isfinite(value)
        ):
            return float(value) + (step if key == exclusive and row.get("type") == "integer" else 0)
    return None
