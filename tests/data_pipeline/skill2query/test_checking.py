"""Static validation: each of the five checks alone, and a property: what the filler takes from the schema passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.skill2query.checking import check, value_problems
from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form, Template


def template(text: str, capability: str = "c1", **slots: str) -> Template:
    return Template("t", "events/table-planner", capability, Form.IMPERATIVE, text, slots)


def test_a_sound_filling_has_no_problem(seating: SkillGraph) -> None:
    assert check(template("Seat {n} at {k}.", n="p1", k="p2"), {"n": "5", "k": "2"}, seating) == ()


def test_an_invented_slot_fails_the_name_check(seating: SkillGraph) -> None:
    found = check(
        template("Seat {n} at {k} by {hour}.", n="p1", k="p2", hour=""), {"n": "1", "k": "1", "hour": "8"}, seating
    )
    assert found == ("name: {hour} is no parameter of the skill",)


def test_a_slot_without_a_value_and_a_value_without_a_slot_fail_the_name_check(seating: SkillGraph) -> None:
    found = check(template("Seat {n} at {k}.", n="p1", k="p2"), {"n": "1", "m": "1"}, seating)
    assert found == (
        "name: {k} has no value",
        "name: a value for {m}, which the template lacks",
        "required: k has no slot",
    )


def test_a_missing_required_parameter_is_named(seating: SkillGraph) -> None:
    assert check(template("Seat {n} guests.", n="p1"), {"n": "1"}, seating) == ("required: k has no slot",)


def test_required_parameters_of_other_capabilities_do_not_count(seating: SkillGraph) -> None:
    assert check(template("Print cards for {f}.", "c2", f="p3"), {"f": "guests.csv"}, seating) == ()


def test_a_template_without_capability_needs_those_of_one_capability(seating: SkillGraph) -> None:
    assert check(template("Print cards for {f}.", "", f="p3"), {"f": "a.csv"}, seating) == ()
    assert check(template("Print cards.", ""), {}, seating) == ("required: guest_file has no slot",)


def test_a_skill_without_capabilities_needs_all_its_required_parameters() -> None:
    graph = SkillGraph(
        "a/b", "b", "", parameters=(Parameter("p1", "x", required=True), Parameter("p2", "y", required=True))
    )
    assert check(template("Do {x}.", "", x="p1"), {"x": "it"}, graph) == ("required: y has no slot",)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (ParameterType.INTEGER, ["3", "-3", "4.0"], ["3.5", "three", "", "nan", "my count"]),
        (ParameterType.NUMBER, ["3.5", "1e-3", "7", "100,000"], ["a lot", "inf", "1,00"]),
        (ParameterType.BOOLEAN, ["true", "No", "on", "0"], ["maybe", "2", "my flag"]),
        (ParameterType.URL, ["https://example.com/a", "my website"], ["example", "https:// example.com", "/a/b"]),
        (ParameterType.PATH, ["a/b.csv", "notes.md", "my folder"], ["https://example.com/a.csv", " "]),
        (
            ParameterType.DATE,
            ["2025-03-01", "last week", "7d", "March 2025", "2025-03-01T10:00:00Z"],
            ["soon", "2025-13-01"],
        ),
        (ParameterType.ARRAY, ["a, b", '["a"]', "my tags"], [",", "[]"]),
        (ParameterType.OBJECT, ['{"a": 1}', "my settings"], ["[1]", "a: 1"]),
        (ParameterType.STRING, ["anything"], ["", "  "]),
    ],
)
def test_types(kind: ParameterType, good: list[str], bad: list[str]) -> None:
    parameter = Parameter("p", "x", kind)
    assert [value for value in good if value_problems(parameter, value)] == []
    assert [value_problems(parameter, value)[0].partition(":")[0] for value in bad] == ["type"] * len(bad)


@pytest.mark.parametrize(("value", "fails"), [("0", True), ("1", False), ("5", False), ("6", True), ("2.5", False)])
def test_both_ends_of_a_range_belong_to_it(value: str, fails: bool) -> None:
    found = value_problems(Parameter("p", "x", ParameterType.NUMBER, minimum=1, maximum=5), value)
    assert found == ([f"range: x = {value} is outside 1 to 5"] if fails else [])


def test_an_open_range_has_one_end() -> None:
    assert value_problems(Parameter("p", "x", ParameterType.NUMBER, minimum=1), "0.5") == [
        "range: x = 0.5 is outside 1 to ∞"
    ]


def test_an_enumerated_value_is_spelled_as_in_the_document() -> None:
    parameter = Parameter("p", "format", ParameterType.ENUM, values=("pdf", "svg"))
    assert value_problems(parameter, "pdf") == []
    assert value_problems(parameter, "PDF") == ["enum: format = 'PDF' is none of pdf, svg"]


def test_each_item_of_a_list_is_one_of_the_enumerated_values() -> None:
    parameter = Parameter("p", "formats", ParameterType.ARRAY, values=("pdf", "svg"))
    assert value_problems(parameter, "svg, pdf") == []
    assert value_problems(parameter, "svg, png")[0].startswith("enum:")


@given(
    low=st.integers(-1000, 1000),
    width=st.integers(0, 500),
    offset=st.integers(-600, 1100),
)
def test_the_range_check_agrees_with_arithmetic(low: int, width: int, offset: int) -> None:
    value = low + offset
    parameter = Parameter("p", "x", ParameterType.INTEGER, minimum=low, maximum=low + width)
    assert bool(value_problems(parameter, str(value))) is not (low <= value <= low + width)


@given(
    required=st.sets(st.integers(0, 5)),
    given_slots=st.sets(st.integers(0, 5)),
)
def test_exactly_the_required_parameters_without_a_slot_are_reported(required: set[int], given_slots: set[int]) -> None:
    parameters = tuple(Parameter(f"p{i}", f"name{i}", required=i in required) for i in range(6))
    edges = tuple(Edge("c1", p.node_id, EdgeType.USES_PARAMETER) for p in parameters)
    graph = SkillGraph("a/b", "b", "", (Capability("c1", "do it", "list"),), parameters, edges=edges)
    marks = {f"s{i}": f"p{i}" for i in given_slots}
    text = "Do it " + " ".join(f"{{{mark}}}" for mark in marks)
    found = check(template(text, **marks), dict.fromkeys(marks, "value"), graph)
    assert set(found) == {f"required: name{i} has no slot" for i in required - given_slots}
