"""How a parameter's value is worked into a sentence: by the skill's own examples, or by name, type and unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from data_pipeline.skill2query.grammar import article, word_set
from data_pipeline.skill2query.graph import Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.style import Style
from data_pipeline.skill2query.values import OWN, array_items, candidates, documented
from data_pipeline.skill2query.wording import name_words, spoken


class Place(IntEnum):
    """Where in the sentence a phrase goes: first what the work is about, at last where its result goes."""

    ABOUT = 0
    SOURCE = 1
    SETTING = 2
    TARGET = 3


@dataclass(frozen=True)
class Phrase:
    """Words with one slot in them, such as ``from {file}``."""

    text: str
    place: Place


_ABOUT = word_set("topic subject theme query keyword keywords term question")
_FOR = word_set(
    """
    user username customer client company organization audience persona recipient owner industry sector domain
    ticker symbol gene protein drug disease compound brand
    """
)
_IN = word_set(
    """
    language lang locale country city location place region timezone currency folder directory database
    """
)
_NAMED = word_set("title headline message comment note prompt caption")
_OUTPUT = word_set("output out dest destination target save export")
_COUNTED = word_set(
    """
    results rows items pages posts articles records examples files images questions slides words tests users
    messages lines columns points tasks threads workers samples steps epochs iterations retries attempts tokens
    characters
    """
)
_LIMITS = word_set("max maximum limit top num number n total count")
_SWITCH = word_set("include enable use with is has show allow should add do want")
_SWITCH_OFF = word_set("no disable skip exclude without ignore omit")


def slot_phrase(parameter: Parameter, mark: str, graph: SkillGraph, style: Style, variant: int = 0) -> Phrase:
    """The phrase of a parameter: as the skill's examples word it (3.3.1) where they do, else by type, name and unit."""
    slot = f"{{{mark}}}"
    words = name_words(parameter.name)
    known = style.slot_phrasings.get(parameter.node_id)
    if known:
        return Phrase(known[variant % len(known)].replace("{}", slot), _place(words))
    return _by_type(parameter, words, slot, graph, variant)


def _place(words: list[str]) -> Place:
    named = set(words)
    return Place.TARGET if named & _OUTPUT else Place.ABOUT if named & _ABOUT else Place.SETTING


def _by_type(parameter: Parameter, words: list[str], slot: str, graph: SkillGraph, variant: int) -> Phrase:
    kind, named, name = parameter.type, set(words), spoken(words)
    if kind == ParameterType.BOOLEAN:
        return Phrase(slot, Place.SETTING)
    if kind != ParameterType.DATE and _deictic(parameter, graph):
        return Phrase(f"with {slot}", Place.SETTING)
    if kind in (ParameterType.INTEGER, ParameterType.NUMBER):
        return Phrase(_number(parameter, words, slot), Place.SETTING)
    if kind == ParameterType.DATE:
        lead = (
            "from"
            if named & {"start", "from", "since", "begin"}
            else "until"
            if named & {"end", "until", "to", "due", "deadline"}
            else "on"
        )
        return Phrase(f"{lead} {slot}", Place.SETTING if lead != "until" else Place.TARGET)
    if (
        named & _OUTPUT
        and kind in (ParameterType.PATH, ParameterType.STRING, ParameterType.URL)
        and "format" not in named
    ):
        return Phrase(
            f"and save the result {'in' if named & {'dir', 'directory', 'folder'} else 'to'} {slot}", Place.TARGET
        )
    if kind == ParameterType.PATH:
        lead = "in" if named & {"dir", "directory", "folder", "root", "workspace"} else ("from", "using")[variant % 2]
        return Phrase(f"{lead} {slot}", Place.SOURCE)
    if kind == ParameterType.URL:
        return Phrase(f"{('for', 'from', 'at')[variant % 3]} {slot}", Place.SOURCE)
    if named & {"format", "filetype", "extension"}:
        return Phrase(f"in {slot} format", Place.TARGET)
    if named & {"mode", "style", "tone"}:
        return Phrase(
            f"in {slot} {words[-1]}" if words[-1] in {"mode", "style"} else f"in a {slot} tone", Place.SETTING
        )
    if named & _ABOUT:
        return Phrase(f"about {slot}" if named & {"topic", "subject", "theme"} else f'for "{slot}"', Place.ABOUT)
    if words[-1:] == ["email"]:
        return Phrase(f"for {slot}", Place.ABOUT)
    if named & _FOR and "id" not in named:
        return Phrase(f"for {slot}", Place.ABOUT)
    if named & _IN and "id" not in named:
        return Phrase(f"in {slot}", Place.SOURCE)
    if named & _NAMED:
        return Phrase(f'with the {name} "{slot}"', Place.SETTING)
    if words[-1:] == ["name"] and len(words) > 1:
        return Phrase(f"for the {spoken(words[:-1])} {slot}", Place.ABOUT)
    if words == ["name"]:
        return Phrase(f"called {slot}", Place.ABOUT)
    if words[-1:] == ["type"] and kind == ParameterType.ENUM:
        return Phrase(f"with {slot} as the {name}", Place.SETTING)
    return Phrase(
        (f"with {slot} as the {name}", f"with the {name} set to {slot}", f"using {slot} for the {name}")[variant % 3],
        Place.SETTING,
    )


def _deictic(parameter: Parameter, graph: SkillGraph) -> bool:
    return not documented(parameter, graph) and candidates(parameter, graph)[0].startswith(OWN)


def _number(parameter: Parameter, words: list[str], slot: str) -> str:
    unit, name = parameter.unit.strip(), spoken(words)
    counted = next((word for word in reversed(words) if word in _COUNTED), "")
    if counted and (words[-1] == counted or words[0] in _LIMITS):
        least = "at most " if set(words) & {"max", "maximum", "limit"} else ""
        kept = [word for word in words if word not in _LIMITS]
        return f"with {least}{slot} {' '.join(kept)}"
    if unit and unit.lower() not in name.lower():
        return f"with {article(name)} {name} of {slot}{' ' if unit.isalpha() else ''}{unit}"
    if words == ["limit"] or words == ["max", "results"]:
        return f"with at most {slot} results"
    if words[-1:] == ["year"] or words[-1:] == ["age"]:
        return f"for {words[-1]} {slot}"
    if words[-1:] == ["port"]:
        return f"on port {slot}"
    return f"with {name} {slot}" if len(words) > 2 else f"with the {name} set to {slot}"


def written_value(parameter: Parameter, value: str) -> str:
    """A value as it stands in the sentence: a switch becomes "with …" or "without …", a list gets its "and"."""
    if parameter.type == ParameterType.BOOLEAN:
        return _switch(name_words(parameter.name), value.lower() in {"true", "yes", "on", "1"})
    if parameter.type == ParameterType.ARRAY and not value.startswith(OWN):
        return listed(array_items(value))
    return value


def _switch(words: list[str], on: bool) -> str:
    if words and words[0] in _SWITCH_OFF and len(words) > 1:
        return f"{'without' if on else 'with'} {spoken(words[1:])}"
    if words and words[0] in _SWITCH and len(words) > 1:
        return f"{'with' if on else 'without'} {spoken(words[1:])}"
    return f"with {spoken(words)} turned {'on' if on else 'off'}"


def joined(phrases: list[Phrase]) -> str:
    """The phrases in a row: what the work is about, then all settings behind one "with", at last where its result goes."""
    ordered = sorted(phrases, key=lambda phrase: phrase.place)
    first = [phrase.text for phrase in ordered if not phrase.text.startswith("with ") and phrase.place != Place.TARGET]
    settings = [phrase.text.removeprefix("with ") for phrase in ordered if phrase.text.startswith("with ")]
    last = [phrase.text for phrase in ordered if not phrase.text.startswith("with ") and phrase.place == Place.TARGET]
    return " ".join([*first, *([f"with {listed(settings)}"] if settings else []), *last])


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
