"""A skill's Markdown body as sections and blocks, which is what the parsers of single kinds of content read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token

from data_pipeline.corpus import Skill
from data_pipeline.teacher.untrusted import clean_text

MAX_BODY_CHARS = 40_000
"""Of a body that is read: 97% of real skills are shorter, and what follows in a longer one is reference material."""
MAX_BLOCKS = 3_000
MAX_TEXT = 2_000
"""Characters of one paragraph, list item or cell that are read."""

_LINK = re.compile(r"!?\[([^\[\]\n]{0,300})\]\([^()\n]{0,300}\)")
_URL = re.compile(r"https?://\S+")
_TAG = re.compile(r"<[/!]?[A-Za-z][^<>\n]{0,200}>")
_STRONG = re.compile(r"\*\*|__(?=\w)|(?<=\w)__|(?<![\w*])\*(?=\S)|(?<=\S)\*(?![\w*])|~~")
_EDGE = re.compile(r"^[^\w\"'`(\[{<$/@.-]+")
_BOLD_LINE = re.compile(r"(?:\*\*|__)([^*_\n]{2,80}?)(?:\*\*|__):?")
_LABEL_LINE = re.compile(r"([A-Z][\w ()/-]{2,40}):")

BlockKind = Literal["heading", "paragraph", "item", "quote", "table", "code"]


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it. Section 0 comes before every heading. ``parents`` are numbers, outermost first."""

    number: int
    title: str
    level: int
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Block:
    """One piece of content: raw Markdown ``text``, or a table's ``rows`` (the header first), or code with its language."""

    kind: BlockKind
    section: int
    text: str = ""
    rows: tuple[tuple[str, ...], ...] = ()
    language: str = ""
    lead: str = ""  # the paragraph, item or heading just before
    depth: int = 0  # how deep a list item is nested, from 1


@dataclass
class Document:
    """The sections and blocks of one skill's body, in its order."""

    skill: Skill
    sections: list[Section] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    chains: list[tuple[Section, ...]] = field(default_factory=list)  # of every section
    promises: dict[int, list[frozenset[str]]] = field(default_factory=dict)  # see titles.promises

    def of(self, *kinds: BlockKind) -> Iterator[Block]:
        """The blocks of these kinds."""
        return (block for block in self.blocks if block.kind in kinds)

    def chain(self, number: int) -> tuple[Section, ...]:
        """A section and those around it, the outermost first."""
        return self.chains[number]


def read_document(skill: Skill) -> Document:
    """Parse the body; nothing that it holds raises. Inline markup is left in the text: see :func:`plain`."""
    top = Section(0, skill.name, 0)
    document = Document(skill, [top], chains=[(top,)])
    reader = _Reader(document)
    reader.read(_parser().parse(clean_text(skill.body[:MAX_BODY_CHARS])))
    return document


def plain(text: str) -> str:
    """One line of text without links, emphasis, tags, code marks and leading symbols."""
    text = text[:MAX_TEXT]
    if "](" in text:
        text = _LINK.sub(r"\1", text)
    if "://" in text:
        text = _URL.sub("", text)
    if "<" in text:
        text = _TAG.sub("", text)
    text = _STRONG.sub("", text).replace("`", "")
    return _EDGE.sub("", " ".join(text.split()))


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    # Inline parsing takes most of the time and would only be undone: the parsers below want raw text.
    return MarkdownIt("commonmark").enable("table").disable(["inline", "text_join", "reference", "html_block"])


class _Reader:
    """Walks the tokens once."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.section, self.lead, self.depth, self.quotes = 0, "", 0, 0
        self.rows: list[list[str]] | None = None
        self.fresh_item = False

    def read(self, tokens: list[Token]) -> None:
        heading = 0
        for token in tokens:
            kind = token.type
            if kind == "heading_open":
                heading = int(token.tag[1])
            elif kind == "heading_close":
                heading = 0
            elif kind == "inline":
                self._inline(token.content, heading)
            elif kind in ("fence", "code_block"):
                language = token.info.strip().split(" ")[0].lower()[:20]
                self._add("code", token.content, language=language)
            elif kind == "list_item_open":
                self.depth, self.fresh_item = self.depth + 1, True
            elif kind == "list_item_close":
                self.depth, self.fresh_item = self.depth - 1, False
            elif kind == "blockquote_open":
                self.quotes += 1
            elif kind == "blockquote_close":
                self.quotes -= 1
            elif kind == "table_open":
                self.rows = []
            elif kind == "tr_open" and self.rows is not None:
                self.rows.append([])
            elif kind == "table_close" and self.rows is not None:
                self._add("table", rows=tuple(map(tuple, self.rows)))
                self.rows = None

    def _inline(self, content: str, heading: int) -> None:
        if self.rows is not None:
            if self.rows:
                self.rows[-1].append(content[:MAX_TEXT])
        elif heading:
            self._open(plain(content), heading)
            self._add("heading", content)
        elif self.fresh_item:
            self.fresh_item = False
            self._add("item", content)
            self.lead = content
        elif self.quotes:
            self._add("quote", content)
        else:
            label = _BOLD_LINE.fullmatch(content.strip()) or _LABEL_LINE.fullmatch(content.strip())
            if label and not self.depth:
                self._open(plain(label.group(1)).rstrip(":"), 7)
            self._add("paragraph", content)
            self.lead = content

    def _open(self, title: str, level: int) -> None:
        """A new section, inside of those that are still open at its level."""
        sections = self.document.sections
        open_now = [*sections[self.section].parents, self.section]
        parents = tuple(n for n in open_now if sections[n].level < level)[-8:]
        section = Section(len(sections), title, level, parents)
        sections.append(section)
        self.document.chains.append((*(sections[parent] for parent in parents), section))
        self.section, self.lead = len(sections) - 1, title

    def _add(self, kind: BlockKind, text: str = "", rows: tuple[tuple[str, ...], ...] = (), language: str = "") -> None:
        if len(self.document.blocks) < MAX_BLOCKS:
            block = Block(kind, self.section, text, rows, language, self.lead[:MAX_TEXT], self.depth)
            self.document.blocks.append(block)
