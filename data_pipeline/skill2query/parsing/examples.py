"""Usage examples: requests in users' words, commands and pieces of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from data_pipeline.skill2query.parsing.cli import command_lines
from data_pipeline.skill2query.parsing.document import Block, Document, plain
from data_pipeline.skill2query.parsing.titles import Kind, is_of, promises
from data_pipeline.skill2query.parsing.verbs import verb_form
from data_pipeline.teacher.untrusted import clean_text

MAX_REQUESTS, MAX_COMMANDS, MAX_CODE = 16, 10, 4
CODE_CHARS = 600
MIN_WORDS, MAX_WORDS = 2, 60
"""Of a request."""
_QUOTED = re.compile(r"(?<!\w)[\"“]([^\"“”\n]{4,300})[\"”]|(?<!\w)'([^'\n]{8,200})'(?!\w)")
_CUE = re.compile(
    r"\b(?:asks?|says?|said|saying|requests?|e\.g|examples?|such as|like|phrases?|triggers?|prompts?|queries|"
    r"query|types?|mentions?|"
    r"user|you (?:can )?(?:say|ask|want)|try|when)\b",
    re.IGNORECASE,
)
_SPEAKER = re.compile(
    r"^\W{0,4}(?:user|human|customer|you|q|prompt|request|query|input|user (?:says|asks|request|query|"
    r"input))\W{0,4}:\W{0,4}\s*(.+)",
    re.IGNORECASE,
)
_QUESTION_LIST = """
are can could did do does give help how i i'd i'm i've is let's my our please should show we we're what when where which who why
will would
"""
_QUESTION = frozenset(_QUESTION_LIST.split())
_COLUMN = re.compile(
    r"when you (?:ask|say).*|.*user (?:asks?|says?|is asking|request|input|query|wants?).*|requests?|you say|"
    r"if you say.*|example (?:prompt|request|query).*|prompts?|ask|trigger phrases?|example queries",
    re.IGNORECASE,
)
_CODE_LIKE = re.compile(r"[{};=]|\w\(|</|=>|::|^\W*[$#/]|\w_\w+_\w|^[\w.-]+\.\w{1,4}$")
_MARKS = re.compile(r"^(?:[-*•>\d.)\s]|→)+")
_OUTSIDE = re.compile(r"^(?:https?|error|warning|note|todo|true|false|null)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Shown:
    """An example before it has an id."""

    text: str
    kind: str
    source: str
    section: int


def find_examples(document: Document) -> list[Shown]:
    """Requests, then commands, then code; each once, in the document's order within its kind."""
    requests = _first(_requests(document), MAX_REQUESTS)
    commands = _first(_commands(document), MAX_COMMANDS)
    return [*requests, *commands, *_first(_code(document), MAX_CODE)]


def _first(found: Iterator[Shown], limit: int) -> list[Shown]:
    kept: dict[str, Shown] = {}
    for shown in found:
        kept.setdefault(shown.text.lower(), shown)
        if len(kept) == limit:
            break
    return list(kept.values())


def _requests(document: Document) -> Iterator[Shown]:
    for line in clean_text(document.skill.description[:3000]).split("\n"):
        yield from _quoted(line, "description", 0)
    for block in document.blocks:
        if block.kind in ("heading",) or is_of(document, block.section, Kind.NEGATIVE):
            continue
        shows = any(Kind.EXAMPLE in kinds for kinds in promises(document, block.section)[-2:])
        if block.kind == "table":
            yield from _from_table(block)
        elif block.kind == "code":
            if block.language in ("", "text", "txt", "markdown", "plaintext", "user", "prompt"):
                yield from _from_code(block, shows)
        else:
            yield from _from_text(block, shows)


def _quoted(text: str, source: str, section: int) -> Iterator[Shown]:
    """What is quoted after a word that announces a request: ``when the user asks to "merge two maps"``."""
    start, cue = 0, False
    for match in _QUOTED.finditer(text[:3000]):
        cue = cue or bool(_CUE.search(text[start : match.start()][-200:]))
        start = match.end()
        quote = match.group(1) or match.group(2)
        if cue and (request := as_request(quote)):
            yield Shown(request, "request", source, section)


def _from_text(block: Block, shows: bool) -> Iterator[Shown]:
    text = block.text[:2000]
    for line in text.split("\n"):
        bare = line.replace("**", "").replace("`", "")
        if spoken := _SPEAKER.match(bare):
            if request := as_request(spoken.group(1)):
                yield Shown(request, "request", block.kind, block.section)
            continue
        if block.kind in ("item", "quote") and shows:
            whole = _MARKS.sub("", bare).strip()
            if re.fullmatch(r"[\"“][^\"“”]{4,300}[\"”][.,]?", whole):
                if (request := as_request(whole)) and _may_ask(request):
                    yield Shown(request, "request", block.kind, block.section)
                continue
            if block.kind == "item" and _asks(whole) and len(whole.split()) > 3 and (request := as_request(whole)):
                yield Shown(request, "request", block.kind, block.section)
                continue
        for shown in _quoted(line if not shows else f"such as {line}", block.kind, block.section):
            if _may_ask(shown.text):
                yield shown


def _may_ask(text: str) -> bool:
    """Whether a quote in the body is a request and no label: a question, a verb's base form first, or in the first person."""
    words = text.lower().replace("’", "'").split()
    return (
        text.endswith("?")
        or words[0] in _QUESTION
        or verb_form(words[0])[1] == "base"
        or bool({"me", "i"} & set(words))
    )


def _asks(text: str) -> bool:
    """Whether a list item below a heading on examples is a request: a question, or in the first person."""
    words = text.lower().replace("’", "'").split()
    if ":" in text[:-1] or len(words) < 3:
        return False
    return (
        text.endswith("?") or words[0] in ("help", "please", "let's", "i", "i'm", "i'd", "i've") or "me" in words[1:3]
    )


def _from_table(block: Block) -> Iterator[Shown]:
    header = [plain(cell) for cell in block.rows[0]] if block.rows else []
    column = next((i for i, cell in enumerate(header) if _COLUMN.fullmatch(cell)), None)
    if column is None:
        return
    for row in block.rows[1:40]:
        if column < len(row):
            quotes = [m.group(1) or m.group(2) for m in _QUOTED.finditer(row[column])] or [plain(row[column])]
            for quote in quotes[:3]:
                if request := as_request(quote):
                    yield Shown(request, "request", "table", block.section)


def _from_code(block: Block, shows: bool) -> Iterator[Shown]:
    """Lines of an unmarked block: ``User: ...`` anywhere, and whole sentences where the heading promises prompts."""
    for line in block.text.split("\n")[:60]:
        bare = line.strip().replace("**", "")
        if spoken := _SPEAKER.match(bare):
            if request := as_request(spoken.group(1)):
                yield Shown(request, "request", "code", block.section)
        elif shows and len(bare.split()) >= 4 and (bare[:1].isupper() or bare[:1] in '"“') and bare[-1:] in '.?!"”':
            request = as_request(bare)
            if request and (bare.endswith("?") or verb_form(request.split()[0].lower())[1] == "base"):
                yield Shown(request, "request", "code", block.section)


def as_request(text: str) -> str:
    """The text as one request in plain words; empty for code, file names, single words and text that is too long."""
    text = plain(_MARKS.sub("", text.strip())).strip("\"“”'` ").rstrip(",;:")
    words = text.split()
    if (
        not MIN_WORDS <= len(words) <= MAX_WORDS
        or not text.isprintable()
        or _CODE_LIKE.search(text)
        or _OUTSIDE.search(text)
    ):
        return ""
    return text if sum(c.isalpha() or c.isspace() for c in text) > 0.7 * len(text) else ""


def _commands(document: Document) -> Iterator[Shown]:
    for block, command in command_lines(document):
        if len(command) <= 300 and not is_of(document, block.section, Kind.NEGATIVE):
            yield Shown(" ".join(command.split()), "command", "code", block.section)


def _code(document: Document) -> Iterator[Shown]:
    for block in document.of("code"):
        if block.language in (
            "python",
            "py",
            "typescript",
            "ts",
            "tsx",
            "javascript",
            "js",
            "json",
            "sql",
            "yaml",
            "r",
            "go",
            "rust",
        ):
            lines = block.text[:CODE_CHARS].rstrip()
            if lines and not is_of(document, block.section, Kind.NEGATIVE):
                yield Shown(lines, "code", block.language, block.section)
