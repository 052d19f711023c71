"""The Style Mimicker: what it reads off usage examples, and what it does without any."""

from __future__ import annotations

import pytest

from data_pipeline.skill2query.graph import Edge, EdgeType, Example, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form
from data_pipeline.skill2query.style import NEUTRAL, mimic_style, sentence_form


def graph_of(*requests: str, parameters: tuple[Parameter, ...] = (), edges: tuple[Edge, ...] = ()) -> SkillGraph:
    examples = tuple(Example(f"e{i}", text, "request") for i, text in enumerate(requests, start=1))
    return SkillGraph("a/b", "b", "", parameters=parameters, examples=examples, edges=edges)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Water the ferns.", Form.IMPERATIVE),
        ("Please, water the ferns.", Form.IMPERATIVE),
        ("Hi, can you water the ferns?", Form.YES_NO),
        ("is there a way to water ferns?", Form.YES_NO),
        ("How often do ferns need water?", Form.WH),
        ("What's wrong with my fern?", Form.WH),
        ("I want my ferns watered.", Form.INDIRECT),
        ("We'd like dry feet.", Form.INDIRECT),
    ],
)
def test_the_form_of_a_sentence_is_read_from_how_it_begins(text: str, form: Form) -> None:
    assert sentence_form(text) is form


def test_length_is_the_median_of_the_words() -> None:
    assert mimic_style(graph_of("a b c", "a b c d e", "a b c d e f g h i")).words == 5


def test_politeness_is_a_share_of_the_examples() -> None:
    style = mimic_style(graph_of("Please water it", "Could you water it?", "Water it", "Water it now"))
    assert style.polite == 0.5


def test_forms_are_counted() -> None:
    style = mimic_style(graph_of("Water it", "How do I water it?", "How can I water it?"))
    assert style.forms == {Form.IMPERATIVE: 1, Form.WH: 2}


@pytest.mark.parametrize(
    ("requests", "person"),
    [
        (["I need water", "Water my fern"], "I"),
        (["We need water", "our fern is dry", "I wait"], "we"),
        (["Water it"], ""),
    ],
)
def test_who_speaks(requests: list[str], person: str) -> None:
    assert mimic_style(graph_of(*requests)).person == person


@pytest.mark.parametrize(
    ("request_text", "name", "value", "unit", "phrasing"),
    [
        ("Save the plan in pdf format", "format", "pdf", "", "in {} format"),
        ("Copy it to /srv/plans please", "target", "/srv/plans", "", "to {}"),
        ("Fetch it with a 30-second timeout.", "timeout", "30", "seconds", "with a {}-second timeout"),
        ("Draw it with the width 80", "width", "80", "", "with the width {}"),
    ],
)
def test_a_slot_is_phrased_as_the_example_introduces_its_value(
    request_text: str, name: str, value: str, unit: str, phrasing: str
) -> None:
    parameter = Parameter("p1", name, ParameterType.STRING, unit=unit)
    edge = Edge("e1", "p1", EdgeType.SETS_PARAMETER, value)
    style = mimic_style(graph_of(request_text, parameters=(parameter,), edges=(edge,)))
    assert style.slot_phrasings == {"p1": (phrasing,)}


def test_words_that_belong_to_one_example_make_no_phrasing() -> None:
    edge = Edge("e1", "p1", EdgeType.SETS_PARAMETER, "pdf")
    style = mimic_style(graph_of("Turn it into nice pdf", parameters=(Parameter("p1", "format"),), edges=(edge,)))
    assert style.slot_phrasings == {}


def test_the_examples_themselves_are_kept_as_references() -> None:
    assert mimic_style(graph_of("Water  the\nferns")).examples == ("Water the ferns",)


def test_without_requests_the_style_is_the_neutral_one() -> None:
    commands = SkillGraph("a/b", "b", "", examples=(Example("e1", "water --ferns", "command"),))
    assert mimic_style(commands) is NEUTRAL
    assert NEUTRAL.neutral
    assert not mimic_style(graph_of("Water it")).neutral
