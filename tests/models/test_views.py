"""The exact strings the model reads, letter by letter: a changed space would silently cost recall."""

from __future__ import annotations

import pytest

from models.views import (
    document_view,
    format_of_document,
    privileged_view,
    rationale_prompt,
    raw_view,
    serialize_document,
    teacher_view,
)

INSTRUCTION = (
    "Instruct: Given a task description, retrieve the most relevant skill document that would help an agent complete "
    "the task"
)
REQUEST = "Draw a chart of my sales"
RATIONALE = "The user needs skills for chart drawing."


def test_raw_view():
    assert raw_view(REQUEST).text == f"{INSTRUCTION}\nQuery:Draw a chart of my sales"


def test_privileged_view():
    assert privileged_view(REQUEST, RATIONALE).text == (
        f"{INSTRUCTION}\nQuery:Draw a chart of my sales\nQuery analysis:The user needs skills for chart drawing.\n"
        "In summary, the retrieval representation for this task is:"
    )


def test_teacher_view():
    assert teacher_view(REQUEST, RATIONALE).text == (
        f"{INSTRUCTION}\nQuery:Draw a chart of my sales\nQuery analysis:The user needs skills for chart drawing.\n"
        "Based on the user task and the analysis above, retrieve the most relevant skill document that would help the agent "
        "complete the task."
    )


def test_an_empty_rationale_keeps_its_label():
    assert privileged_view(REQUEST, "").text == (
        f"{INSTRUCTION}\nQuery:Draw a chart of my sales\nQuery analysis:\n"
        "In summary, the retrieval representation for this task is:"
    )


def test_a_document_is_serialized_with_its_parts_cut_to_300_and_2500_characters():
    text = serialize_document("n" * 400, "d" * 299 + "éX", "b" * 2499 + "文X")
    assert text == "n" * 400 + " | " + "d" * 299 + "é" + " | " + "b" * 2499 + "文"


def test_a_short_document_is_serialized_whole():
    assert serialize_document("chart-maker", "Makes charts", "# Chart") == "chart-maker | Makes charts | # Chart"


def test_a_document_carries_no_instruction():
    assert document_view("chart-maker | Makes charts | # Chart").text == "chart-maker | Makes charts | # Chart"


def test_the_rationale_prompt_is_the_papers_without_the_known_capability():
    assert rationale_prompt(REQUEST).text == (
        "Given a user task, write one concise query-analysis sentence for skill retrieval.\n"
        "\n"
        "Requirements:\n"
        "- State only the capabilities required by the user.\n"
        "- Do not provide implementation steps, an extended explanation, or an answer to the task.\n"
        "- Do not mention skill names or skill IDs.\n"
        "- Do not output JSON, markdown, bullets, numbered steps, or labels.\n"
        '- Use exactly this sentence pattern: "The user needs skills for <capability description>."\n'
        "- Keep the sentence under 32 words.\n"
        "\n"
        "USER TASK:\n"
        "Draw a chart of my sales\n"
        "\n"
        "QUERY ANALYSIS:\n"
    )


def test_the_short_rationale_prompt():
    assert rationale_prompt(REQUEST, "short").text == "USER TASK:\nDraw a chart of my sales\n\nQUERY ANALYSIS:\n"


def test_an_unknown_prompt_style_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'long'.*\['paper', 'short'\]"):
        rationale_prompt(REQUEST, "long")


# -- document formats ------------------------------------------------------------------------------------------------------


def test_the_lines_of_skill2query():
    text = serialize_document("chart", "d" * 301, "b" * 2501, "skill2query")
    assert text == f"Name: chart\nDescription: {'d' * 300}\nBody: {'b' * 2500}"


@pytest.mark.parametrize(
    ("document_format", "expected"),
    [("skillreason", ("chart", "chart | draws")), ("skill2query", ("Name: chart", "Name: chart\nDescription: draws"))],
)
def test_parts_that_are_left_out_take_their_separator_along(document_format: str, expected: tuple[str, str]):
    assert serialize_document("chart", document_format=document_format) == expected[0]
    assert serialize_document("chart", "draws", document_format=document_format) == expected[1]


def test_the_characters_kept_of_each_part_can_be_given():
    assert serialize_document("c", "dddd", "bbbb", description_chars=2, body_chars=3) == "c | dd | bbb"


@pytest.mark.parametrize("document_format", ["skillreason", "skill2query"])
def test_a_document_shows_its_format(document_format: str):
    for parts in (("chart",), ("chart", "draws"), ("chart", "", "Name: x\nDescription: y")):
        assert format_of_document(serialize_document(*parts, document_format=document_format)) == document_format


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="document format 'plain'; expected one of skillreason, skill2query"):
        serialize_document("a", "b", "c", "plain")
