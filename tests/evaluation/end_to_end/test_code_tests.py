"""BigCodeBench's checker: which code is taken, and what counts as passed."""

from __future__ import annotations

import pytest

from evaluation.end_to_end.code_tests import check_code, extract_code

TESTS = """
import unittest
class TestCases(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(task_func(2, 3), 5)
"""
RIGHT = "def task_func(a, b):\n    return a + b"


@pytest.mark.parametrize(
    "text",
    [
        f"Here:\n```python\n{RIGHT}\n```\nDone.",
        f"```\n{RIGHT}\n```",
        f"```python\n{RIGHT}",
        RIGHT,
        f"<think>```python\ndef task_func(): 1\n```</think>\n```py\n{RIGHT}\n```",
        f"```python\ndef task_func(a, b):\n    return 0\n```\nBetter:\n```python\n{RIGHT}\n```",
    ],
)
def test_the_code_is_found(text):
    code = extract_code(text, "task_func")
    assert code is not None
    assert code.strip() == RIGHT


def test_blocks_that_need_each_other_are_joined():
    code = extract_code(
        "```python\nimport math\n```\nand\n```bash\nls\n```\n```python\ndef f():\n    return math.pi\n```", "f"
    )
    assert code is not None
    assert "def f" in code


@pytest.mark.parametrize(
    "text", ["I cannot.", "```python\ndef other(): pass\n```", "```python\ndef task_func(:\n```", "\ud800"]
)
def test_an_answer_without_the_function_has_no_code(text):
    assert extract_code(text, "task_func") is None


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        (RIGHT, "correct", "1 tests passed"),
        ("def task_func(a, b):\n    return a - b", "wrong", "test_sum: AssertionError: -1 != 5"),
        ("import nothing_of_the_kind\n" + RIGHT, "wrong", "ModuleNotFoundError"),
        ("import os\nos._exit(0)\n" + RIGHT, "wrong", "ended without a report"),
        ("import sys\nsys.exit(0)\n" + RIGHT, "wrong", "SystemExit"),
        (
            'print(\'{"run": 1, "problems": []}\')\nimport os\n' + RIGHT + "\nos._exit(0)",
            "wrong",
            "ended without a report",
        ),
        ("while True:\n    pass\n" + RIGHT, "wrong", "out of time"),
    ],
)
def test_only_passed_tests_count(make_task, sandbox, code, status, reason):
    task = make_task("bigcodebench", test=TESTS, entry_point="task_func", code_prompt="def task_func(a, b):")
    verdict = check_code(task, f"```python\n{code}\n```", sandbox)
    assert verdict.status == status
    assert reason in verdict.answer


def test_what_the_prompt_imports_is_there(make_task, sandbox):
    task = make_task(
        "bigcodebench", test=TESTS, entry_point="task_func", code_prompt="import operator\ndef task_func(a, b):"
    )
    code = "```python\ndef task_func(a, b):\n    return operator.add(a, b)\n```"
    assert check_code(task, code, sandbox).status == "correct"


def test_tests_that_are_empty_prove_nothing(make_task, sandbox):
    empty = "import unittest\nclass TestCases(unittest.TestCase):\n    pass"
    task = make_task("bigcodebench", test=empty, entry_point="task_func", code_prompt="")
    assert check_code(task, RIGHT, sandbox).answer == "no test ran"


def test_no_code_is_unparsable(make_task, sandbox):
    task = make_task("bigcodebench", test=TESTS, entry_point="task_func", code_prompt="")
    assert check_code(task, "I cannot do that.", sandbox).status == "unparsable"
