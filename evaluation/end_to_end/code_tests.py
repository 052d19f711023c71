"""BigCodeBench's checker: the model's function with the task's unit tests, run in the sandbox."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from data_pipeline.teacher.untrusted import clean_text
from evaluation.end_to_end.checkers import Verdict
from evaluation.end_to_end.extraction import strip_thinking
from evaluation.end_to_end.sandbox import Outcome, Sandbox, new_secret
from evaluation.end_to_end.tasks import Task

_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = {"", "python", "python3", "py"}


def check_code(task: Task, text: str, sandbox: Sandbox) -> Verdict:
    """Correct where the function is defined and every unit test of the task passes; unparsable where no code is found.

    As in the public evaluation the tests run after ``code_prompt`` (imports and the function's head, with ``pass`` as its body)
    and the model's code, in one module.
    """
    code = extract_code(text, task.answer["entry_point"])
    if code is None:
        return Verdict("unparsable", clean_text(strip_thinking(text)).strip()[:200], "no_code")
    prompt = task.answer["code_prompt"]
    solution = f"{prompt}\n    pass\n{code}" if prompt.strip() else code
    secret = new_secret()
    outcome = sandbox.run(_program(f"{solution}\n{task.answer['test']}"), secret)
    passed, reason = _report(outcome, secret)
    return Verdict("correct" if passed else "wrong", clean_text(reason)[:200], "unit_tests")


def extract_code(text: str, entry_point: str) -> str | None:
    """The Python code of an answer that defines ``entry_point``; None where there is none.

    The last fenced block that defines it; else all fenced Python blocks together; else the whole text, where it is Python. A
    block whose fence is never closed ends with the text.
    """
    body = strip_thinking(clean_text(text))
    blocks = [block for language, block in _FENCED.findall(body) if language.lower() in _PYTHON]
    for candidate in [*reversed(blocks), "\n".join(blocks), body]:
        if _defines(candidate, entry_point):
            return candidate
    return None


def _defines(code: str, name: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name == name for node in tree.body)


def _program(module: str) -> str:
    return _HARNESS.replace("MODULE_TEXT", repr(module))


def _report(outcome: Outcome, secret: str) -> tuple[bool, str]:
    """Whether all tests passed, and in words what happened. Only a report with the secret counts: an early exit is no pass."""
    for line in reversed(outcome.output.splitlines()):
        if line.startswith(secret):
            try:
                report: dict[str, Any] = json.loads(line[len(secret) :])
            except ValueError:
                break
            passed = report["run"] > 0 and not report["problems"]
            return passed, f"{report['run']} tests passed" if passed else "; ".join(report["problems"]) or "no test ran"
    if outcome.ended == "timeout":
        return False, "out of time"
    return False, f"ended without a report ({outcome.ended}, status {outcome.code})"


_HARNESS = """
import json, os, sys, types, unittest

secret = sys.stdin.readline().strip()
report = os.dup(1)
os.set_inheritable(report, False)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
problems, run = [], 0
try:
    module = types.ModuleType("__test__")
    module.__dict__.update(__file__="__test__.py", sys=sys, os=os, environ=os.environ)
    sys.modules["__test__"] = module
    exec(compile(MODULE_TEXT, "__test__.py", "exec"), module.__dict__)
    tests = unittest.TestLoader().loadTestsFromTestCase(module.TestCases)
    result = unittest.TestResult()
    tests.run(result)
    run = result.testsRun
    for test, trace in result.failures + result.errors:
        lines = trace.strip().splitlines()
        problems.append(f"{getattr(test, '_testMethodName', test)}: {lines[-1] if lines else 'failed'}"[:150])
except BaseException as error:
    problems.append(f"{type(error).__name__}: {error}"[:150])
os.write(report, ("\\n" + secret + json.dumps({"run": run, "problems": problems[:5]}) + "\\n").encode())
os._exit(0)
"""
