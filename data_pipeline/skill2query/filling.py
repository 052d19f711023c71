"""The Param Filler (3.3.3, A.3): slots get values by priority, combinations are capped, every result is checked."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from data_pipeline.skill2query.checking import check, value_problems
from data_pipeline.skill2query.grammar import agree, article
from data_pipeline.skill2query.graph import Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.phrasing import listed, written_value
from data_pipeline.skill2query.pseudo_query import PseudoQuery, Template
from data_pipeline.skill2query.values import OWN, candidates, guessed_parameter
from data_pipeline.skill2query.wording import MARK

METHODS = ("skill2query", "zero_shot", "few_shot", "skillflow")
STRUCTURED = "skill2query"
"""The one method that fills by the graph; the others (A.1) see no parameter schema and fill by a slot's name."""


@dataclass(frozen=True)
class GenerationConfig:
    """What is generated (A.1, A.3). The same configuration and skills give the same bytes."""

    method: str = STRUCTURED
    per_capability: int = 4  # templates of a capability: one of each form
    max_capabilities: int = 0  # of a skill, in the document's order; 0: all
    per_skill: int = 8  # templates that a baseline, which knows no capabilities, writes for a skill
    combinations: int = 3  # pseudo-queries of a template, at most
    seed: int = 0  # of fallback values, sentence frames and few-shot examples

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}; expected one of {', '.join(METHODS)}")
        for key in ("per_capability", "per_skill", "combinations"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; expected at least 1")
        if self.max_capabilities < 0:
            raise ValueError(f"max_capabilities is {self.max_capabilities}; expected at least 0, where 0 means all")


DEFAULTS = GenerationConfig()


def fill(template: Template, graph: SkillGraph, config: GenerationConfig = DEFAULTS) -> list[PseudoQuery]:
    """Up to ``config.combinations`` pseudo-queries of a template, best combination of values first, each with its problems.

    Values that fail a check on their own are not tried while the slot has others: a problem that stays is the document's own.
    """
    marks = list(dict.fromkeys(MARK.findall(template.text)))
    parameters = slot_parameters(template, graph, config.method)
    ranked = [_sound(parameters[mark], candidates(parameters[mark], graph, config.seed)) for mark in marks]
    capability = next((c.text for c in graph.capabilities if c.node_id == template.capability_id), "")
    made: dict[str, PseudoQuery] = {}
    for chosen in combinations(ranked, config.combinations):
        values = dict(zip(marks, chosen, strict=True))
        text = render(template.text, values, parameters)
        if text.lower() in made:
            continue
        made[text.lower()] = PseudoQuery(
            query_id=f"{template.template_id}:{len(made)}",
            skill_id=template.skill_id,
            query=text,
            capability_id=template.capability_id,
            capability=capability,
            template_id=template.template_id,
            template=template.text,
            form=template.form,
            slots=values,
            problems=check(template, values, graph),
            method=config.method,
            writer=template.writer,
        )
    return list(made.values())


def slot_parameters(template: Template, graph: SkillGraph, method: str) -> dict[str, Parameter]:
    """What each slot is filled as: the graph's parameter, or for a baseline (A.3) what its name suggests."""
    known = {parameter.node_id: parameter for parameter in graph.parameters} if method == STRUCTURED else {}
    marks = MARK.findall(template.text)
    return {mark: known.get(template.slots.get(mark, "")) or guessed_parameter(mark) for mark in marks}


def _sound(parameter: Parameter, values: Sequence[str]) -> list[str]:
    return [value for value in values if not value_problems(parameter, value)] or list(values[:1])


def combinations(ranked: Sequence[Sequence[str]], cap: int) -> Iterator[tuple[str, ...]]:
    """Up to ``cap`` different members of the Cartesian product of the slots' candidates, by priority; the product is never built.

    First the best candidate of every slot together, then the second of every slot, and so on (a slot that has fewer starts over):
    A.3's own two examples change both slots at once, and each combination brings new words. What the cap leaves after that is
    filled in the order of the sum of ranks, ties by the ranks themselves, from a heap that holds the border of what was taken.
    Memory and time grow with cap × slots.
    """
    if any(not values for values in ranked):
        return
    seen: set[tuple[int, ...]] = set()
    for step in range(max((len(values) for values in ranked), default=1)):
        ranks = tuple(step % len(values) for values in ranked)
        if len(seen) < cap and ranks not in seen:
            seen.add(ranks)
            yield _at(ranked, ranks)
    for ranks in _by_rank_sum([len(values) for values in ranked]):
        if len(seen) >= cap:
            return
        if ranks not in seen:
            seen.add(ranks)
            yield _at(ranked, ranks)


def _at(ranked: Sequence[Sequence[str]], ranks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(values[rank] for values, rank in zip(ranked, ranks, strict=True))


def _by_rank_sum(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All rank vectors in the order of their sum; each is reached once, by raising no slot before the last one raised."""
    heap: list[tuple[int, tuple[int, ...], int]] = [(0, (0,) * len(sizes), 0)]
    while heap:
        total, ranks, last = heapq.heappop(heap)
        yield ranks
        for slot in range(last, len(sizes)):
            if ranks[slot] + 1 < sizes[slot]:
                heapq.heappush(heap, (total + 1, (*ranks[:slot], ranks[slot] + 1, *ranks[slot + 1 :]), slot))


def render(text: str, values: Mapping[str, str], parameters: Mapping[str, Parameter]) -> str:
    """The template with its values: articles (``an 8-second``) and nouns (``1 person``, ``5 people``) agree with them (A.3)."""
    done, rest = "", text
    while match := MARK.search(rest):
        before, after = done + rest[: match.start()], rest[match.end() :]
        value = values[match[1]]
        parameter = parameters[match[1]]
        written = written_value(parameter, value)
        if re.fullmatch(r"-?\d+(?:\.\d+)?", value) and parameter.type != ParameterType.BOOLEAN:
            before, after = agree(before, value, after)
        before = _with_article(before, written)
        if (
            " " in written
            and _SETTING.search(before)
            and parameter.type == ParameterType.STRING
            and not value.startswith(OWN)
        ):
            written = f'"{written}"'
        done, rest = before + written, after
    return " ".join(_SWITCHES.sub(_one_switch, done + rest).split())


_SWITCHES = re.compile(r"with ([\w -]+?) turned (on|off)(?:,? (?:and )?with [\w -]+? turned \2)+")


def _one_switch(match: re.Match[str]) -> str:
    """``with a turned on with b turned on`` as ``with a and b turned on``."""
    names = re.findall(r"with ([\w -]+?) turned", match[0])
    return f"with {listed(names)} turned {match[2]}"


_SETTING = re.compile(r"(?:\bset to|\bwith|\busing) $")


def _with_article(before: str, written: str) -> str:
    found = re.search(r"(?i)(?<![\w'])(an?)( [\"'`]?)$", before)
    if found is None or not re.match(r"\w", written):
        return before
    right = article(written.split()[0])
    right = right.capitalize() if found[1][0].isupper() else right
    return before[: found.start(1)] + right + found[2]
