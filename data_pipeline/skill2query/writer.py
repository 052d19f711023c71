"""The offline teacher's writer that reads structure: requests from a skill's graph and its pseudo-queries (3.3, D.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from data_pipeline.corpus import Skill
from data_pipeline.phrases import NO_VERB, names_skill, words_of
from data_pipeline.skill2query.generation import GenerationConfig, generate_for_graph
from data_pipeline.skill2query.graph import Capability
from data_pipeline.skill2query.parsing import parse_skill
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from data_pipeline.skill2query.wording import action_of, pick
from data_pipeline.teacher.offline_writer import TextWriter, object_of, rationale_of
from data_pipeline.validation import query_problem

SHORT_REQUEST = 30
"""Words below which a request gets a third part; D.1's requests mostly have 30 to 60."""

_SECOND = (
    "After that I need to {}.",
    "Please also {}.",
    "While you are at it, {} as well.",
    "In the same go, I want to {}.",
)
_THIRD = (
    "And if you can, {} before you hand it back.",
    "Once that is done, I would like to {} too.",
    "In the end somebody has to {}, so leave me something that I can check.",
)
_IMPLICIT = (
    "I keep losing time over {}{}. I do not know how this is done properly; please get me to a result that I can use and check.",
    "People wait for me to sort out {}{}. I have never done this before, so take it off my hands and tell me what you found.",
    "What I have so far for {}{} does not hold up. Help me to something that I can show to others.",
)
_ALSO = (", and the same goes for {}", ", and also {}", ", as well as {}")
_THINGS = 3
"""Capabilities that an implicit rewrite is about: with fewer, too little is left to search by."""


class GraphWriter:
    """Writes from capabilities and parameters of the skill's graph; where a document gives none, as :class:`TextWriter`."""

    def __init__(self) -> None:
        self._plain = TextWriter()

    def requests(self, skill: Skill, count: int) -> list[str]:
        """Pseudo-queries of different capabilities, each followed by one or two more things that the skill does."""
        queries, does = _queries(skill), _actions(skill)
        if not queries:
            return self._plain.requests(skill, count)
        made: dict[str, None] = {}
        for number in range(2 * count):  # twice, for some come out alike
            query = queries[number % len(queries)]
            others = [action for capability, action in does if capability != query.capability_id]
            start = (
                2 * number % len(others) if others else 0
            )  # others than the request before: they must differ in substance
            text = _request(query.query, others[start:] + others[:start], skill.skill_id, number)
            if query_problem(text) is None:
                made.setdefault(text)
            if len(made) == count:
                break
        return list(made) if len(made) == count else self._plain.requests(skill, count)

    def capability(self, skill: Skill, request: str) -> str:
        """The rationale from the two capabilities that share most words with the request."""
        return rationale_of(_closest(skill, request)) or self._plain.capability(skill, request)

    def implicit(self, skill: Skill, request: str) -> str:
        """What the closest capabilities are about, without verbs, tools and the skill's name: a problem in plain words."""
        actions = _closest(skill, request, count=2 * _THINGS)  # twice, for some are about nothing but a tool
        things = list(dict.fromkeys(thing for action in actions if (thing := object_of(action, skill))))
        if not things:
            return self._plain.implicit(skill, request)
        first, others = things[0], " and ".join(things[1:_THINGS])
        number = pick(len(_IMPLICIT), skill.skill_id, request)
        text = _IMPLICIT[number].format(first, _ALSO[number].format(others) if others else "")
        return text if not names_skill(text, skill) else self._plain.implicit(skill, request)

    def compound(self, skills: Sequence[Skill]) -> tuple[str, list[str]]:
        """One part a skill, its first capability that no other part has."""
        needs: list[str] = []
        for skill in skills:
            action = next((action for _, action in _actions(skill) if action not in needs), "")
            if not action:
                return self._plain.compound(skills)
            needs.append(action)
        first, *rest = needs
        steps = ", ".join([*rest[:-1], f"and in the end {rest[-1]}"]) if len(rest) > 1 else f"and then {rest[0]}"
        return f"I have to {first}, {steps}. Give me one result in which all of it fits together.", needs


def _request(first: str, others: Sequence[str], skill_id: str, number: int) -> str:
    text = first
    for frames, action in zip((_SECOND, _THIRD), others, strict=False):
        if frames is _THIRD and len(text.split()) >= SHORT_REQUEST:
            break
        text = f"{text} {frames[pick(len(frames), skill_id, number, action)].format(action)}"
    return text


@lru_cache(maxsize=1024)
def _queries(skill: Skill) -> tuple[PseudoQuery, ...]:
    """The first valid pseudo-query of each capability, then the second of each, ...; none names the skill."""
    graph = parse_skill(skill)
    turns: dict[str, int] = {}
    ranked: list[tuple[int, int, PseudoQuery]] = []
    for query in generate_for_graph(graph, GenerationConfig()):
        if query.valid and not names_skill(query.query, skill):
            turns[query.capability_id] = turn = turns.get(query.capability_id, -1) + 1
            ranked.append((turn, len(ranked), query))
    return tuple(query for *_, query in sorted(ranked, key=lambda row: row[:2]))


@lru_cache(maxsize=1024)
def _actions(skill: Skill) -> tuple[tuple[str, str], ...]:
    """(capability id, what it does as a verb phrase), in the document's order; none names the skill, none twice."""
    found: dict[str, str] = {}
    for capability in parse_skill(skill).capabilities:
        action = _action(capability)
        if len(action.split()) > 2 and action not in found.values() and not names_skill(action, skill):
            found[capability.node_id] = action
    return tuple(found.items())


def _action(capability: Capability) -> str:
    action = action_of(capability.text)
    return "" if action.startswith(NO_VERB) else action


def _closest(skill: Skill, request: str, count: int = 2) -> list[str]:
    """The actions that share most of their words with the request, best first; ties in the document's order."""
    wanted = set(words_of(request))
    scored = [
        (-len(wanted & set(words_of(action))) / len(words_of(action)), number, action)
        for number, (_, action) in enumerate(_actions(skill))
    ]
    return [action for *_, action in sorted(scored)[:count]]
