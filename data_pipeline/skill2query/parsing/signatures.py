"""Parameters from code: Python signatures, argparse and click declarations, and TypeScript interfaces and functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from data_pipeline.skill2query.graph import ParameterType
from data_pipeline.skill2query.parsing.document import Block, Document
from data_pipeline.skill2query.parsing.drafts import Draft
from data_pipeline.skill2query.parsing.values import clean_name, clean_value, type_of_value

PYTHON = frozenset({"python", "py", "python3", ""})
SCRIPT = frozenset({"typescript", "ts", "tsx", "javascript", "js", "jsx", ""})
MAX_SIGNATURES = 12
_SPAN = 1_500
"""Characters of one declaration that are read."""
_DEF = re.compile(r"^(?:async )?def ([A-Za-z]\w{0,60})(?=\()", re.MULTILINE)
_DECLARED = re.compile(r"(?:\.add_argument|click\.(?:option|argument)|typer\.(?:Option|Argument))(?=\()")
_INTERFACE = re.compile(
    r"(?:interface|type)\s+\w{0,60}(?:Props|Options|Opts|Params|Parameters|Config|Args|Arguments|Input|Request|"
    r"Settings|Query)\b[^{\n]{0,60}\{"
)
_FUNCTION = re.compile(r"(?:export\s+)?(?:async\s+)?function\s+([A-Za-z]\w{0,60})(?=\()")
_MEMBER = re.compile(
    r"^\s*(?:readonly\s+)?(\w{2,60})(\?)?\s*:\s*([^;,=\n]{1,120}?)\s*(?:=\s*([^;,/\n]{1,60}?))?\s*[;,]?\s*(?://\s*(.{1,200}))?$"
)
_SIMPLE = re.compile(
    r"(?:Optional\[|list\[|List\[|Sequence\[|Array<|Partial<)?\s*(?:str|int|float|bool|string|number|boolean|Path|"
    r"date|datetime|Date|dict|list|List|Dict|bytes|"
    r"Literal\[.*\]|[\"'][^\"']{1,40}[\"'](?:\s*\|"
    r"\s*[\"'][^\"']{1,40}[\"'])*)(?:\[.*\])?\s*[\]>]?(?:\[\])?(?:\s*\|\s*(?:None|null|undefined))?"
)
_SELF = frozenset(
    {
        "self",
        "cls",
        "args",
        "kwargs",
        "ctx",
        "request",
        "response",
        "db",
        "session",
        "logger",
        "client",
        "event",
        "context",
        "next",
        "props",
    }
)
_PRIVATE = re.compile(r"^(?:_|test|setUp|main$|setup|teardown|on_|handle|__)")


def signature_parameters(document: Document) -> Iterator[Draft]:
    """What code blocks declare: parameters of plain types, since sample code is full of functions of its own.

    Of a function that nothing shows to be the skill's interface, only the parameters with a default count.
    """
    found = 0
    for block in document.of("code"):
        drafts: list[Draft] = []
        if block.language in PYTHON:
            drafts = [*_declared(block), *_python(block, document)]
        if block.language in SCRIPT and (":" in block.text):
            drafts.extend(_typescript(block, document))
        for draft in drafts:
            if draft.source == "signature":
                found += 1
            if found <= MAX_SIGNATURES:
                yield draft


def _span(text: str, start: int, opening: str = "(", closing: str = ")") -> str:
    """From an opening bracket to its closing one; at most :data:`_SPAN` characters, empty where it does not close."""
    depth = 0
    for i in range(start, min(len(text), start + _SPAN)):
        if text[i] == opening:
            depth += 1
        elif text[i] == closing:
            depth -= 1
            if depth == 0:
                return text[start : i + 1]
    return ""


def _parse(code: str) -> ast.AST | None:
    try:
        return ast.parse(code)
    # Deep nesting raises MemoryError or RecursionError, a zero byte ValueError.
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _python(block: Block, document: Document) -> Iterator[Draft]:
    for match in list(_DEF.finditer(block.text))[:MAX_SIGNATURES]:
        arguments = _span(block.text, match.end())
        if _PRIVATE.match(match.group(1)) or not arguments:
            continue
        tree = _parse(f"def f{arguments}: pass")
        if isinstance(tree, ast.Module) and isinstance(function := tree.body[0], ast.FunctionDef):
            drafts = _of_function(function, block)
        else:
            drafts = _by_commas(arguments, block)
        public = _is_interface(match.group(1), block.text[match.end() + len(arguments) :][:200], document)
        yield from (draft for draft in drafts if public or draft.default is not None)


def _is_interface(name: str, after: str, document: Document) -> bool:
    """Whether a function is one of the skill's and no helper of sample code: it has no body, or the text around names it."""
    if re.match(r"\s*(?:->[^:\n]{0,80})?\s*(?::\s*(?:\.\.\.|pass\b)|:?\s*(?:\n\s*(?:\n|def |#|$)|$))", after):
        return True
    return any(f"{name}(" in b.text or f"`{name}`" in b.text for b in document.of("heading", "item", "paragraph"))


def _of_function(function: ast.FunctionDef, block: Block) -> Iterator[Draft]:
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    defaults = [*([None] * (len(plain) - len(a.defaults))), *a.defaults, *a.kw_defaults]
    for argument, default in zip([*plain, *a.kwonlyargs], defaults, strict=True):
        kind = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        value = _literal(default)
        if argument.arg in _SELF or (kind and not _SIMPLE.fullmatch(kind)) or (not kind and value in (None, "None")):
            continue
        yield _draft(argument.arg, kind, value, default is None, block)


def _by_commas(arguments: str, block: Block) -> Iterator[Draft]:
    """Code that is not quite Python, such as ``(path: str, ..., limit=10)``."""
    for part in arguments[1:-1].split(",")[:30]:
        match = re.fullmatch(r"\s*\*{0,2}(\w{2,60})\s*(?::\s*([\w\[\]. |\"']{1,80}?))?\s*(?:=\s*(.{1,60}?))?\s*", part)
        if (
            match
            and match[1] not in _SELF
            and (match[2] or match[3])
            and (not match[2] or _SIMPLE.fullmatch(match[2].strip()))
        ):
            yield _draft(match[1], match[2] or "", match[3], match[3] is None, block)


def _draft(name: str, kind: str, default: str | None, required: bool, block: Block) -> Draft:
    draft = Draft(name, "signature", [block.section], required=required)
    literals = re.findall(r"[\"']([^\"']{1,40})[\"']", kind) if "Literal" in kind or "|" in kind else []
    if literals:
        draft.values = literals
    elif kind:
        draft.read_type(kind)
    if default is not None and default not in ("None", "null", "undefined", "..."):
        draft.default = clean_value(default) or None
        if draft.type is None and draft.default:
            draft.type = type_of_value(draft.default)
    return draft


def _literal(node: ast.AST | None) -> str | None:
    """A literal as text, ``None`` as ``"None"``; None where the node is missing or no literal."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, str) else repr(value)[:80]


def _declared(block: Block) -> Iterator[Draft]:
    """``add_argument("--format", choices=["csv", "json"], default="csv", help="...")`` and click's and typer's kin."""
    for match in list(_DECLARED.finditer(block.text))[:60]:
        tree = _parse(f"f{_span(block.text, match.end())}")
        if not isinstance(tree, ast.Module) or not tree.body or not isinstance(tree.body[0], ast.Expr):
            continue
        call = tree.body[0].value
        if not isinstance(call, ast.Call):
            continue
        names = [name for node in call.args if (name := _literal(node)) and re.fullmatch(r"-{0,2}[A-Za-z][\w-]*", name)]
        written = next((n for n in names if n.startswith("--")), names[0] if names else "")
        if not (name := clean_name(written)):
            continue
        facts = {k.arg: k.value for k in call.keywords if k.arg}
        draft = Draft(name, "cli", [block.section])
        draft.required = (
            _literal(facts.get("required")) == "True" if "required" in facts else not written.startswith("-")
        )
        if (default := _literal(facts.get("default"))) and default != "None":
            draft.default = clean_value(default)
        choices = facts.get("choices")
        if isinstance(choices, ast.List | ast.Tuple):
            draft.values = [v for node in choices.elts if (v := _literal(node))]
        if _literal(facts.get("action")) in ("store_true", "store_false") or _literal(facts.get("is_flag")) == "True":
            draft.type = ParameterType.BOOLEAN
        elif isinstance(kind := facts.get("type"), ast.Name | ast.Attribute):
            draft.read_type(ast.unparse(kind))
        draft.read_prose(_literal(facts.get("help")) or "")
        yield draft


def _typescript(block: Block, document: Document) -> Iterator[Draft]:
    for match in list(_INTERFACE.finditer(block.text))[:6]:
        body = _span(block.text, match.end() - 1, "{", "}")
        if "{" in body[1:]:
            body = body[: body.index("{", 1)]
        for line in body[1:].split("\n")[:40]:
            yield from _member(line, block)
    for match in list(_FUNCTION.finditer(block.text))[:MAX_SIGNATURES]:
        arguments = _span(block.text, match.end())
        if not _PRIVATE.match(match.group(1)) and "{" not in arguments:
            public = _is_interface(match.group(1), "{", document)
            for part in arguments[1:-1].split(",")[:20]:
                yield from (d for d in _member(part.strip(), block) if public or d.default is not None)


def _member(line: str, block: Block) -> Iterator[Draft]:
    match = _MEMBER.match(line[:300])
    if not match or match[1] in _SELF or not _SIMPLE.fullmatch(match[3].strip()):
        return
    draft = _draft(match[1], match[3].strip(), match[4], not match[2] and match[4] is None, block)
    if match[5]:
        draft.read_prose(match[5])
    yield draft
