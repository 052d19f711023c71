"""Names as words, a capability as a person would say it, and choices that depend on a hash alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from data_pipeline.phrases import base_form, words_of
from data_pipeline.skill2query.grammar import FUNCTION_WORDS, article, singular, word_set
from data_pipeline.skill2query.parsing.verbs import KNOWN

MAX_ACTION_WORDS = 14
MARK = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A slot in a template's text."""

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ASIDE = re.compile(r"\s*\([^()]*\)?")
_CLAUSE = re.compile(
    r"\s+[-–—→]+\s+|[:;]\s|[.!?]\s+(?=[A-Z])|[–—→]|,\s+(?:not|e\.g\.|i\.e\.|such as|including|so|but|which)\b"
)
_MARKUP = re.compile(r"[*`#|<>{}\[\]\"“”✅❌⚠]+")
_OWN = ((re.compile(r"\b(?:the )?user['’]s\b|\byour\b", re.I), "my"), (re.compile(r"\bthe user\b|\byou\b", re.I), "me"))
_DANGLING = word_set(
    """
    a an and as at by for from in into of on or per than that the their to using via when where which whose with
    e.g i.e etc
    """
)
_ACRONYMS = word_set(
    "api url uri id csv pdf json html sql xml ip ssh ssl tls ui ux aws gcp cpu gpu ttl dpi fps llm ai jwt seo"
)
_NOUN = re.compile(r"(?:tion|sion|ment|ness|ity|sis|ance|ence|ing)s?$")
_BLANK = re.compile(r"(?<![\w-])[XYZN](?![\w./+-])")
_NO_ARTICLE = word_set("use install learn run save gain build become work go stay take get know import write read")
_COUNTED = word_set(
    """
    agent alert api app application article branch bot budget button calendar card chart checklist client cluster
    component connection container contract controller course dashboard database dataset deck design diagram document
    endpoint environment experiment feature file folder form framework function game graph guide image index instance
    interface issue job landing layout letter library list map memo migration model module note notebook page parser
    pipeline plan platform playbook plugin policy portfolio post presentation product profile project prompt proposal
    prototype query record release report repository request resume roadmap schedule schema script server service session
    sheet site skill slide spreadsheet store strategy study suite summary system table task team template test theme
    ticket tool tour tree user video website wizard workbook workflow workspace
    """
)
_NOT_COUNTED = word_set(
    """
    trust one time money data people them it this that these those everything anything something things me first early often
    again here there together forward back down out up off on
    """
)


def pick(count: int, *key: object) -> int:
    """A number below ``count`` that depends on the key alone: the same in every process and on every machine."""
    digest = hashlib.blake2b("\0".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


def name_words(name: str) -> list[str]:
    """``maxResults``, ``max_results`` and ``--max-results`` as ``["max", "results"]``."""
    return [word.lower() for part in re.split(r"[^A-Za-z0-9]+", name) for word in _CAMEL.split(part) if word]


def spoken(words: Sequence[str]) -> str:
    """Words of a name in a sentence: ``api key`` as ``API key``."""
    return " ".join(word.upper() if word in _ACRONYMS else word for word in words)


def mark_of(name: str) -> str:
    """The slot mark of a parameter: its words joined by underscores."""
    words = name_words(name) or ["value"]
    return "_".join(words) if not words[0][0].isdigit() else "_".join(["n", *words])


def action_of(text: str, heading: bool = False) -> str:
    """A capability's text as a verb phrase inside a person's sentence; empty where it cannot be one.

    Markup, asides and what follows a dash or colon go; "your" becomes "my"; the first letter is lowered unless the word is a name
    in capitals; a phrase of more than 14 words ends at the last comma or preposition before that. In a ``heading`` whose words
    all begin with a capital, the capitals go.
    """
    text = _ASIDE.sub("", _LINK.sub(r"\1", text)).replace("’", "'")
    text = " ".join(_MARKUP.sub(" ", _CLAUSE.split(text.strip(), maxsplit=1)[0]).split())
    for pattern, own in _OWN:
        text = pattern.sub(own, text)
    text = re.sub(r"\s+([,.;:])", r"\1", text)
    if heading and all(re.match(r"[A-Z]", word) for word in text.split()[1:] if word.lower() not in FUNCTION_WORDS):
        text = re.sub(r"\b[A-Z][a-z]+\b", lambda word: word[0].lower(), text)
    words = _shortened(text.split())
    while words and words[-1].lower().strip(".,;:&/+") in _DANGLING | {""}:
        words.pop()
    text = _mended(" ".join(words).strip(" .,;:!?-&/+'"))
    if len(text.split()) < 2 or not re.match(r"[A-Za-z][a-z]+(?:-[a-z]+)*\b", text) or not text.isprintable():
        return ""
    return text[0].lower() + text[1:]


def names(text: str, name: str) -> bool:
    """Whether ``text`` holds a name's words one after another; a name of one word is a word of the field, and may be used."""
    own = words_of(name)
    return len(own) > 1 and f" {' '.join(own)} " in f" {' '.join(words_of(text))} "


def _mended(text: str) -> str:
    """A phrase from a heading or a list as part of a sentence; empty with a blank X, or a noun coordinated with its verb."""
    text = re.sub(r",? (?:use|using|see) [a-z0-9]+(?:-[a-z0-9]+)+$", "", text)  # "for statistics use some-other-skill"
    text = (
        re.sub(r"(?<!\w)'(?=\w.*)|(?<=\w)'(?= |,|$)", "", text) if re.search(r"(?<!\w)'\w", text) else text
    )  # 'quoted words'
    text = re.sub(r"^(\w+), (and|or) ", r"\1 \2 ", text)
    if _BLANK.search(text) or re.search(r"\bwill be\b", text) or re.match(r"pull requests?\b", text, re.I):
        return ""
    text = re.sub(r"\s+&\s+", " and ", text)
    text = re.sub(r"^(back|set|log)(up|in|out)\b", r"\1 \2", text, flags=re.I)
    text = re.sub(r", (?=(?:for|with|using|by|to|in|across|via)\b)", " ", text)
    pair = re.match(r"([A-Za-z]+(?:, [A-Za-z]+)*,? (?:and|or)) ([A-Za-z]+)(.*)", text)
    if pair and pair[2].endswith("ing") and (base := base_form(pair[2].lower())):
        text = f"{pair[1]} {base}{pair[3]}"
    elif (
        pair
        and (_NOUN.search(pair[2]) or not pair[3].strip())
        and " " not in pair[1].removesuffix(" and").removesuffix(" or")
    ):
        return ""
    text = re.sub(r",? (?:and|or) ([a-z]+ing) \w.*", _without_participle, text)
    second = re.match(r"[A-Za-z]+, (?:(?:and|or) )?([A-Za-z-]+)", text)
    if second and second[1].lower() not in KNOWN:
        return ""
    *head, last = text.split(", ")
    if head and all(len(part.split()) <= 3 for part in (*head[1:], last)) and not re.search(r"\b(?:and|or)\b", text):
        text = f"{', '.join(head)} and {last}"
    return _with_article(text)


def _without_participle(match: re.Match[str]) -> str:
    """Nothing in place of ", or building x": a verb in another form than the phrase's first; the text itself for a noun."""
    return "" if base_form(match[1], KNOWN) else match[0]


def _with_article(text: str) -> str:
    """``create custom component`` as ``create a custom component``, ``check alert`` as ``check the alert``.

    Headings leave articles out. "A" is for the nouns that are counted for sure, "the" fits before any other single noun.
    """
    verb, _, noun = text.partition(" ")
    words = noun.split()
    if (
        2 <= len(words) <= 3
        and words[-1] in _COUNTED
        and not any(word.lower() in FUNCTION_WORDS or "," in word for word in words)
    ):
        return f"{verb} {article(words[0])} {noun}"
    if (
        verb.lower() in _NO_ARTICLE
        or not re.fullmatch(r"[a-z]{3,}", noun)
        or singular(noun)
        or noun.endswith(("ly", "ing", "s"))
    ):
        return text
    return text if noun in _NOT_COUNTED else f"{verb} the {noun}"


def _shortened(words: list[str]) -> list[str]:
    if len(words) <= MAX_ACTION_WORDS:
        return words
    for end in range(MAX_ACTION_WORDS, 4, -1):
        if words[end - 1].endswith(",") or words[end].lower() in {
            "with",
            "using",
            "by",
            "for",
            "while",
            "to",
            "across",
            "via",
        }:
            kept = words[:end]
            return _without_open_list(kept)
    return words[:MAX_ACTION_WORDS]


def _without_open_list(words: list[str]) -> list[str]:
    """``a, b, c,`` without its end is a list without "and": give it one."""
    text = " ".join(words).rstrip(",")
    head, comma, last = text.rpartition(", ")
    if not comma or re.search(r"\b(?:and|or)\b", last) or " and " in head:
        return text.split()
    return f"{head} and {last}".split()
