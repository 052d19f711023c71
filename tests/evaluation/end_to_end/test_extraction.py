"""Where the final answer stands in a text."""

from __future__ import annotations

import pytest

from evaluation.end_to_end.extraction import clean, extract, strip_thinking


@pytest.mark.parametrize(
    ("text", "answer", "rule"),
    [
        ("First 3.\nANSWER: 7", "7", "marked"),
        ("ANSWER: 6\nWait.\nANSWER: 7", "7", "marked"),
        ("**Final Answer:** 7.", "7", "marked"),
        ("### Answer:\n\n**7**", "7", "marked"),
        ("ANSWER: <answer>\nTherefore, the answer is 7.", "7", "phrase"),
        ("The answer is: **True**.", "True", "phrase"),
        ("So \\boxed{\\frac{1}{2}} it is.", "\\frac{1}{2}", "boxed"),
        ("Thought: done.\nAction: Finish[8:00 PM]", "8:00 PM", "finish"),
        ("Some words.\n\n  Alan M. Davis. \n", "Alan M. Davis", "last_line"),
        ("", "", "none"),
    ],
)
def test_the_final_answer_is_found(text, answer, rule):
    found = extract(text)
    assert (found.text, found.rule) == (answer, rule)


def test_only_a_statement_counts_as_stated():
    assert extract("ANSWER: 7").stated
    assert not extract("7").stated


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<think>ANSWER: 6</think>ANSWER: 7", "ANSWER: 7"),
        ("ANSWER: 6 </think> ANSWER: 7", " ANSWER: 7"),
        ("A <think>that never ends ANSWER: 7", "A "),
    ],
)
def test_thinking_is_no_answer(text, kept):
    assert strip_thinking(text) == kept


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("$7$", "7"),
        ("\\( 7 \\)", "7"),
        ("**`7`**", "7"),
        ("\\text{yes}", "yes"),
        ("1, 2, ...", "1, 2, ..."),
        ("$5 or $6", "$5 or $6"),
    ],
)
def test_an_answer_is_stripped_of_its_dress(text, plain):
    assert clean(text) == plain
