"""Capabilities: from the description, lists, tables and headings of a document, the most telling ones first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from data_pipeline.phrases import NEGATIVE, words_of
from data_pipeline.skill2query.parsing.document import Block, Document, plain
from data_pipeline.skill2query.parsing.titles import Kind, is_of, lists_capabilities
from data_pipeline.skill2query.parsing.verbs import capability_phrases, inner_phrases
from data_pipeline.teacher.untrusted import clean_text

MAX_CAPABILITIES = 20
ENOUGH = 2
"""Where description, lists and headings give fewer than this, the steps and items of other sections are taken too."""
MAX_DESCRIPTION = 3_000
SAME_WORDS = 0.79
"""Share of the shorter phrase's words that stand in the other, above which two phrases are one capability."""
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+|\s[-–—•]\s|[:,]?\s*\(?\b\d{1,2}[.)]\s+|(?<=when):\s|\s\+\s")
_QUOTED = re.compile(r"[\"“]([^\"“”\n]{3,120})[\"”]")
_NEGATED = re.compile(
    r"\b(?:do not|don'?t|never|not for|not to|should not|without asking|skip|instead)\b|[,;(—–-] ?(?:see|use) [\w-]+-\w|❌|🚫",
    re.IGNORECASE,
)
_MENTIONS = re.compile(
    r"\b(?:mentions?|says?|e\.g\.)|\b(?:keywords?|triggers?|trigger phrases|trigger words|phrases|also known as|sources?):",
    re.IGNORECASE,
)
_ASKS = re.compile(r"\basks?\b|\brequests?\b|\bwants?\b", re.IGNORECASE)
_BOILERPLATE = re.compile(
    r"\brelevant best practices\b|^clarify goals|^validate outcomes?$|^outline steps|\bactionable steps\b|"
    r"^open resources?\b|^operate systems?\b"
)
_TABLE_NAME = re.compile(
    r"^(?:capabilit(?:y|ies)|features?|tasks?|actions?|operations?|functions?|use cases?|when you (?:ask|need|want).*|"
    r"what you (?:want|need).*|i want to.*|you want to.*|purposes?|what it does|goal|workflows?|needs?|"
    r"if you (?:need|want).*|to)$",
    re.IGNORECASE,
)
_TABLE_DETAIL = re.compile(r"desc|purpose|what|detail|covers|notes", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """A capability before it has an id. ``rank``: 0 is the most telling source."""

    text: str
    source: str
    section: int
    rank: int
    detail: str = ""
    operation: str = ""
    headings: tuple[int, ...] = ()  # the sections that are about it alone


def find_capabilities(document: Document, extra: list[Found]) -> list[Found]:
    """Each capability once, in the document's order; ``extra`` are those of OpenAPI blocks.

    Of more than :data:`MAX_CAPABILITIES` those of the best rank stay, the earliest first.
    """
    found = [*_from_description(document), *extra, *_from_blocks(document)]
    if len(_distinct(found)) < ENOUGH:
        found.extend(_from_other_items(document))
    distinct = _distinct(sorted(found, key=lambda f: f.rank))
    kept = sorted(distinct[:MAX_CAPABILITIES], key=lambda f: (f.source != "description", f.section))
    return kept


def description_sentences(document: Document) -> list[str]:
    """The description in pieces: sentences and the points of enumerations inside of them."""
    text = clean_text(document.skill.description[:MAX_DESCRIPTION])
    return [piece for piece in map(plain, _SENTENCE.split(text)) if piece]


def _from_description(document: Document) -> Iterator[Found]:
    for sentence in description_sentences(document):
        if _NEGATED.search(sentence):
            continue
        quoted = _QUOTED.findall(sentence)
        if quoted and _ASKS.search(sentence.split(quoted[0])[0]):
            for quote in quoted:
                yield from (Found(text, "description", 0, 1) for text in capability_phrases(quote))
        text = _QUOTED.sub(" ", sentence)
        text = _MENTIONS.split(text, maxsplit=1)[0] if not quoted or not _ASKS.search(text) else ""
        phrases = capability_phrases(text) or inner_phrases(text)
        yield from (Found(text, "description", 0, 0) for text in phrases)


def _from_blocks(document: Document) -> Iterator[Found]:
    for block in document.blocks:
        if block.kind == "heading":
            yield from _from_heading(document, block)
        elif block.kind in ("item", "table", "paragraph") and lists_capabilities(document, block.section):
            if block.kind == "item" and block.depth <= 2:
                yield from _from_item(block, 1 if block.depth == 1 else 3)
            elif block.kind == "table":
                yield from _from_table(block)
        elif block.kind == "table" and not is_of(document, block.section, Kind.NEGATIVE):
            yield from _from_table(block)


def _from_heading(document: Document, block: Block) -> Iterator[Found]:
    section = document.sections[block.section]
    if not 2 <= section.level <= 4 or NEGATIVE.search(section.title):
        return
    if is_of(document, block.section, Kind.NEGATIVE, Kind.SIDE):
        return
    step = is_of(document, block.section, Kind.STEP)
    for text in capability_phrases(section.title, strict=True):
        yield Found(_uncapitalized(text, document), "heading", block.section, 3 if step else 2)


def _from_item(block: Block, rank: int) -> Iterator[Found]:
    if _NEGATED.search(block.text) or NEGATIVE.search(block.text[:60]):
        return
    head, detail = split_item(block.text)
    text = plain(head)
    phrases = capability_phrases(text) or (capability_phrases(detail) if detail else inner_phrases(text))
    yield from (Found(phrase, "list", block.section, rank, detail[:200]) for phrase in phrases)


def split_item(text: str) -> tuple[str, str]:
    """``**Title**: what it is`` as title and plain rest; the whole text and nothing where it has no such title."""
    match = re.match(r"\s*(?:\*\*|__)([^*\n]{1,100})(?:\*\*|__)\s*[:–—-]*\s*", text)
    if match:
        return match.group(1).strip().rstrip(":"), plain(text[match.end() :])
    head, mark, rest = text[:400].partition(": ")
    if mark and len(head.split()) <= 6:
        return head, plain(rest)
    head, mark, rest = re.sub(r"\s[–—]\s|\s-{1,2}\s", "\x00", text[:400], count=1).partition("\x00")
    return (head, plain(rest)) if mark else (text, "")


def _from_table(block: Block) -> Iterator[Found]:
    if len(block.rows) < 2 or not block.rows[0]:
        return
    header = [plain(cell) for cell in block.rows[0]]
    column = next((i for i, cell in enumerate(header) if _TABLE_NAME.match(cell)), None)
    if column is None:
        return
    about = next((i for i, cell in enumerate(header) if i != column and _TABLE_DETAIL.search(cell)), None)
    for row in block.rows[1:60]:
        if column < len(row) and not _NEGATED.search(row[column]):
            detail = plain(row[about]) if about is not None and about < len(row) else ""
            for text in capability_phrases(plain(row[column]).strip('"“”')):
                yield Found(text, "table", block.section, 1, detail[:200])


def _from_other_items(document: Document) -> Iterator[Found]:
    for block in document.of("item", "paragraph"):
        if is_of(document, block.section, Kind.NEGATIVE, Kind.SIDE) or block.depth > 1:
            continue
        if _NEGATED.search(block.text):
            continue
        if block.kind == "item" or block.section <= 1:
            head, _ = split_item(block.text)
            for text in capability_phrases(plain(head), strict=True) or inner_phrases(plain(head)):
                yield Found(text, "list" if block.kind == "item" else "paragraph", block.section, 4)


def _distinct(found: list[Found]) -> list[Found]:
    """Each once: a phrase that says what an earlier one says is left out; the section of a heading then counts for that one."""
    kept: list[Found] = []
    seen: list[frozenset[str]] = []
    for item in found:
        words = stems(item.text)
        if not words or _BOILERPLATE.search(item.text):
            continue
        same = next(
            (i for i, other in enumerate(seen) if len(words & other) / min(len(words), len(other)) > SAME_WORDS), None
        )
        if same is not None:
            if item.source == "heading":
                kept[same] = replace(kept[same], headings=(*kept[same].headings, item.section))
        elif len(kept) < 5 * MAX_CAPABILITIES:
            kept.append(replace(item, headings=(item.section,)) if item.source in ("heading", "openapi") else item)
            seen.append(words)
    return kept


@lru_cache(maxsize=16384)
def stems(text: str) -> frozenset[str]:
    """Words of substance, without endings that change with number and tense."""
    return frozenset(
        re.sub(r"(?:ies|es|s|ing|ed|e|y)$", "", w) if len(w) > 3 else w for w in words_of(text) if w not in _SMALL
    )


_SMALL_LIST = (
    "a an and as at by for from in into is it of on or per than the to using via when with your their all new this that"
)
_SMALL = frozenset(_SMALL_LIST.split())


def _uncapitalized(text: str, document: Document) -> str:
    """A heading's words in lower case, but for those that the description writes with a capital, and for CamelCase."""
    words = text.split()
    if sum(w[:1].isupper() for w in words[1:]) < len([w for w in words[1:] if len(w) > 3]):
        return text
    known = set(re.findall(r"\w+", document.skill.description)) | set(re.findall(r"\w+", document.skill.name))
    return " ".join(w if w.strip(",") in known or not w.strip(",")[1:].islower() else w.lower() for w in words)
