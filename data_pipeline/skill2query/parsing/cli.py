"""Command lines in a document: their flags and placeholders as parameters, and help texts that explain them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from data_pipeline.phrases import words_of
from data_pipeline.skill2query.graph import ParameterType
from data_pipeline.skill2query.parsing.document import Block, Document
from data_pipeline.skill2query.parsing.drafts import Draft
from data_pipeline.skill2query.parsing.titles import Kind, is_of
from data_pipeline.skill2query.parsing.values import clean_name, clean_value

SHELLS = frozenset({"bash", "sh", "shell", "zsh", "console", "terminal", "shell-session", "powershell", "cmd", "fish"})
_PLAIN = frozenset({"", "text", "txt", "plaintext", "usage", "help"})
_HOUSEKEEPING_LIST = """
alias apt apt-get awk brew bun case cat cd chmod choco chown clear code conda cp curl date do docker docker-compose done echo else
esac exit export fi find for function git grep head helm if kill kubectl let local ls make mkdir mv npm open pip pip3 pnpm printf
pwd read return rm rsync scp sed set sleep sort source sqlite3 ssh sudo tail tar tee test then touch true unset unzip wc wget
which while winget xargs yarn
"""
HOUSEKEEPING = frozenset(_HOUSEKEEPING_LIST.split())
"""Commands of everyday shell work: their flags say nothing about the skill, unless its name or description names them."""
MAX_LINES = 400
_LINE_CHARS = 600
_TOKEN = re.compile(
    r"\[[^\[\]\s][^\[\]\n]{0,80}\]|\{[\w,.| +-]{1,120}\}|<[^<>\n]{1,60}>|(?:\"[^\"\n]{0,200}\"|'[^'\n]{0,200}'|[^\s\"'])+|[\"']"
)
_FLAG = re.compile(r"(--[A-Za-z][\w-]{1,40})(?:[= ]?(.*))?", re.DOTALL)
_ASSIGN = re.compile(r"[A-Z_][A-Z0-9_]*=\S*")
_PROGRAM = re.compile(r"[A-Za-z./~@][\w./@:+-]{1,80}")
_PLACEHOLDER = re.compile(
    r"<[^<>]{1,60}>|\[[^\[\]]{1,60}\]|\{[^{}]{1,60}\}|[A-Z][A-Z0-9_]{2,}|\.\.\.|\$\{?\w+\}?|[\"']?\$.*|(?i:your|my)[-_].*"
)
_HELP = re.compile(
    r"^\s{0,12}(?:-\w(?:[ =]\S{1,30})?,?\s+)?(--[A-Za-z][\w-]{1,40})(?:[= ](?:\[?([<{\[]?[\w,.|"
    r"-]{1,60}[>}\]]?)\]?))?(?:\s{2,}|\t\s*|\s+#\s*|\s+[-–—:]\s+)(\S.{2,300})$"
)
_INLINE = re.compile(r"`([^`\n]{6,300})`")
_USAGE = re.compile(r"^\s*usage:\s*", re.IGNORECASE)


def command_lines(document: Document) -> Iterator[tuple[Block, str]]:
    """Each command of the code blocks, one line a command, continued lines joined; everyday shell work is left out."""
    named = set(words_of(f"{document.skill.name} {document.skill.description[:500]}"))
    left = MAX_LINES
    for block in document.of("code"):
        if block.language not in SHELLS and block.language not in _PLAIN:
            continue
        for line in _logical_lines(block.text):
            left -= 1
            if left < 0:
                return
            if command := as_command(line, named, block.language in SHELLS):
                yield block, command


def as_command(line: str, named: set[str], shell: bool) -> str:
    """The command on a line without its prompt and comment; empty for prose, output and everyday shell work."""
    line = _USAGE.sub("", line.strip()[:_LINE_CHARS])
    prompted = line.startswith(("$ ", "> ", "% ")) and not line.startswith("> #")
    line = line[2:] if prompted else line
    line = re.split(r"\s#\s", line, maxsplit=1)[0].strip()
    words = [w for w in line.split() if not _ASSIGN.fullmatch(w)]
    if len(words) < 2 or line.startswith(("#", "//", "-", "|", "}", "{", "<", "*")):
        return ""
    program = words[1] if words[0] in ("sudo", "npx", "uvx", "exec", "time") else words[0]
    if not _PROGRAM.fullmatch(program) or program.endswith(":") or (program in HOUSEKEEPING and program not in named):
        return ""
    if not shell and not prompted and not (re.search(r"\s-{1,2}[A-Za-z]", line) and program.islower()):
        return ""
    if words[0] in ("python", "python3", "node", "uv", "poetry") and set(words[1:4]) & {
        "pip",
        "install",
        "add",
        "venv",
        "-c",
        "sync",
        "init",
    }:
        return ""
    return line


def command_parameters(document: Document) -> Iterator[Draft]:
    """Flags and ``<placeholders>`` of commands, and the lines of help texts."""
    for block in document.of("code"):
        if (block.language in SHELLS or block.language in _PLAIN) and "--" in block.text:
            yield from _from_help(block)
    for block, command in command_lines(document):
        yield from read_command(command, block.section)
    for block in document.of("item", "paragraph"):
        if "--" in block.text and not is_of(document, block.section, Kind.NEGATIVE):
            for code in _INLINE.findall(block.text[:2000]):
                if " --" in code and (command := as_command(code, set(), shell=True)):
                    yield from read_command(command, block.section)


def read_command(command: str, section: int) -> Iterator[Draft]:
    """The parameters of one command line, with the values that it gives them as examples."""
    tokens = [t for t in _TOKEN.findall(command)[:80] if t != "\\"]
    for i, token in enumerate(tokens):
        optional = token.startswith("[") and token.endswith("]")
        inner = token[1:-1].strip() if optional else token
        match = _FLAG.fullmatch(inner)
        if match:
            following = tokens[i + 1] if i + 1 < len(tokens) and not optional else ""
            value = (match.group(2) or "").strip() or ("" if following.startswith("-") else following)
            if match.group(1) not in ("--help", "--version"):
                yield _flag(match.group(1), value, section, optional, bool(match.group(2)))
        elif i and re.fullmatch(r"<[^<>]{2,60}>", inner) and not tokens[i - 1].startswith("-"):
            name = clean_name(re.sub(r"[\s/]+", "_", inner[1:-1].strip().rstrip(".")))
            if name:
                yield Draft(name, "cli", [section], required=not optional)


def _flag(flag: str, value: str, section: int, optional: bool, joined: bool) -> Draft:
    draft = Draft(clean_name(flag), "cli", [section], required=False if optional else None)
    value = value.strip()
    braces = re.fullmatch(
        r"[<{\[(]([\w.+-]{1,40}(?:[,|/][\w.+-]{1,40}){1,30})[>}\])]|([\w.+-]{1,40}(?:\|[\w.+-]{1,40}){1,30})", value
    )
    if braces:
        draft.values = re.split(r"[,|/]", braces.group(1) or braces.group(2))
    elif not value or (not joined and re.fullmatch(r"[&|;>)\]].*|<", value)):
        draft.type = ParameterType.BOOLEAN
    elif _PLACEHOLDER.fullmatch(value.strip("\"'")):
        draft.read_type(re.sub(r"[<>\[\]{}_-]", " ", value))
    elif example := clean_value(value):
        draft.examples = [example]
    return draft


def _from_help(block: Block) -> Iterator[Draft]:
    for line in block.text.split("\n")[:MAX_LINES]:
        if "--" not in line:
            continue
        match = _HELP.match(line[:_LINE_CHARS])
        if match and not line.strip().startswith(("#", "//")):
            draft = _flag(match.group(1), match.group(2) or "", block.section, False, bool(match.group(2)))
            draft.read_prose(match.group(3))
            yield draft


def _logical_lines(text: str) -> Iterator[str]:
    held = ""
    for line in text.split("\n"):
        held += line.rstrip()[:_LINE_CHARS]
        if held.endswith(("\\", "`", "^")) and len(held) < 2 * _LINE_CHARS:
            held = held[:-1] + " "
            continue
        yield held
        held = ""
    if held:
        yield held
