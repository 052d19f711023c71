"""Numbers and formulas as models write them; values worked out by hand."""

from __future__ import annotations

import math

import pytest

from evaluation.end_to_end.expressions import NotANumber, evaluate, parse_number, same_formula


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42.0),
        ("-3.5", -3.5),
        ("−3.5", -3.5),
        ("1,234,567", 1234567.0),
        ("2.5e-3", 0.0025),
        ("1.5 \\times 10^{-3}", 0.0015),
        ("3/4", 0.75),
        ("\\frac{3}{4}", 0.75),
        ("\\frac{\\sqrt{9}}{4}", 0.75),
        ("35%", 0.35),
        ("2\\pi", 2 * math.pi),
        ("sqrt(2)/2", math.sqrt(2) / 2),
        ("x = 5", 5.0),
        ("x ≈ 5.2", 5.2),
        ("5.3 m/s", 5.3),
        ("25 °C", 25.0),
        ("$984", 984.0),
        ("5!", 120.0),
        ("C(10, 5)", 252.0),
        ("\\binom{4}{2}", 6.0),
        ("2^10", 1024.0),
        ("-2^2", -4.0),
        ("2^3^2", 512.0),
        ("2(3+4)", 14.0),
        ("6/2*3", 9.0),
        (".5", 0.5),
    ],
)
def test_a_number_is_read(text, value):
    assert parse_number(text) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no idea",
        "11/17/2002",
        "x=6, y=5",
        "p = 3 and q = 5",
        "[1, 2]",
        "True",
        "1/0",
        "9^9^9^9",
        "__import__('os').system('true')",
        "sqrt(-1)",
        "1" * 400,
        "((((1",
        "2 +",
    ],
)
def test_what_is_no_number_is_refused(text):
    with pytest.raises(NotANumber):
        parse_number(text)


def test_deep_nesting_is_refused_and_does_not_overflow_the_stack():
    with pytest.raises(NotANumber):
        evaluate("(" * 299 + "1", {})


def test_a_formula_has_the_value_of_its_variables():
    assert evaluate("n(n+1)/2", {"n": 4.0}) == 10.0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("n(n+1)/2", "(n^2+n)/2"),
        ("\\frac{n(n+1)}{2}", "n*(n+1)/2"),
        ("(x+1)(x-1)", "x**2 - 1"),
        ("2^(m+1)", "2*2^m"),
        ("n!/(2n)", "(n-1)!/2"),
        ("sqrt(3)/3", "1/sqrt(3)"),
        ("floor(n/2)", "⌊n/2⌋".replace("⌊", "floor(").replace("⌋", ")")),
    ],
)
def test_formulas_of_the_same_value_are_the_same(first, second):
    assert same_formula(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("n^2", "n^3"),
        ("n+1", "m+1"),
        ("n/2", "floor(n/2)"),
        ("(-1)^n", "1"),
        ("no solutions", "no solutions"),
        ("n", ""),
    ],
)
def test_other_formulas_are_not(first, second):
    assert not same_formula(first, second)
