"""The Style Mimicker (3.3.1): how the usage examples of a skill are worded, and the examples themselves as references."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from dataclasses import dataclass, field

from data_pipeline.skill2query.grammar import word_set
from data_pipeline.skill2query.graph import EdgeType, Example, Parameter, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form
from data_pipeline.skill2query.wording import name_words

NEUTRAL_WORDS = 11
"""Median length of a request where no example says anything else."""
NEUTRAL_POLITENESS = 0.25

_GREETING = re.compile(r"^(?:please|hey|hi|hello|ok|okay|so|now|then|also)\b[\s,]*", re.I)
_POLITE = re.compile(r"\b(?:please|could you|would you|kindly|thank(?:s| you))\b", re.I)
_AUXILIARY = word_set("can could would will is are do does did should shall may have has was were am")
_WH = word_set("what how why when where which who whom whose what's how's where's who's")
_FIRST = re.compile(r"\b(?:I|I'm|I'd|I've|me|my|mine)\b")
_PLURAL = re.compile(r"\b(?:we|we're|we'd|us|our|ours)\b", re.I)
_SUBJECT = word_set(
    """
    i i'm i'd i've i'll we we're we'd we've we'll my our it it'd there the this someone somebody
    """
)
_BEFORE = re.compile(
    r"\b((?:in|to|from|with|for|as|by|on|into|onto|using|over|about|under|called|named|between|since|until)"
    r"(?: (?:a|an|the|my|our))?(?: [a-z]+)?) [\"'`]?$",
    re.I,
)


@dataclass(frozen=True)
class Style:
    """Expression patterns of a skill's usage examples (3.3.1).

    ``words`` is the median length of an example, ``forms`` how often each sentence form occurs, ``polite`` the share of examples
    that say please (or could you, would you, thanks), ``person`` who speaks: ``I``, ``we`` or an empty string. ``slot_phrasings``
    gives for a parameter's node id how the examples introduce its value: ``in {} format``. ``examples`` is Σ^examples: the
    requests as they stand.
    """

    words: int = NEUTRAL_WORDS
    forms: dict[Form, int] = field(default_factory=dict, hash=False)
    polite: float = NEUTRAL_POLITENESS
    person: str = "I"
    slot_phrasings: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    examples: tuple[str, ...] = ()

    @property
    def neutral(self) -> bool:
        """Whether there was no example to take it from."""
        return not self.examples


NEUTRAL = Style()
"""For a skill without request examples: eleven words, all four forms alike, one in four polite, first person singular."""


def mimic_style(graph: SkillGraph) -> Style:
    """The style of a skill's request examples; commands and code are no sentences and say nothing about it."""
    requests = [example for example in graph.examples if example.kind == "request" and example.text.split()]
    if not requests:
        return NEUTRAL
    texts = [" ".join(example.text.split()) for example in requests]
    forms = Counter(sentence_form(text) for text in texts)
    return Style(
        words=round(statistics.median(len(text.split()) for text in texts)),
        forms={form: forms[form] for form in Form if forms[form]},
        polite=sum(bool(_POLITE.search(text)) for text in texts) / len(texts),
        person=_person(texts),
        slot_phrasings=_slot_phrasings(graph, requests),
        examples=tuple(texts),
    )


def sentence_form(text: str) -> Form:
    """The form of a request, from how it begins; after a greeting or "please"."""
    text = text.strip().strip("\"'“”")
    while text != (shorter := _GREETING.sub("", text)):
        text = shorter
    first = re.match(r"[\w']+", text.replace("’", "'"))
    word = first.group().lower() if first else ""
    if word in _AUXILIARY:
        return Form.YES_NO
    if word in _WH:
        return Form.WH
    return Form.INDIRECT if word in _SUBJECT else Form.IMPERATIVE


def _person(texts: list[str]) -> str:
    single, several = (sum(bool(pattern.search(text)) for text in texts) for pattern in (_FIRST, _PLURAL))
    return "" if single == several == 0 else "we" if several > single else "I"


def _slot_phrasings(graph: SkillGraph, requests: list[Example]) -> dict[str, tuple[str, ...]]:
    """For each parameter that an example sets: the words around its value, with ``{}`` in its place."""
    texts = {example.node_id: " ".join(example.text.split()) for example in requests}
    parameters = {parameter.node_id: parameter for parameter in graph.parameters}
    found: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.type == EdgeType.SETS_PARAMETER and edge.value and edge.source in texts and edge.target in parameters:
            phrase = _phrase_around(texts[edge.source], edge.value, parameters[edge.target])
            if phrase:
                found.setdefault(edge.target, []).append(phrase)
    return {target: tuple(dict.fromkeys(phrases)) for target, phrases in found.items()}


def _phrase_around(text: str, value: str, parameter: Parameter) -> str:
    at = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)
    before = _BEFORE.search(text[: at.start()]) if at else None
    if at is None or before is None:
        return ""
    lead = before[1].split()
    own = {*name_words(parameter.name), *parameter.unit.lower().split()}
    if lead[-1].lower() in {"a", "an", "the", "my", "our"} or len(lead) == 1 or lead[-1].lower() in own:
        phrase = f"{before[1].lower()} {{}}"
    else:
        return ""  # the word before the value belongs to that one example
    rest = text[at.end() :]
    while (after := re.match(r"[ -]([A-Za-z]+)", rest)) and after[1].lower().rstrip("s") in {
        w.rstrip("s") for w in own
    }:
        phrase, rest = phrase + after[0], rest[after.end() :]
    return phrase
