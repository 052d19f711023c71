"""Where in a model's text its final answer stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL | re.IGNORECASE)
_MARKED = re.compile(r"^[ \t>#*_`-]*(?:final[ \t]+)?answer[ \t*_`]*[:=][ \t*_`]*(.*)$", re.IGNORECASE | re.MULTILINE)
_PHRASE = re.compile(r"\banswer\s+is\b[\s*_`]*:?[\s*_`]*([^\n]*)", re.IGNORECASE)
_FINISH = re.compile(r"\bFinish\[([^\]\n]*)\]")
_PLACEHOLDER = re.compile(r"<[^<>]*>|\[?your answer\]?", re.IGNORECASE)


@dataclass(frozen=True)
class Extracted:
    """An answer and the rule that found it: ``marked``, ``phrase``, ``boxed``, ``finish``, ``last_line`` or ``none``."""

    text: str
    rule: str

    @property
    def stated(self) -> bool:
        """Whether the model said that this is its answer."""
        return self.rule not in ("last_line", "none")


def strip_thinking(text: str) -> str:
    """``text`` without its ``<think>`` sections; a section that never ends hides everything after it."""
    text = _THINKING.sub("", text)
    if "</think>" in text.lower():  # a template that opens the section itself
        text = re.split(r"</think>", text, flags=re.IGNORECASE)[-1]
    return re.split(r"<think>", text, flags=re.IGNORECASE)[0]


def extract(text: str) -> Extracted:
    """The final answer of a text without thinking.

    In this order: the last line of the form ``ANSWER: …`` (or the line below it, where it is empty), what follows the last
    ``answer is``, the last ``\\boxed{…}``, the last ``Finish[…]``, the last line. Emphasis, a final full stop and a placeholder
    of ours that a model repeats are left out.
    """
    for found in reversed(list(_MARKED.finditer(text))):
        answer = clean(found[1]) or clean(text[found.end() :].lstrip().split("\n")[0])
        if answer and not _PLACEHOLDER.fullmatch(answer):
            return Extracted(answer, "marked")
    for found in reversed(list(_PHRASE.finditer(text))):
        answer = clean(found[1])
        if answer and not _PLACEHOLDER.fullmatch(answer):
            return Extracted(answer, "phrase")
    boxed = _last_boxed(text)
    if boxed:
        return Extracted(clean(boxed), "boxed")
    finished = _FINISH.findall(text)
    if finished and finished[-1].strip():
        return Extracted(clean(finished[-1]), "finish")
    lines = [line for line in text.splitlines() if line.strip()]
    return Extracted(clean(lines[-1]), "last_line") if lines else Extracted("", "none")


def clean(text: str) -> str:
    """An answer without emphasis, mathematical delimiters, a surrounding box and a final full stop."""
    text = text.strip()
    while True:
        before = text
        text = text.strip().strip("*`").strip()
        text = text if text.endswith("..") else text.removesuffix(".").strip()
        for start, end in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"), ('"', '"')):
            if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end) - 1:
                inner = text[len(start) : len(text) - len(end)]
                if start not in inner:
                    text = inner
        boxed = _last_boxed(text)
        if boxed is not None and text.startswith(("\\boxed", "\\fbox")):
            text = boxed
        if text == before:
            return text


def _last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{…}``, brackets matched."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    opened = text.index("{", start)
    depth = 0
    for place in range(opened, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opened + 1 : place]
    return None
