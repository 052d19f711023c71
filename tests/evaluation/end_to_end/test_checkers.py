"""The suites' checkers against cases worked out by hand."""

from __future__ import annotations

import pytest

from evaluation.end_to_end.checkers import check

MCQA = "Which?\n  choice_1: It snows.\n  choice_2: The road is wet."


@pytest.mark.parametrize(
    ("kind", "gold", "text", "status"),
    [
        ("integer", "7", "ANSWER: 7", "correct"),
        ("integer", "7", "ANSWER: 7.4", "correct"),  # whole numbers are compared after rounding
        ("integer", "7", "ANSWER: 8", "wrong"),
        ("float", "0.25", "ANSWER: 0.2599", "correct"),  # 4% of 0.25 are 0.01
        ("float", "0.25", "ANSWER: 0.2601", "wrong"),
        ("float", "-2.5", "ANSWER: -2.41", "correct"),
        ("float", "23.0", "ANSWER: 22", "wrong"),  # 22 is within 4%, but 23 is whole
        ("float", "0.25", "ANSWER: \\frac{1}{4}", "correct"),
        ("float", "0.25", "ANSWER: a quarter", "unparsable"),
        ("float", "0.25", "The answer is 0.25. That follows from the mean.", "correct"),
        ("bool", "True", "ANSWER: Yes", "correct"),
        ("bool", "False", "ANSWER: it is false", "correct"),
        ("bool", "True", "ANSWER: False", "wrong"),
        ("bool", "True", "ANSWER: unknown", "unparsable"),
        ("option", "(b)", "ANSWER: (B)", "correct"),
        ("option", "(b)", "ANSWER: b", "correct"),
        ("option", "(b)", "ANSWER: (a)", "wrong"),
        ("option", "(b)", "ANSWER: 2", "unparsable"),
        ("list of integer", "[1, 2, 2]", "ANSWER: (2, 1, 2)", "correct"),
        ("list of integer", "[1, 2, 2]", "ANSWER: [1, 2]", "wrong"),
        ("list of integer", "[1, 2]", "ANSWER: x = [1, 2]", "correct"),
        ("list of integer", "[1, 2]", "ANSWER: x=1, y=2", "correct"),
        ("list of float", "[0.333, 0.25]", "ANSWER: [1/4, 1/3]", "correct"),
        ("list of float", "[0.333, 0.25]", "ANSWER: []", "unparsable"),
        ("integer", "7", "We get\n7", "correct"),
        ("integer", "7", "We get\n8", "unparsable"),  # nobody said that this is the answer
        ("integer", "7", "", "unparsable"),
        ("integer", "7", "<think>It is 7. ANSWER: 7", "unparsable"),
    ],
)
def test_theoremqa(make_task, kind, gold, text, status):
    assert check(make_task("theoremqa", answer=gold, answer_type=kind), text).status == status


@pytest.mark.parametrize(
    ("gold", "text", "status"),
    [
        ("n(n+1)/2", "ANSWER: (n^2 + n)/2", "correct"),
        ("n(n+1)/2", "ANSWER: n^2/2", "wrong"),
        ("2*C(10, 5), or equivalently 504", "ANSWER: 504", "correct"),
        ("5/14, or approximately 35.7%", "ANSWER: 5/14", "correct"),
        ("0 is the only possible value", "ANSWER: 0", "correct"),
        ("The only possible value for the limit is 4", "ANSWER: 4", "correct"),
        ("100 (i.e., all values)", "ANSWER: 100", "correct"),
        ("No integer solutions", "ANSWER: There are no", "wrong"),
        ("No integer solutions", "ANSWER: no solutions", "correct"),
        ("Yes", "ANSWER: true", "correct"),
        ("No", "ANSWER: Yes", "wrong"),
        ("p=3, q=2 and p=5, q=3", "ANSWER: p=3, q=2 and p=5, q=3.", "correct"),
        ("2178", "ANSWER: 2,178", "correct"),
        ("x=6, y=5", "ANSWER: 5", "wrong"),
        ("x=6, y=5", "ANSWER: x=6, y=5", "correct"),
    ],
)
def test_champ(make_task, gold, text, status):
    assert check(make_task("champ", answer=gold), text).status == status


@pytest.mark.parametrize(
    ("kind", "gold", "text", "status"),
    [
        ("BQA", "yes", "ANSWER: Yes", "correct"),
        ("BQA", "no", "The answer is **yes**", "wrong"),
        ("BQA", "yes", "Yes, it follows.", "correct"),
        ("BQA", "no", "From this we cannot conclude that.", "correct"),
        ("BQA", "yes", "Hard to say.", "unparsable"),
        ("MCQA", "choice_2", "ANSWER: choice_2", "correct"),
        ("MCQA", "choice_2", "ANSWER: 2", "correct"),
        ("MCQA", "choice_2", "ANSWER: The road is wet.", "correct"),
        ("MCQA", "choice_2", "ANSWER: choice_1", "wrong"),
        ("MCQA", "choice_2", "Both choice_1 and then choice_2 fit", "correct"),
        ("MCQA", "choice_2", "ANSWER: none of them", "unparsable"),
    ],
)
def test_logicbench(make_task, kind, gold, text, status):
    assert check(make_task("logicbench", MCQA, answer=gold, task_type=kind), text).status == status


@pytest.mark.parametrize(
    ("calculator", "kind", "gold", "text", "status"),
    [
        (2, "decimal", "50.0", "ANSWER: 47.5", "correct"),
        (2, "decimal", "50.0", "ANSWER: 52.6", "wrong"),
        (2, "decimal", "50.0", "ANSWER: 51 mL/min", "correct"),
        (2, "decimal", "50.0", "ANSWER: high", "unparsable"),
        (4, "integer", "3", "ANSWER: 3", "correct"),
        (4, "decimal", "3", "ANSWER: 2.4", "wrong"),  # calculator 4 is a score, whatever its type is called
        (68, "date", "06/28/2017", "ANSWER: 6/28/2017", "correct"),
        (68, "date", "06/28/2017", "ANSWER: 2017-06-28", "correct"),
        (68, "date", "06/28/2017", "ANSWER: 06/27/2017", "wrong"),
        (68, "date", "06/28/2017", "ANSWER: 31/31/2017", "unparsable"),
        (69, "date", "('18 weeks', '1 days')", "ANSWER: 18 weeks and 1 day", "correct"),
        (69, "date", "('18 weeks', '1 days')", "ANSWER: (18, 2)", "wrong"),
        (69, "date", "('18 weeks', '1 days')", "ANSWER: 18", "unparsable"),
    ],
)
def test_medcalcbench(make_task, calculator, kind, gold, text, status):
    task = make_task(
        "medcalcbench", answer=gold, calculator_id=calculator, output_type=kind, lower_limit=47.5, upper_limit=52.5
    )
    assert check(task, text).status == status


@pytest.mark.parametrize(
    ("gold", "text", "status"),
    [
        ("8:00 PM", "ANSWER: 8:00 pm", "correct"),
        ("8:00 PM", "ANSWER: 8:00 AM", "wrong"),
        ("Sotheby's Auction House", "ANSWER: the Sothebys auction house", "correct"),
        ("123.0", "ANSWER: 123", "correct"),
        ("$ 558.2", "ANSWER: 558.20 USD", "correct"),
        ("73.0 minutes", "ANSWER: 73 minutes", "correct"),
        ("73.0 minutes", "ANSWER: 73 hours", "wrong"),
        ("98.5", "ANSWER: 985", "wrong"),
        ("Yes", "ANSWER: true", "correct"),
        ("ImageNet", "Action: Finish[ImageNet]", "correct"),
        ("ImageNet", "I cannot look that up.", "unparsable"),
        ("", "ANSWER: nothing", "unparsable"),
    ],
)
def test_toolqa(make_task, gold, text, status):
    assert check(make_task("toolqa", answer=gold), text).status == status


def test_half_a_surrogate_pair_in_an_answer_can_be_written(make_task):
    verdict = check(make_task("toolqa", answer="x"), "ANSWER: \ud800y")
    assert verdict.answer.encode()


def test_a_verdict_says_what_it_read_and_by_which_rules(make_task):
    verdict = check(make_task("theoremqa", answer="7", answer_type="integer"), "ANSWER: 8")
    assert (verdict.answer, verdict.rule) == ("8", "marked/number")
