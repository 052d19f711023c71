"""The rule-based checker of each suite whose answer is a text: correct, wrong, or no answer that could be read.

The rules are those of the suites' public evaluation, written anew; docs/end-to-end.md says where ours differ on purpose.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

from data_pipeline.teacher.untrusted import clean_text
from evaluation.end_to_end.expressions import NotANumber, parse_number, same_formula
from evaluation.end_to_end.extraction import Extracted, clean, extract, strip_thinking
from evaluation.end_to_end.tasks import Task

Status = Literal["correct", "wrong", "unparsable"]
RELATIVE_TOLERANCE = 0.04
"""Of a number that is not whole, in TheoremQA and CHAMP."""
ABSOLUTE_TOLERANCE = 1e-9
EXACT_TOLERANCE = 1e-6
"""Of numbers in ToolQA."""
DATE_CALCULATORS = (13, 68)
GESTATION_CALCULATOR = 69
INTEGER_CALCULATORS = frozenset({4, 15, 16, 17, 18, 20, 21, 25, 27, 28, 29, 32, 33, 36, 43, 45, 48, 51})
"""MedCalc-Bench's calculators whose result is a score, whatever an instance calls its type."""
_TRUE, _FALSE = ("yes", "true"), ("no", "false")


@dataclass(frozen=True)
class Verdict:
    """What a checker says: ``answer`` is what it read, ``rule`` how it was found and compared."""

    status: Status
    answer: str
    rule: str


class Unreadable(ValueError):
    """The answer is not of the kind that is asked for."""


def check(task: Task, text: str) -> Verdict:
    """Score a model's text. An answer that is only the last line of a text, and not right, counts as unparsable, not as wrong.

    Raises:
        KeyError: a suite that is scored by running code.
    """
    checker = CHECKERS[task.suite]
    body = strip_thinking(clean_text(text)).strip()
    found = extract(body)
    if task.suite == "logicbench" and not found.stated:
        found = _logic_fallback(task, body) or found
    try:
        correct, rule = checker(found, task)
    except Unreadable:
        return Verdict("unparsable", found.text[:200], found.rule)
    status: Status = "correct" if correct else "wrong" if found.stated else "unparsable"
    return Verdict(status, found.text[:200], f"{found.rule}/{rule}")


# -- TheoremQA -----------------------------------------------------------------------------------------------------------


def check_theoremqa(found: Extracted, task: Task) -> tuple[bool, str]:
    """True/False, an option, a number (whole: after rounding; otherwise within 4%), or a list of numbers in any order."""
    kind, gold = task.answer["answer_type"], task.answer["answer"]
    if kind == "bool":
        return _polarity(found.text) == _polarity(gold), "bool"
    if kind == "option":
        return _option(found.text) == _option(gold), "option"
    if kind.startswith("list"):
        wanted, given = _numbers(gold), _numbers(found.text)
        same = len(wanted) == len(given)
        return same and all(map(_close, sorted(given), sorted(wanted))), "list"
    return _close(_number(found.text), _number(gold)), "number"


# -- CHAMP ---------------------------------------------------------------------------------------------------------------

_ALTERNATIVE = re.compile(r",?\s*\bor\s+(?:equivalently|approximately)\s+(.+)$", re.IGNORECASE)
_REMARK = re.compile(r"\s*\((?:i\.e\.|none\b)[^)]*\)\s*$", re.IGNORECASE)
_WORDINGS = [
    (re.compile(r"no (?:\w+ )*solutions?"), "no solutions"),
    (re.compile(r"no (?:\w+ )*values?"), "no values"),
    (re.compile(r"(.+?) is the only possible value.*"), r"\1"),
    (re.compile(r"the only possible value(?: for the limit)? is (.+)"), r"\1"),
    (re.compile(r"the limit exists and is equal to (.+)"), r"\1"),
    (re.compile(r"the limit does not exist|limit does not exist"), "limit does not exist"),
    (re.compile(r"at most 0\b.*"), "0"),
    (re.compile(r"exactly one\b.*"), "1"),
    (re.compile(r"(?:at least )?(\d+) (?:values?|inequalit(?:y|ies)|numbers?|pairs?|roots?)"), r"\1"),
]


def check_champ(found: Extracted, task: Task) -> tuple[bool, str]:
    """Yes/No; the same words; the same number; the same formula; any of them for an answer given as "or equivalently"."""
    gold = task.answer["answer"]
    given = _wording(_ALTERNATIVE.sub("", found.text))
    if not given:
        raise Unreadable
    golds = [_ALTERNATIVE.sub("", gold), *(found_alternative[1] for found_alternative in _ALTERNATIVE.finditer(gold))]
    for wanted in map(_wording, golds):
        if wanted in ("yes", "no"):
            return _polarity(given) == (wanted == "yes"), "bool"
        if given == wanted:
            return True, "text"
        try:
            if _close(_number(given), _number(wanted)):
                return True, "number"
        except Unreadable:
            pass
        if same_formula(given, wanted):
            return True, "formula"
    return False, "text"


def _wording(text: str) -> str:
    plain = " ".join(_REMARK.sub("", text.strip()).split()).lower().rstrip(".")
    for pattern, canonical in _WORDINGS:
        matched = pattern.fullmatch(plain)
        if matched:
            return matched.expand(canonical)
    return plain


# -- LogicBench ----------------------------------------------------------------------------------------------------------

_CHOICE = re.compile(r"choice[_ ]?([1-9])", re.IGNORECASE)
_CHOICE_TEXT = re.compile(r"choice_([1-9]):\s*(.+?)\s*(?=\n|choice_[1-9]:|$)", re.IGNORECASE)
_DENIALS = re.compile(
    r"cannot (?:be )?(?:conclude|infer|say|determine)|cannot (?:logically|necessarily|definitively)|"
    r"not necessarily true|not (?:possible|correct|true|valid)"
)
TAIL_CHARS = 500
"""Of an answer without a statement, in which LogicBench's fallbacks look."""


def check_logicbench(found: Extracted, task: Task) -> tuple[bool, str]:
    """Yes or no; or the number of a choice."""
    if task.answer["task_type"] == "BQA":
        return _polarity(found.text) == _polarity(task.answer["answer"]), "bool"
    wanted = _CHOICE.fullmatch(task.answer["answer"])
    return wanted is not None and _choice(found.text, task.question) == wanted[1], "choice"


def _choice(text: str, question: str) -> str:
    named = _CHOICE.findall(text)
    if named:
        return named[-1]
    lone = re.fullmatch(r"(?:option\s*)?\(?([1-9])\)?[.:]?(?:\s.*)?", text.strip(), re.IGNORECASE)
    if lone:
        return lone[1]
    plain = clean(text).lower()
    said = [number for number, choice in _CHOICE_TEXT.findall(question) if choice.rstrip(".").lower() == plain]
    if len(said) != 1:
        raise Unreadable
    return said[0]


def _logic_fallback(task: Task, body: str) -> Extracted | None:
    """Where nothing is stated: the word it begins with, a denial, or the last yes or no; the last choice that is named."""
    tail = body[-TAIL_CHARS:].lower()
    if task.answer["task_type"] == "MCQA":
        named = _CHOICE.findall(body)
        return Extracted(f"choice_{named[-1]}", "last_named") if named else None
    first = re.match(r"[\s*]*(yes|no)\b[\s*]*[.,!\n]", body.lower() + "\n")
    if first:
        return Extracted(first[1], "first_word")
    if _DENIALS.search(tail):
        return Extracted("no", "denial")
    words = re.findall(r"\b(?:yes|no)\b", tail) or re.findall(r"\b(?:true|false)\b", tail)
    return Extracted(words[-1], "last_named") if words else None


# -- MedCalc-Bench -------------------------------------------------------------------------------------------------------

_WEEKS = re.compile(r"(\d+)\s*(?:weeks?|w)?['\"]?(?:\s|,|\+|and)+['\"]?(\d+)\s*(?:days?|d)?\b", re.IGNORECASE)


def check_medcalcbench(found: Extracted, task: Task) -> tuple[bool, str]:
    """By calculator: the same date, weeks and days, or whole number; otherwise a number within the released limits (5%)."""
    calculator, kind, gold = (task.answer[key] for key in ("calculator_id", "output_type", "answer"))
    if calculator == GESTATION_CALCULATOR:
        return _weeks_and_days(found.text) == _weeks_and_days(gold), "weeks"
    if kind == "date" or calculator in DATE_CALCULATORS:
        return _date(found.text) == _date(gold), "date"
    given = _number(found.text)
    if kind == "integer" or calculator in INTEGER_CALCULATORS:
        return round(given) == round(_number(gold)), "integer"
    return task.answer["lower_limit"] <= given <= task.answer["upper_limit"], "limits"


def _weeks_and_days(text: str) -> tuple[int, int]:
    found = _WEEKS.search(text)
    if found is None:
        raise Unreadable
    return int(found[1]), int(found[2])


def _date(text: str) -> date:
    for written in re.findall(r"\d{1,2}/\d{1,2}/\d{4}|\d{4}-\d{2}-\d{2}", text)[:1]:
        try:
            return datetime.strptime(written, "%m/%d/%Y" if "/" in written else "%Y-%m-%d").date()
        except ValueError:
            break
    raise Unreadable


# -- ToolQA --------------------------------------------------------------------------------------------------------------

_QUANTITY = re.compile(r"\$?\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)\s*([A-Za-z%]*)")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def check_toolqa(found: Extracted, task: Task) -> tuple[bool, str]:
    """The same words without case, punctuation and articles; quantities of the same unit by their number; true for yes.

    A few released answers are empty: nothing that a model writes can be right about those.
    """
    gold, given = task.answer["answer"], found.text
    if not given or not gold:
        raise Unreadable
    wanted_quantity, given_quantity = _QUANTITY.fullmatch(gold.strip()), _QUANTITY.fullmatch(given.strip())
    if wanted_quantity and given_quantity:
        units = {_normalized(wanted_quantity[2]), _normalized(given_quantity[2])}
        numbers = [float(quantity[1].replace(",", "")) for quantity in (wanted_quantity, given_quantity)]
        return len(units) == 1 and abs(numbers[0] - numbers[1]) < EXACT_TOLERANCE, "quantity"
    plain = _normalized(given)
    return {"true": "yes", "false": "no"}.get(plain, plain) == _normalized(gold) or plain == _normalized(gold), "text"


def _normalized(text: str) -> str:
    return " ".join(re.sub(r"\b(?:a|an|the|usd)\b", " ", text.lower().translate(_PUNCTUATION)).split())


CHECKERS: Mapping[str, Callable[[Extracted, Task], tuple[bool, str]]] = {
    "theoremqa": check_theoremqa,
    "logicbench": check_logicbench,
    "toolqa": check_toolqa,
    "medcalcbench": check_medcalcbench,
    "champ": check_champ,
}
"""The suites whose answers are texts; BigCodeBench's are programs (:mod:`evaluation.end_to_end.code_tests`)."""


# -- what several suites need --------------------------------------------------------------------------------------------


def _number(text: str) -> float:
    for written in (text, re.split(r"\.\s", text)[0]):  # "5. This follows from …"
        try:
            return parse_number(written)
        except NotANumber:
            continue
    raise Unreadable


def _numbers(text: str) -> list[float]:
    bracketed = re.search(r"[\[({]([^\[\](){}]*)[\])}]\s*$", text)
    body = (bracketed[1] if bracketed else text).strip()
    if not body:
        raise Unreadable
    return [_number(part) for part in re.split(r"\s*[,;]\s*|\s+and\s+", body) if part]


def _close(given: float, wanted: float) -> bool:
    """A whole number after rounding, any other within 4%."""
    if wanted == round(wanted):
        return round(given) == wanted
    return abs(given - wanted) <= max(abs(wanted) * RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE)


def _polarity(text: Any) -> bool:
    """True for yes or true, False for no or false: the first word, or the only such word."""
    words = re.findall(r"[a-z]+", str(text).lower())
    named = [word for word in words if word in _TRUE + _FALSE]
    if not named or (words[0] not in _TRUE + _FALSE and len({word in _TRUE for word in named}) > 1):
        raise Unreadable
    return (words[0] if words[0] in _TRUE + _FALSE else named[0]) in _TRUE


def _option(text: str) -> str:
    found = re.search(r"\(([a-f])\)", text.lower()) or re.fullmatch(
        r"(?:option\s*)?([a-f])\b[).:]?.*", text.strip().lower()
    )
    if found is None:
        raise Unreadable
    return found[1]
