"""The Param Filler: A.3's own example, priority of values, capped combinations without the product, agreement."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.skill2query.checking import check
from data_pipeline.skill2query.filling import GenerationConfig, combinations, fill, render
from data_pipeline.skill2query.graph import Capability, Edge, EdgeType, Example, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form, Template
from data_pipeline.skill2query.values import candidates, fallbacks

TABLES = "How many ways can I seat {n} people at {k} identical round tables?"


def one(parameter: Parameter, *set_by: str) -> SkillGraph:
    """A graph with one parameter, and an example for each value that one sets."""
    examples = tuple(Example(f"e{i}", value, "request") for i, value in enumerate(set_by))
    edges = tuple(Edge(f"e{i}", parameter.node_id, EdgeType.SETS_PARAMETER, value) for i, value in enumerate(set_by))
    return SkillGraph("a/b", "b", "", (Capability("c1", "do it", "list"),), (parameter,), examples, edges)


def numbers(text: str, **values: str) -> str:
    return render(text, values, {mark: Parameter("p", mark, ParameterType.INTEGER) for mark in values})


def test_the_round_tables_of_the_paper(seating: SkillGraph) -> None:
    template = Template("t", "events/table-planner", "c1", Form.WH, TABLES, {"n": "p1", "k": "p2"})
    made = fill(template, seating, GenerationConfig(combinations=9))
    queries = [query.query for query in made]
    assert queries[0] == "How many ways can I seat 1 person at 1 identical round table?"
    assert "How many ways can I seat 5 people at 2 identical round tables?" in queries
    assert all(query.valid for query in made)


def test_a_pseudo_query_can_be_traced(seating: SkillGraph) -> None:
    template = Template("t7", "events/table-planner", "c1", Form.WH, TABLES, {"n": "p1", "k": "p2"}, "somebody")
    query = fill(template, seating)[0]
    assert (query.skill_id, query.capability_id, query.capability) == (
        "events/table-planner",
        "c1",
        "seat guests at round tables",
    )
    assert (query.template_id, query.template, query.form, query.writer) == ("t7", TABLES, Form.WH, "somebody")
    assert query.slots == {"n": "1", "k": "1"}
    assert query.problems == ()


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("Book {n} rooms.", {"n": "1"}, "Book 1 room."),
        ("Book {n} room.", {"n": "3"}, "Book 3 rooms."),
        ("Ask {n} child, please.", {"n": "4"}, "Ask 4 children, please."),
        ("There are {n} people in it.", {"n": "1"}, "There is 1 person in it."),
        ("Wait with a {n} second timeout.", {"n": "30"}, "Wait with a 30 second timeout."),
        ("Wait with a {n}-second timeout.", {"n": "8"}, "Wait with an 8-second timeout."),
        ("Wait with a timeout of {n} seconds.", {"n": "1"}, "Wait with a timeout of 1 second."),
        (
            "Set the width to {n} and the height to {k}.",
            {"n": "1", "k": "2"},
            "Set the width to 1 and the height to 2.",
        ),
        ("Keep at most {n} results from the search.", {"n": "1"}, "Keep at most 1 result from the search."),
        ("Check {n} glass.", {"n": "1"}, "Check 1 glass."),
        ("Is it {n}?", {"n": "5"}, "Is it 5?"),
    ],
)
def test_numbers_and_what_they_count_agree(text: str, values: dict[str, str], expected: str) -> None:
    assert numbers(text, **values) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("HTML", "an HTML file"),
        ("PDF", "a PDF file"),
        ("url", "a url file"),
        ("18", "an 18 file"),
        ("hourly", "an hourly file"),
    ],
)
def test_the_article_fits_the_value(value: str, expected: str) -> None:
    assert render("a {x} file", {"x": value}, {"x": Parameter("p", "x")}) == expected


def test_a_value_with_braces_is_not_filled_again() -> None:
    parameters = {"x": Parameter("p", "x"), "y": Parameter("q", "y")}
    assert render("Do {x} with {y}.", {"x": "{y}", "y": "care"}, parameters) == "Do {y} with care."


def test_values_come_in_the_order_of_their_sources() -> None:
    parameter = Parameter(
        "p",
        "level",
        ParameterType.STRING,
        False,
        "mid",
        ("low", "high"),
        examples=("top",),
        description='such as "peak"',
    )
    assert candidates(parameter, one(parameter, "huge")) == ["huge", "low", "high", "mid", "top", "peak"]


def test_a_range_gives_its_ends_and_middle() -> None:
    parameter = Parameter("p", "level", ParameterType.INTEGER, minimum=1, maximum=9)
    assert candidates(parameter, one(parameter)) == ["1", "5", "9"]


@pytest.mark.parametrize(
    "raw", ["None", "<your-key>", "process.env.X", "YOUR_NAME", "...", "foo(bar)", "x" * 61, "a\nb", "string"]
)
def test_placeholders_and_code_are_no_values(raw: str) -> None:
    parameter = Parameter("p", "topic", default=raw)
    assert raw not in candidates(parameter, one(parameter))


@pytest.mark.parametrize(
    ("parameter", "fits"),
    [
        (Parameter("p", "csv_file", ParameterType.PATH), lambda v: v.endswith(".csv")),
        (Parameter("p", "input", ParameterType.PATH, description="The video to cut"), lambda v: v.endswith(".mp4")),
        (Parameter("p", "output_dir", ParameterType.PATH), lambda v: "." not in v),
        (Parameter("p", "page_url", ParameterType.URL), lambda v: v.startswith("https://example.com/")),
        (Parameter("p", "due_date", ParameterType.DATE), lambda v: len(v) == 10 and v[4] == "-"),
        (Parameter("p", "port", ParameterType.INTEGER), lambda v: 1000 < int(v) < 65536),
        (Parameter("p", "temperature", ParameterType.NUMBER), lambda v: 0 <= float(v) <= 2),
        (Parameter("p", "apiToken", ParameterType.STRING), lambda v: v == "my API token"),
        (Parameter("p", "email", ParameterType.STRING), lambda v: v.endswith("@example.com")),
        (Parameter("p", "frobnication", ParameterType.STRING), lambda v: v == "my frobnication"),
    ],
)
def test_fallbacks_fit_name_and_type(parameter: Parameter, fits) -> None:
    found = fallbacks(parameter, one(parameter))
    assert found
    assert all(fits(value) for value in found)


def test_a_documented_value_that_breaks_the_schema_is_passed_over() -> None:
    parameter = Parameter("p", "level", ParameterType.INTEGER, default="12", maximum=9, minimum=2)
    query = fill(Template("t", "a/b", "c1", Form.IMPERATIVE, "Do {x}.", {"x": "p"}), one(parameter))[0]
    assert query.slots == {"x": "2"}


def test_where_no_value_is_sound_the_problem_stays() -> None:
    parameter = Parameter("p", "level", ParameterType.INTEGER, default="lots", required=True)
    query = fill(Template("t", "a/b", "c1", Form.IMPERATIVE, "Do {x}.", {"x": "p"}), one(parameter))[0]
    assert query.problems == ("type: level = 'lots' is not a whole number",)


def test_the_best_values_of_all_slots_come_first_then_the_second_of_all() -> None:
    ranked = [["a1", "a2", "a3"], ["b1", "b2"]]
    assert list(combinations(ranked, 3)) == [("a1", "b1"), ("a2", "b2"), ("a3", "b1")]


def test_after_the_diagonal_the_rest_follows_by_the_sum_of_ranks() -> None:
    ranked = [["a1", "a2"], ["b1", "b2"]]
    assert list(combinations(ranked, 9)) == [("a1", "b1"), ("a2", "b2"), ("a1", "b2"), ("a2", "b1")]


def test_ten_slots_of_fifty_values_take_no_time_and_no_product() -> None:
    ranked = [[f"{slot}.{value}" for value in range(50)] for slot in range(10)]  # 50**10 combinations
    started = time.perf_counter()
    found = list(combinations(ranked, 200))
    assert time.perf_counter() - started < 2
    assert len(set(found)) == 200


def test_a_template_without_slots_gives_one_query(seating: SkillGraph) -> None:
    made = fill(Template("t", seating.skill_id, "c2", Form.IMPERATIVE, "Print cards."), seating)
    assert [query.query for query in made] == ["Print cards."]
    assert made[0].problems == ("required: guest_file has no slot",)


def test_a_baseline_fills_by_the_name_of_the_slot_alone(seating: SkillGraph) -> None:
    template = Template("t", seating.skill_id, "", Form.IMPERATIVE, "Print {format} cards.", {"format": "p4"})
    structured = fill(template, seating)[0].slots["format"]
    guessed = fill(template, seating, GenerationConfig(method="zero_shot"))[0].slots["format"]
    assert structured == "svg"
    assert guessed == "my format"


@pytest.mark.parametrize(
    ("key", "value"), [("method", "magic"), ("per_capability", 0), ("combinations", 0), ("max_capabilities", -1)]
)
def test_a_configuration_that_cannot_work_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key} is {value!r}; expected"):
        GenerationConfig(**{key: value})  # type: ignore[arg-type]


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(sizes=SIZES, cap=st.integers(1, 300))
def test_combinations_are_different_members_of_the_product_and_as_many_as_there_are(sizes: list[int], cap: int) -> None:
    ranked = [[f"{slot}.{value}" for value in range(size)] for slot, size in enumerate(sizes)]
    product = set(itertools.product(*ranked))
    found = list(combinations(ranked, cap))
    assert len(found) == len(set(found)) == min(cap, len(product))
    assert set(found) <= product
    assert found[0] == tuple(values[0] for values in ranked)


PARAMETERS = st.builds(
    Parameter,
    st.just("p"),
    st.sampled_from(["limit", "api_key", "outputPath", "include_all", "topic", "start-date", "frob"]),
    st.sampled_from([k for k in ParameterType if k is not ParameterType.ENUM]),
    st.booleans(),
    st.none() | st.text(max_size=12),
    examples=st.lists(st.text(max_size=12), max_size=3).map(tuple),
    description=st.text(max_size=30),
)


@given(parameter=PARAMETERS, cap=st.integers(1, 5))
def test_whatever_the_document_says_queries_are_one_line_and_stored_problems_are_the_checks(
    parameter: Parameter, cap: int
) -> None:
    graph = one(parameter)
    template = Template("t", "a/b", "c1", Form.IMPERATIVE, "Do it with {x}.", {"x": "p"})
    made = fill(template, graph, GenerationConfig(combinations=cap))
    assert 1 <= len(made) <= cap
    for query in made:
        assert "\n" not in query.query
        assert query.query.strip() == query.query
        assert query.problems == check(template, query.slots, graph)


@given(low=st.integers(-50, 50), width=st.integers(0, 100))
def test_values_of_a_bare_range_always_pass(low: int, width: int) -> None:
    parameter = Parameter("p", "level", ParameterType.INTEGER, True, minimum=low, maximum=low + width)
    template = Template("t", "a/b", "c1", Form.IMPERATIVE, "Do {x}.", {"x": "p"})
    assert all(query.valid for query in fill(template, one(parameter), GenerationConfig(combinations=5)))
