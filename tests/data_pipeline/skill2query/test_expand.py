"""Variants of a request from a seed skill, and the fusion of their rankings."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from data_pipeline.skill2query.expand import ExpandedRetriever, expand, seeds_of, value_in
from data_pipeline.skill2query.graph import Capability, Parameter, ParameterType, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form, PseudoQuery
from retrieval import BM25Index, Ranking

NIGHTS = Parameter("p1", "nights", ParameterType.INTEGER, minimum=1, maximum=14)
UNIT = Parameter("p2", "unit", ParameterType.ENUM, values=("celsius", "fahrenheit"))
GRAPH = SkillGraph(
    "garden/frost",
    "frost",
    "Warns of cold nights.",
    (Capability("c1", "warn of frost", "list"), Capability("c2", "list the warmest beds", "list")),
    (NIGHTS, UNIT),
)


def query(text: str, capability: str, template: str = "", slots: dict[str, str] | None = None, number: int = 0):
    chosen = next(c for c in GRAPH.capabilities if c.node_id == capability)
    name = f"{capability}-{number}"
    return PseudoQuery(
        name, GRAPH.skill_id, text, capability, chosen.text, name, template or text, Form.IMPERATIVE, slots or {}
    )


FROST = query("Warn me of frost for 3 nights.", "c1", "Warn me of frost for {nights} nights.", {"nights": "3"})
BEDS = query("List the warmest beds.", "c2")
SEED = (GRAPH, [BEDS, FROST])


def test_the_capability_nearest_to_the_request_comes_first() -> None:
    request = "Will there be frost tonight?"
    assert expand(request, SEED, 1) == [f"{request} Warn me of frost for 3 nights."]
    assert expand("Which are the warmest beds?", SEED, 1) == ["Which are the warmest beds? List the warmest beds."]


def test_slots_take_what_the_request_says() -> None:
    assert expand("Is frost likely within 5 nights?", SEED, 1)[0].endswith("Warn me of frost for 5 nights.")


def test_a_value_out_of_range_is_not_taken() -> None:
    assert expand("Is frost likely within 90 nights?", SEED, 1)[0].endswith("Warn me of frost for 3 nights.")


def test_a_template_is_used_once() -> None:
    again = query("Warn me of frost for 4 nights.", "c1", FROST.template, {"nights": "4"})
    assert len(expand("frost", (GRAPH, [FROST, again]), 5)) == 1


def test_a_seed_without_pseudo_queries_gives_no_variant() -> None:
    assert expand("frost", (GRAPH, []), 3) == []


@pytest.mark.parametrize(
    ("request_text", "parameter", "expected"),
    [
        ("in Fahrenheit please", UNIT, "fahrenheit"),
        ("in kelvin please", UNIT, None),
        ("for 7 nights", NIGHTS, "7"),
        ("with v1.2 of it", NIGHTS, None),
        ("read notes/plan.csv", Parameter("p", "file", ParameterType.PATH), "notes/plan.csv"),
        ("from https://example.org/a, now", Parameter("p", "page", ParameterType.URL), "https://example.org/a"),
        ("since 2024-03-01", Parameter("p", "start", ParameterType.DATE), "2024-03-01"),
        ("for the north field", Parameter("p", "field", examples=("north field", "north")), "north field"),
        ("for the north field", Parameter("p", "field"), None),
    ],
)
def test_values_found_in_a_request(request_text: str, parameter: Parameter, expected: str | None) -> None:
    assert value_in(request_text, parameter) == expected


class Lists:
    """A retriever that answers from a table and keeps what it was asked."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers, self.asked = answers, []

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        self.asked.append((list(queries), k))
        rows = [self.answers[query][:k] for query in queries]
        return Ranking(rows, np.zeros((len(rows), max(map(len, rows), default=0))))


def test_request_and_variants_are_fused_by_their_reciprocal_ranks() -> None:
    variant = expand("frost", SEED, 1)[0]
    lists = Lists({"frost": ["garden/frost", "a", "b"], variant: ["b", "garden/frost"]})
    found = ExpandedRetriever(lists, {"garden/frost": SEED}.get, variants=1).search(["frost"], 2)
    first = Fraction(1, 61) + Fraction(1, 62)
    second = Fraction(1, 63) + Fraction(1, 61)
    assert found.ids == [["garden/frost", "b"]]
    np.testing.assert_allclose(found.scores[0], [float(first), float(second)], rtol=1e-12)


def test_two_requests_keep_their_own_variants() -> None:
    variant = expand("frost", SEED, 1)[0]
    lists = Lists({"frost": ["garden/frost", "a"], "rain": ["c", "d"], variant: ["a", "garden/frost"]})
    found = ExpandedRetriever(lists, {"garden/frost": SEED}.get, variants=1).search(["rain", "frost"], 2)
    assert found.ids[0] == ["c", "d"]
    assert set(found.ids[1]) == {"garden/frost", "a"}
    assert lists.asked == [(["rain", "frost"], 100), ([variant], 100)]


def test_several_seeds_give_their_variants_in_the_order_they_were_found() -> None:
    other = SkillGraph("garden/rain", "rain", "")
    seeds = {
        "garden/frost": (GRAPH, [FROST]),
        "garden/rain": (other, [query("Sum up the frost days.", "c1", number=9)]),
    }
    names = [text for seed in ("garden/rain", "garden/frost") for text in expand("frost", seeds[seed], 1)]
    lists = Lists({"frost": ["garden/rain", "garden/frost"], **{name: ["garden/frost"] for name in names}})
    ExpandedRetriever(lists, seeds.get, variants=1, seeds=2).search(["frost"], 1)
    assert lists.asked[1][0] == names


def test_documents_without_a_word_of_the_request_earn_nothing() -> None:
    index = BM25Index(["a", "garden/frost"], ["rain", "frost night"])
    assert ExpandedRetriever(index, lambda skill_id: None).search(["frost"], 2).ids == [["garden/frost"]]


def test_seeds_need_pseudo_queries_of_their_own() -> None:
    assert seeds_of([GRAPH, SkillGraph("garden/rain", "rain", "")], [FROST]) == {"garden/frost": (GRAPH, [FROST])}
