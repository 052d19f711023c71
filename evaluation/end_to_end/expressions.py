"""Numbers and formulas as models write them, read by a small parser of our own: no text of a model is ever evaluated as code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_CHARS = 300
"""Longer answers are no number and no formula."""
_POINTS = 8
"""Values of each variable at which two formulas are compared."""
_FORMULA_TOLERANCE = 1e-9

Value = float | complex
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sqrt": lambda x: x**0.5 if isinstance(x, complex) or x < 0 else math.sqrt(x),
    "cbrt": lambda x: math.copysign(abs(x) ** (1 / 3), x),
    "exp": math.exp,
    "log": math.log,
    "ln": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "arctan": math.atan,
    "floor": lambda x: float(math.floor(x)),
    "ceil": lambda x: float(math.ceil(x)),
    "abs": lambda x: abs(x),
    "binom": lambda n, k: _factorial(n) / (_factorial(k) * _factorial(n - k)),
    "binomial": lambda n, k: _factorial(n) / (_factorial(k) * _factorial(n - k)),
    "C": lambda n, k: _factorial(n) / (_factorial(k) * _factorial(n - k)),
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z]+)|(\*\*|[-+*/^!(),]))")
_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "π": " pi ", "²": "^2", "³": "^3", "{": "(", "}": ")"}
)
_LATEX = [
    (re.compile(r"\\(?:left|right|displaystyle|,|;|!|quad)"), ""),
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"\\div\b"), "/"),
    (re.compile(r"\\(?:d|t)?binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"binom(\1,\2)"),
    (re.compile(r"\\lfloor\b"), "floor("),
    (re.compile(r"\\lceil\b"), "ceil("),
    (re.compile(r"\\r(?:floor|ceil)\b"), ")"),
]
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_ROOT = re.compile(r"\\sqrt\s*\{([^{}]*)\}|√\s*\(?(\d+(?:\.\d+)?)\)?")
_POWER = re.compile(r"\^\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?![\d])")
_DATE = re.compile(r"\d/\d+/\d")
_AMOUNT = re.compile(r"[-+−]?(?:\d+(?:,\d{3})*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class NotANumber(ValueError):
    """A text that cannot be read as a number or formula."""


def parse_number(text: str) -> float:
    """The number that a short answer states.

    Read are decimals, thousands separators, powers of ten, fractions, percent (a hundredth), roots, pi, e, factorials,
    binomials and arithmetic on them, in plain text or LaTeX; what stands before the last ``=`` or ``≈`` is left out, and so are
    a currency sign in front and a unit behind (``5.3 m/s``).

    Raises:
        NotANumber: no finite real number.
    """
    *before, body = re.split(r"[=≈]", _plain(text))
    if any("," in part or re.search(r"\band\b", part) for part in before):
        raise NotANumber(f"several values: {text[:80]}")
    body = body.strip().strip("$€£¥").strip()
    if not body or len(body) > MAX_CHARS or _DATE.search(body):
        raise NotANumber(text[:80])
    percent = body.endswith("%")
    body = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), body.removesuffix("%").strip())
    try:
        value = evaluate(body, {})
    except NotANumber:
        # A number and, behind a space or a degree sign, words that are no arithmetic: its unit.
        unit = re.fullmatch(rf"({_AMOUNT.pattern})\s*(?:°|\s)\s*[^\d\s=+*^-][^\d=]*", body)
        if unit is None:
            raise
        value = evaluate(unit[1].replace(",", ""), {})
    if isinstance(value, complex) or not math.isfinite(value):
        raise NotANumber(text[:80])
    return value / 100 if percent else value


def same_formula(first: str, second: str) -> bool:
    """Whether two formulas have the same value at 8 points of their variables, positive whole numbers.

    That is no proof. Texts that are no formulas, or have different variables, are not the same.
    """
    try:
        left, right = _Formula.read(_plain(first)), _Formula.read(_plain(second))
    except NotANumber:
        return False
    if left.variables != right.variables:
        return False
    agreed = 0
    for point in range(_POINTS):
        values = {name: float(2 + (5 * point + 3 * place) % 11) for place, name in enumerate(sorted(left.variables))}
        try:
            a, b = left.value(values), right.value(values)
        except NotANumber:
            continue
        if not abs(a - b) <= _FORMULA_TOLERANCE * max(abs(a), abs(b), 1.0):
            return False
        agreed += 1
    return agreed >= _POINTS // 2


def evaluate(text: str, variables: Mapping[str, float]) -> Value:
    """The value of a formula in plain text.

    Raises:
        NotANumber: not a formula, an unknown name, or no value there (division by zero, overflow).
    """
    return _Formula.read(text).value(variables)


@dataclass(frozen=True)
class _Formula:
    text: str
    tokens: tuple[str, ...]
    variables: frozenset[str]

    @classmethod
    def read(cls, text: str) -> _Formula:
        if len(text) > MAX_CHARS:
            raise NotANumber(f"{len(text)} characters; expected at most {MAX_CHARS}")
        tokens: list[str] = []
        place = 0
        text = text.strip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise NotANumber(text[:80])
            number, word, sign = found.groups()
            if word:
                tokens += _names(word)
            else:
                tokens.append("^" if sign == "**" else number or sign)
            place = found.end()
        if not tokens:
            raise NotANumber("empty")
        names = {t for t in tokens if t[0].isalpha() and t not in _FUNCTIONS and t not in _CONSTANTS}
        return cls(text, tuple(tokens), frozenset(names))

    def value(self, variables: Mapping[str, float]) -> Value:
        try:
            return _Parser(self.tokens, variables).all()
        except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
            raise NotANumber(f"{self.text[:80]}: {error}") from None


class _Parser:
    """Recursive descent: sums of products of signed powers; names and brackets that follow each other are multiplied."""

    def __init__(self, tokens: tuple[str, ...], variables: Mapping[str, float]) -> None:
        self.tokens, self.variables, self.place = tokens, variables, 0

    def all(self) -> Value:
        value = self.sum()
        if self.place != len(self.tokens):
            raise NotANumber(f"unexpected {self.tokens[self.place]!r}")
        return value

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise NotANumber(f"expected {expected or 'more'}, found {token or 'the end'}")
        self.place += 1
        return token

    def sum(self) -> Value:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> Value:
        value = self.signed()
        while True:
            token = self.peek()
            if token in ("*", "/"):
                value = value * self.signed() if self.take() == "*" else value / self.signed()
            elif token == "(" or token[:1].isalpha():  # 2n, n(n+1)
                value = value * self.power()
            else:
                return value

    def signed(self) -> Value:
        if self.peek() in ("+", "-"):
            return self.signed() if self.take() == "+" else -self.signed()
        return self.power()

    def power(self) -> Value:
        value = self.atom()
        while self.peek() == "!":
            self.take()
            value = _factorial(value)
        if self.peek() == "^":
            self.take()
            value = value ** self.signed()
        return value

    def atom(self) -> Value:
        token = self.take()
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token == "(":
            value = self.sum()
            self.take(")")
            return value
        if token in _FUNCTIONS and self.peek() == "(":
            self.take()
            arguments = [self.sum()]
            while self.peek() == ",":
                self.take()
                arguments.append(self.sum())
            self.take(")")
            return _FUNCTIONS[token](*arguments)
        if token in self.variables:
            return self.variables[token]
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        raise NotANumber(f"unknown name {token!r}")


def _names(word: str) -> list[str]:
    """A run of letters as a function, a constant or up to three variables of one letter; words of a language are none."""
    if word in _FUNCTIONS or word in _CONSTANTS:
        return [word]
    for name in (*_FUNCTIONS, "pi"):
        if len(name) > 1 and word.endswith(name) and len(word) - len(name) <= 3:
            return [*word[: -len(name)], name]
    if len(word) > 3:
        raise NotANumber(f"unknown name {word[:40]!r}")
    return list(word)


def _factorial(value: Value) -> float:
    if isinstance(value, complex):
        raise NotANumber("factorial of a complex number")
    return math.gamma(value + 1)


def _plain(text: str) -> str:
    """LaTeX and typographic signs as plain arithmetic."""
    text = text.strip().strip("$").strip()
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    for _ in range(8):  # from the inside out
        shorter = _POWER.sub(
            r"^(\1)", _ROOT.sub(lambda f: f"sqrt({f[1] or f[2]})", _FRACTION.sub(r"((\1)/(\2))", text))
        )
        if shorter == text:
            break
        text = shorter
    return text.replace("\\%", "%").replace("\\", "").translate(_CHARACTERS).strip()
