"""The Query Template Generator by rule (3.3.2): sentences in four forms, each bound to one capability and its slots."""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_pipeline.skill2query.frames import LONG_WORDS, SHORT_WORDS, sentence
from data_pipeline.skill2query.graph import Capability, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.phrasing import joined, slot_phrase
from data_pipeline.skill2query.pseudo_query import Form, Template
from data_pipeline.skill2query.style import Style
from data_pipeline.skill2query.values import OWN, candidates, documented
from data_pipeline.skill2query.wording import action_of, mark_of, name_words, names, pick

WRITER = "rule"
FALLBACK = "description"
"""The capability id of a template that a skill without capabilities gets from its description; it is none of the graph's."""

VAGUE_WORDS = 3
"""Up to so many words a capability ("define the scope") could be any skill's: its request says what work it is part of."""
BACKGROUND_WORDS = 8

# Verbs that documents use, and what people say instead; only pairs that take the same object without a preposition.
_SAID: dict[str, tuple[str, ...]] = {
    "analyze": ("look into", "examine"),
    "assess": ("evaluate",),
    "configure": ("set up",),
    "create": ("make", "put together"),
    "debug": ("troubleshoot", "fix"),
    "deploy": ("roll out",),
    "design": ("plan", "come up with"),
    "detect": ("spot", "find"),
    "develop": ("build",),
    "diagnose": ("find out what is wrong with",),
    "enhance": ("improve",),
    "ensure": ("make sure of",),
    "establish": ("set up",),
    "evaluate": ("assess",),
    "execute": ("run",),
    "generate": ("produce", "create"),
    "identify": ("find", "spot"),
    "implement": ("put in place",),
    "investigate": ("look into",),
    "leverage": ("use",),
    "manage": ("handle", "take care of"),
    "modify": ("change",),
    "monitor": ("keep an eye on", "watch"),
    "optimize": ("improve",),
    "organize": ("sort out",),
    "perform": ("do", "carry out"),
    "retrieve": ("get", "fetch"),
    "review": ("go over",),
    "utilize": ("use",),
    "validate": ("check",),
    "verify": ("check", "confirm"),
}  # fmt: skip


def rule_templates(graph: SkillGraph, style: Style, per_capability: int = 4, seed: int = 0) -> list[Template]:
    """Up to ``per_capability`` different templates of each capability, in the graph's order.

    The forms go round, so four templates have four forms; those that the style's examples use most come first. Every template
    has a slot for each required parameter of its capability; every second one has optional parameters besides: one (two in a
    long style, none in a very short one), those with documented values first. Frames and verbs are chosen by a hash of skill,
    capability and seed. A capability that is no verb phrase gives nothing. A short capability's request says what work it is
    part of, from the description. A sentence that names the skill is left out.
    """
    made: list[Template] = []
    for capability in graph.capabilities:
        made.extend(capability_templates(graph, capability, style, per_capability, seed))
    return made


def capability_templates(
    graph: SkillGraph, capability: Capability, style: Style, count: int, seed: int = 0
) -> list[Template]:
    """The templates of one capability; it need not be one of the graph's."""
    action = action_of(capability.text, capability.source == "heading")
    if not action:
        return []
    works = [] if capability.source == "description" else _backgrounds(graph, action)
    vague = len(action.split()) <= VAGUE_WORDS
    used = graph.parameters_of(capability)
    required = [parameter for parameter in used if parameter.required]
    optional = [
        p for p in sorted(used, key=lambda p: not documented(p, graph)) if not p.required and _askable(p, graph)
    ]
    turn = pick(len(Form), graph.skill_id, capability.text, "form", seed)
    forms = sorted([*Form][turn:] + [*Form][:turn], key=lambda form: -style.forms.get(form, 0))
    found: dict[str, Template] = {}
    for number in range(count):
        key = (graph.skill_id, capability.text, number, seed)
        chosen = required + _some(optional, number, style)
        marks = parameter_marks(chosen)
        phrases = [slot_phrase(p, mark, graph, style, pick(6, p.name, *key)) for mark, p in marks.items()]
        form = forms[number % len(forms)]
        said = action if number == 0 else _said(action, key)
        work = works[pick(len(works), "work", *key)] if works and (vague or pick(4, "told", *key) == 0) else ""
        text = sentence(form, said, joined(phrases), style, *key, background=work)
        if names(text, graph.name) or names(text, graph.skill_id.rpartition("/")[2]):
            continue
        slots = {mark: parameter.node_id for mark, parameter in marks.items()}
        template_id = f"{graph.skill_id}:{capability.node_id}:{number}"
        found.setdefault(
            text.lower(),
            Template(template_id, graph.skill_id, capability.node_id, form, text, slots, WRITER),
        )
    return list(found.values())


def _some(optional: Sequence[Parameter], number: int, style: Style) -> list[Parameter]:
    """The optional parameters of a template: none in every second one, and in turn, so that each has its own."""
    room = 0 if style.words < SHORT_WORDS // 2 else 2 if style.words >= LONG_WORDS else 1
    if number % 2 == 0 or not optional or not room:
        return []
    start = (number // 2) * room
    return list(dict.fromkeys(optional[(start + step) % len(optional)] for step in range(min(room, len(optional)))))


def _askable(parameter: Parameter, graph: SkillGraph) -> bool:
    """Whether a person would mention an optional parameter: one with a word for a name, and a value that can be said."""
    words = name_words(parameter.name)
    if not words or max(map(len, words)) < 3 or len(words) > 4 or parameter.type == ParameterType.OBJECT:
        return False
    return documented(parameter, graph) or not candidates(parameter, graph)[0].startswith(OWN)


def parameter_marks(parameters: Sequence[Parameter]) -> dict[str, Parameter]:
    """The slot mark of each parameter; two parameters whose names give the same mark are told apart by a number."""
    marks: dict[str, Parameter] = {}
    for parameter in parameters:
        mark = base = mark_of(parameter.name)
        number = 2
        while mark in marks:
            mark, number = f"{base}_{number}", number + 1
        marks[mark] = parameter
    return marks


def _said(action: str, key: tuple[object, ...]) -> str:
    """The action, in one of two cases with a verb that people use rather than documents."""
    verb, _, rest = action.partition(" ")
    others = _SAID.get(verb, ())
    if not others or pick(2, "verb", *key) or re.match(r"(?:and|or|,)", rest):
        return action
    return f"{others[pick(len(others), 'which verb', *key)]} {rest}"


def _backgrounds(graph: SkillGraph, action: str) -> list[str]:
    """The short actions of the skill's description: what a request for one of its smaller capabilities is part of."""
    found = (action_of(c.text) for c in graph.capabilities if c.source == "description")
    return [work for work in found if 3 <= len(work.split()) <= BACKGROUND_WORDS and work != action]
