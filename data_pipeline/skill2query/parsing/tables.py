"""Parameters from Markdown tables and from lists of parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator

from data_pipeline.skill2query.graph import ParameterType
from data_pipeline.skill2query.parsing.document import Block, Document, plain
from data_pipeline.skill2query.parsing.drafts import Draft
from data_pipeline.skill2query.parsing.titles import Kind, is_of, of_title
from data_pipeline.skill2query.parsing.values import clean_name, clean_value, piped_values, type_of_name

MAX_ROWS = 80
_ROLES = (
    (
        "name",
        r"param(?:eter)?s?(?: name)?|arg(?:ument)?s?(?: name)?|options?(?: name)?|flags?|fields?(?: name)?|"
        r"prop(?:ert(?:y|ies)|s)?|"
        r"inputs?|settings?|attributes?|variables?(?: name)?|config(?:uration)?(?: key)?|"
        r"env(?:ironment)? var(?:iable)?s?|switch|placeholder|key",
    ),
    ("weak name", r"name|item|element|column|field/column"),
    ("type", r"types?|data types?|format|kind"),
    ("required", r"required\??|req\??|mandatory|optional\??|necessity|requirement"),
    ("default", r"defaults?(?: values?)?"),
    (
        "values",
        r"(?:possible |allowed |valid |accepted |supported )?values?|choices|options|enum|range|allowed|constraints?|limits?",
    ),
    ("example", r"examples?(?: values?)?|sample"),
    ("unit", r"units?"),
    (
        "description",
        r"desc(?:ription)?|details?|meaning|purpose|notes?|what it does|explanation|usage|effect|controls|"
        r"use(?: case)?|comment|definition|behavior",
    ),
)
_ROLE = tuple((role, re.compile(pattern, re.IGNORECASE)) for role, pattern in _ROLES)
_TYPED = frozenset({"type", "required", "default", "values"})
_FLAG = re.compile(r"--[A-Za-z][\w-]{1,40}")
_YES = re.compile(r"^(?:y(?:es)?|true|required|mandatory|always|must|✓|✔️?|✅|☑️?|x|●)\b|^[✓✔✅☑●]", re.IGNORECASE)
_NO = re.compile(r"^(?:no?|false|optional|never|not required|✗|✘|❌|-|–|—)(?:\b|$)|^[✗✘❌–—-]", re.IGNORECASE)
_ITEM = re.compile(
    r"^(?:`(?P<code>[^`\n]{2,60})`|\*\*`?(?P<bold>[^*`\n]{2,60})`?:?\*\*:?|(?P<bare>--?[A-Za-z][\w-]{1,40}|"
    r"[a-z]\w*_\w+|\w+(?= \()))"
    r"(?P<rest>.*)$",
    re.DOTALL,
)
_COLON = re.compile(r"\s*(?:\([^()]*\))?\s*(?::|[–—-]\s)")
_TAKES_VALUE = re.compile(
    r"\b(?:path|file|name|number|directory|folder|url|size|count|list|format|default|type|id|level|key|token|text)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"^\s*[\[(]([^()\[\]]{1,120})[)\]]")


def table_parameters(document: Document) -> Iterator[Draft]:
    """The rows of tables that declare parameters, in many wordings of their columns."""
    for block in document.of("table"):
        if not is_of(document, block.section, Kind.NEGATIVE):
            yield from _from_table(document, block)


def _from_table(document: Document, block: Block) -> Iterator[Draft]:
    if len(block.rows) < 2:
        return
    roles = _roles([plain(cell) for cell in block.rows[0]])
    declared = bool(_TYPED & set(roles)) or "description" in roles
    if "name" not in roles:
        title = is_of(document, block.section, Kind.PARAMETER)
        if "weak name" not in roles or not (len(_TYPED & set(roles)) > 1 or (title and declared)):
            return
        roles["name"] = roles["weak name"]
    if not declared and "example" not in roles:
        return
    for row in block.rows[1 : MAX_ROWS + 1]:
        cells = {role: row[i].strip() for role, i in roles.items() if i < len(row)}
        if draft := _from_row(cells, block.section):
            yield draft


def _roles(header: list[str]) -> dict[str, int]:
    """The column of every role; a column has one role, a role the first column that fits it."""
    found: dict[str, int] = {}
    for i, cell in enumerate(header[:12]):
        role = next((role for role, pattern in _ROLE if pattern.fullmatch(cell.strip()) and role not in found), None)
        if role is not None:
            found[role] = i
    return found


def _from_row(cells: dict[str, str], section: int) -> Draft | None:
    written = cells.get("name", "")
    flag = _FLAG.search(written)
    marks = plain(written)
    name = clean_name(flag.group() if flag else re.split(r"[\s,(/=|]", marks, maxsplit=1)[0])
    if not name or (not flag and "`" not in written and len(marks.split("(")[0].split()) > 1):
        return None
    draft = Draft(name, "cli" if flag else "table", [section])
    if marks.rstrip().endswith(("*", "?")) or written.rstrip().endswith(("?`", "\\*")):
        draft.required = not marks.rstrip().endswith("?") and not written.rstrip().endswith("?`")
    if flag and len(written) > flag.end():
        draft.read_type(re.sub(r"[<>`=\[\]]", " ", written[flag.end() :]))
    if kind := cells.get("type"):
        draft.read_type(plain(kind))
        if not draft.values and re.search(r"enum|one of|\|", kind):
            draft.values = piped_values(kind)
    if need := cells.get("required"):
        draft.required = True if _YES.match(plain(need) or need) else False if _NO.match(need) else None
    default = clean_value(cells.get("default", "").split(" (")[0])
    draft.default = (
        default if default and default not in ("-", "—", "–", "*") and not _YES.fullmatch(default + " ") else None
    )
    if draft.default and draft.default.lower() in ("required", "(required)"):
        draft.default, draft.required = None, True
    if example := cells.get("example"):
        draft.examples = [v for part in re.split(r"`,\s*`|,\s", example)[:5] if (v := clean_value(part))]
    if unit := cells.get("unit"):
        draft.unit = clean_value(unit).lower()
    if values := cells.get("values"):
        _read_values(draft, values)
    draft.read_prose(cells.get("description", ""))
    return draft


def _read_values(draft: Draft, cell: str) -> None:
    before = draft.description
    draft.read_prose(cell)
    draft.description = before
    if draft.values or draft.minimum is not None or draft.maximum is not None:
        return
    parts = [clean_value(part) for part in re.split(r",\s*|\s/\s|\s\|\s|\sor\s", cell)]
    if len(parts) > 1 and "(" not in cell and all(part and len(part.split()) <= 2 for part in parts):
        draft.values = parts
    elif len(parts) == 1 and parts[0] and not draft.default and len(parts[0].split()) == 1:
        draft.examples = parts


def list_parameters(document: Document) -> Iterator[Draft]:
    """List items that declare a parameter: ``- `name` (string, required): what it is``.

    In a section on parameters a name in code marks is enough; elsewhere the item must say a type, a default or its requiredness.
    """
    for block in document.of("item"):
        if (
            "`" not in block.text
            and "*" not in block.text
            and "-" not in block.text
            and "_" not in block.text
            and "(" not in block.text
        ):
            continue
        if is_of(document, block.section, Kind.NEGATIVE):
            continue
        declared = Kind.PARAMETER in of_title(document, block.section)
        if draft := _from_item(block, declared):
            yield draft


def _from_item(block: Block, declared: bool) -> Draft | None:
    match = _ITEM.match(block.text.strip()[:700])
    if not match:
        return None
    written = match["code"] or match["bold"] or match["bare"]
    flag = _FLAG.search(written)
    name = clean_name(flag.group() if flag else re.split(r"[\s=:]", written.strip(), maxsplit=1)[0])
    rest = match["rest"]
    aside = _ASIDE.match(rest.lstrip("*: "))
    facts = aside.group(1) if aside else ""
    typed = bool(facts) and (
        bool(re.search(r"\b(?:required|optional)\b|\bdefaults?(?: to)?[:= ]+\S", facts, re.IGNORECASE))
        or _is_type(facts)
    )
    if not name or not (typed or flag or (declared and match["code"] and _COLON.match(rest))):
        return None
    if not flag and (len(written.split()) > 1 or (match["bare"] and not typed)):
        return None
    draft = Draft(name, "cli" if flag else "list", [block.section])
    if flag and len(written) > flag.end():
        draft.read_type(re.sub(r"[<>`=\[\]]", " ", written[flag.end() :]))
    elif flag and not _TAKES_VALUE.search(rest[:120]):
        draft.type = ParameterType.BOOLEAN
    if facts:
        draft.read_type(facts.split(",")[0])
    text = rest.lstrip("*: ")
    draft.read_prose(plain(text) if not re.search(r"`[^`]+`", text) else text)
    draft.description = plain(text[aside.end() :] if aside else text).lstrip(":-–— ")[:300]
    return draft


def _is_type(facts: str) -> bool:
    """Whether what stands in parentheses after a name begins with a type's name."""
    first = re.split(r"[,;|\[<]", facts, maxsplit=1)[0].strip()
    return len(first.split()) <= 2 and type_of_name(first) is not None
