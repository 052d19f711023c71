"""Templates by rule: bound to a capability, four forms, required slots, the skill's own style, and never its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_pipeline.skill2query.frames import FRAMES, sentence
from data_pipeline.skill2query.grammar import gerund
from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.phrasing import slot_phrase, written_value
from data_pipeline.skill2query.pseudo_query import Form
from data_pipeline.skill2query.style import NEUTRAL, Style, mimic_style, sentence_form
from data_pipeline.skill2query.templates import rule_templates
from data_pipeline.skill2query.wording import MARK, action_of


def skill(*texts: str, name: str = "b", source: str = "list") -> SkillGraph:
    capabilities = tuple(Capability(f"c{i}", text, source) for i, text in enumerate(texts, start=1))
    return SkillGraph("a/b", name, "", capabilities)


def test_four_templates_of_a_capability_have_the_four_forms(seating: SkillGraph) -> None:
    made = rule_templates(seating, mimic_style(seating))
    for capability in ("c1", "c2"):
        assert {t.form for t in made if t.capability_id == capability} == set(Form)


def test_every_required_parameter_has_a_slot_in_every_template(seating: SkillGraph) -> None:
    for template in rule_templates(seating, NEUTRAL, per_capability=8):
        required = {"c1": {"p1", "p2"}, "c2": {"p3"}}[template.capability_id]
        assert required <= {template.slots[mark] for mark in MARK.findall(template.text)}


def test_some_templates_have_optional_parameters_and_some_do_not(seating: SkillGraph) -> None:
    used = [set(t.slots.values()) for t in rule_templates(seating, NEUTRAL) if t.capability_id == "c2"]
    assert {"p3"} in used
    assert any(slots & {"p4", "p5"} for slots in used)


def test_a_template_has_only_parameters_of_its_own_capability(seating: SkillGraph) -> None:
    own = {"c1": {"p1", "p2"}, "c2": {"p3", "p4", "p5"}}
    assert all(set(t.slots.values()) <= own[t.capability_id] for t in rule_templates(seating, NEUTRAL, 8))


def test_a_slot_is_worded_as_in_the_examples(seating: SkillGraph) -> None:
    phrase = slot_phrase(seating.parameters[2], "guest_file", seating, mimic_style(seating))
    assert phrase.text == "for {guest_file}"


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (Parameter("p", "output_path", ParameterType.PATH), "and save the result to {x}"),
        (Parameter("p", "output_dir", ParameterType.PATH), "and save the result in {x}"),
        (Parameter("p", "input_file", ParameterType.PATH), "from {x}"),
        (Parameter("p", "format", ParameterType.STRING, default="pdf"), "in {x} format"),
        (Parameter("p", "maxResults", ParameterType.INTEGER), "with at most {x} results"),
        (Parameter("p", "timeout", ParameterType.INTEGER, unit="seconds"), "with a timeout of {x} seconds"),
        (Parameter("p", "interval", ParameterType.INTEGER, unit="seconds"), "with an interval of {x} seconds"),
        (Parameter("p", "port", ParameterType.INTEGER), "on port {x}"),
        (Parameter("p", "start_date", ParameterType.DATE), "from {x}"),
        (Parameter("p", "end_date", ParameterType.DATE), "until {x}"),
        (Parameter("p", "topic", ParameterType.STRING), "about {x}"),
        (Parameter("p", "city", ParameterType.STRING), "in {x}"),
        (Parameter("p", "api_key", ParameterType.STRING), "with {x}"),
        (Parameter("p", "verbose", ParameterType.BOOLEAN), "{x}"),
    ],
)
def test_a_slot_without_examples_is_worded_by_type_and_name(parameter: Parameter, text: str) -> None:
    assert slot_phrase(parameter, "x", skill("do it"), NEUTRAL).text == text


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("include_titles", "true", "with titles"),
        ("include_titles", "false", "without titles"),
        ("no-cache", "true", "without cache"),
        ("skip_tests", "false", "with tests"),
        ("verbose", "true", "with verbose turned on"),
    ],
)
def test_a_switch_is_said_with_or_without(name: str, value: str, written: str) -> None:
    assert written_value(Parameter("p", name, ParameterType.BOOLEAN), value) == written


def test_a_list_is_said_with_and() -> None:
    assert written_value(Parameter("p", "tags", ParameterType.ARRAY), '["a", "b", "c"]') == "a, b and c"


@pytest.mark.parametrize("form", Form)
def test_every_frame_has_the_form_it_stands_under(form: Form) -> None:
    for number in range(60):
        text = sentence(form, "water ferns", "", NEUTRAL, number)
        if form in (Form.YES_NO, Form.WH):
            assert text.endswith("?")
            assert sentence_form(text) is form or text.startswith("Any idea")
        else:
            assert text.endswith(".")
            assert sentence_form(text) not in (Form.YES_NO, Form.WH)


def test_frames_differ_from_skill_to_skill() -> None:
    firsts = {sentence(Form.WH, "water ferns", "", NEUTRAL, skill_id) for skill_id in range(50)}
    assert len(firsts) > len(FRAMES[Form.WH]) // 2


def test_a_plural_style_speaks_as_we() -> None:
    texts = [t.text for t in rule_templates(skill("water my ferns by hand"), Style(person="we"), 8)]
    assert all("our ferns" in text for text in texts)
    assert not any(f" {word} " in f" {text} " for text in texts for word in ("I", "me", "my", "I'm", "I'd"))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 40)])
def test_politeness_follows_the_style(share: float, expected: int) -> None:
    said = [sentence(Form.YES_NO, "water ferns", "", Style(polite=share), i).lower() for i in range(40)]
    assert sum("could" in text or "would" in text or "please" in text for text in said) == expected


def test_a_long_style_gets_a_second_sentence() -> None:
    text = sentence(Form.WH, "water ferns", "", Style(words=25), 1)
    assert text.count("?") == 1
    assert text.endswith(".")


def test_no_template_names_the_skill() -> None:
    graph = skill("set up fern-care at home", "water all of the green plants", name="fern-care")
    texts = [t.text for t in rule_templates(graph, NEUTRAL)]
    assert len(texts) == 4
    assert not any("fern" in text for text in texts)


def test_a_short_capability_says_what_work_it_is_part_of() -> None:
    described = Capability("c2", "raise ferns indoors", "description")
    graph = SkillGraph("a/b", "b", "", (Capability("c1", "prune leaves", "list"), described))
    texts = [t.text.lower() for t in rule_templates(graph, NEUTRAL) if t.capability_id == "c1"]
    assert len(texts) == 4
    assert all("prun" in text and ("raise ferns indoors" in text or "raising ferns indoors" in text) for text in texts)


def test_the_same_graph_gives_the_same_templates_and_another_seed_others(seating: SkillGraph) -> None:
    first, again, other = (rule_templates(seating, NEUTRAL, 4, seed) for seed in (0, 0, 1))
    assert first == again
    assert [t.text for t in first] != [t.text for t in other]


def test_two_parameters_with_the_same_words_get_marks_of_their_own() -> None:
    parameters = (
        Parameter("p1", "max-size", ParameterType.INTEGER, True),
        Parameter("p2", "maxSize", ParameterType.INTEGER, True),
    )
    edges = tuple(Edge("c1", p.node_id, EdgeType.USES_PARAMETER) for p in parameters)
    template = rule_templates(replace(skill("cut the long grass"), parameters=parameters, edges=edges), NEUTRAL)[0]
    assert template.slots == {"max_size": "p1", "max_size_2": "p2"}


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Extract **tables** from [pages](x.md).", "extract tables from pages"),
        ("water your ferns (twice)", "water my ferns"),
        ("water ferns – every day", "water ferns"),
        ("check alert", "check the alert"),
        ("check alerts", "check alerts"),
        ("water ferns, mosses, ivy", "water ferns, mosses and ivy"),
        ("plan or creating flower beds", "plan or create flower beds"),
        ("build fences, or planting hedges along them", "build fences"),
        ("design and development", ""),
        ("research, persona creation, mapping", ""),
        ("break changes will be documented", ""),
        ("create custom flower component", "create a custom flower component"),
        ("backup seeds", "back up seeds"),
        ("answer 'is it dry' and 'is it wet'", "answer is it dry and is it wet"),
        ("water the ferns' roots", "water the ferns' roots"),
        ("prune, or discuss pruning", "prune or discuss pruning"),
        ("fill {slot}", "fill the slot"),
        ("make X work", ""),
        ("water", ""),
    ],
)
def test_a_capability_becomes_part_of_a_sentence(text: str, action: str) -> None:
    assert action_of(text) == action


def test_a_heading_in_capitals_is_written_small_and_a_sentence_keeps_its_names() -> None:
    assert action_of("Transform Existing Images", heading=True) == "transform existing images"
    assert action_of("transform images with Blender", heading=True) == "transform images with Blender"
    assert action_of("Transform Existing Images") == "transform Existing Images"


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("audit plans", "auditing plans"),
        ("commit plans", "committing plans"),
        ("run", "running"),
        ("monitor it", "monitoring it"),
        ("set up x", "setting up x"),
        ("prune", "pruning"),
    ],
)
def test_gerunds(action: str, expected: str) -> None:
    assert gerund(action) == expected
