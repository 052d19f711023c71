"""A teacher that needs no model: it writes from the skill's own text and judges by counting words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from data_pipeline.corpus import Skill
from data_pipeline.teacher.answers import read_answer
from data_pipeline.teacher.bench_prompts import AUDIT_MINIMUMS, audit_passes
from data_pipeline.teacher.offline_writer import OfflineWriter, TextWriter, actions, names_skill, rationale_of, words_of
from data_pipeline.teacher.prompts import REQUESTS_PER_SKILL
from data_pipeline.teacher.task import TeacherResult, TeacherTask, Usage
from data_pipeline.trigrams import TrigramSets, copy_text
from data_pipeline.validation import query_problem

COPY_JACCARD = 0.60  # D.1's mark of a copy
MIN_COVERAGE = 0.15
"""Share of a request's words that its target's text must hold for the two to belong together."""
STRONG_COVERAGE = 0.4
REPETITION_JACCARD = 0.8
MIN_ANCHOR_ACTIONS = 3

_STOP_WORD_LIST = """
a about all also an and any are as at be because been before but by can could did do does for from get give had has
have he her here him his how i if in into is it its just keep know like made make me more most my need no not now of
on one or our out over please she should so some something than that the their them then there these they this those
to too up us use want was way we were what when where which who will with would you your
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())


class NoText(Exception):
    """A skill whose text gives the rules nothing to work with."""


class OfflineTeacher:
    """The offline teacher: deterministic, free, and marked as ``offline`` on every record.

    Its answers go through the same schemas as a model's. ``writer`` is what writes requests; judgements are made here.
    """

    name = "offline"

    def __init__(self, writer: OfflineWriter | None = None) -> None:
        self._writer = writer or TextWriter()
        self._usage = Usage(cost_usd=0.0)

    @property
    def usage(self) -> Usage:
        """Failed tasks; nothing else is used."""
        return replace(self._usage)

    def run(self, tasks: Iterable[TeacherTask], progress: bool = False) -> Iterator[TeacherResult]:
        """One result a task, in their order."""
        total = len(tasks) if isinstance(tasks, Sized) else None
        for task in tqdm(tasks, total=total, desc=self.name, unit="task", disable=not progress):
            yield self.complete(task)

    def complete(self, task: TeacherTask) -> TeacherResult:
        """The result of one task: ``failed`` with reason ``no_text`` where the skill's text gives nothing to write from."""
        try:
            value = _RULES[task.kind](self._writer, task.inputs)
        except KeyError:
            return self._failed(task, "unknown_kind", f"the offline teacher has no rule for {task.kind}")
        except NoText as error:
            return self._failed(task, "no_text", str(error))
        answer = read_answer(json.dumps(value), task.schema, task.check)
        if answer.value is None:
            return self._failed(task, answer.reason, answer.problem)
        return TeacherResult(task.task_id, task.kind, "ok", self.name, answer.value, attempts=1)

    def _failed(self, task: TeacherTask, reason: str, detail: str) -> TeacherResult:
        self._usage.failed += 1
        return TeacherResult(task.task_id, task.kind, "failed", self.name, None, reason, detail)


# -- writing -------------------------------------------------------------------------------------------------------------


def _synthesize(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    queries = writer.requests(given["skill"], REQUESTS_PER_SKILL)
    if len(queries) < REQUESTS_PER_SKILL:
        raise NoText(f"{len(queries)} of {REQUESTS_PER_SKILL} requests could be made from the skill's text")
    return {"queries": queries}


def _rationale(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"query_capability": _written(writer.capability(given["skill"], given["query"]), "rationale")}


def _rewrite(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    rewritten = _written(writer.implicit(given["skill"], given["query"]), "implicit rewrite")
    return {"implicit_query": rewritten, "reason": "made by rule from the skill's text"}


def _bench_query(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    skill = given["skill"]
    request = _written("".join(writer.requests(skill, 1)), "request")
    return {
        "query": _written(writer.implicit(skill, request), "implicit request"),
        "capability_reasoning": _written(writer.capability(skill, request), "rationale"),
    }


def _compound(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    query, needs = writer.compound(given["skills"])
    return {"query": _written(query, "compound task"), "needs": needs, "query_capability": rationale_of(needs)}


def _written(text: str, what: str) -> str:
    if not text:
        raise NoText(f"no {what} could be made from the skill's text")
    return text


# -- judging -------------------------------------------------------------------------------------------------------------


def _quality(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    query, skill = given["query"], given["skill"]
    mine = content_words(query)
    if query_problem(query):
        issue = "malformed"
    elif names_skill(query, skill):
        issue = "target_leakage"
    elif any(_jaccard(mine, content_words(other)) > REPETITION_JACCARD for other in given["others"]):
        issue = "redundant"
    elif coverage(query, skill) < MIN_COVERAGE:
        issue = "target_mismatch"
    else:
        issue = "good"
    return {"keep": issue == "good", "issue_type": issue, "reason": f"by rule: {issue}"}


def _screen(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    found = len(actions(given["skill"]))
    return {
        "label": int(found >= MIN_ANCHOR_ACTIONS),
        "reason": f"by rule: {found} concrete actions in the skill's text",
    }


def _conditions(given: Mapping[str, Any]) -> dict[str, bool]:
    query, skill = given["query"], given["skill"]
    return {
        "specialized": len(actions(skill)) >= MIN_ANCHOR_ACTIONS,
        "concrete": query_problem(query) is None,
        "implicit": not names_skill(query, skill),
        "supported": coverage(query, skill) >= MIN_COVERAGE,
    }


_UNMET = {
    "specialized": "simple_task",
    "concrete": "vague_or_generic",
    "implicit": "explicit_match",
    "supported": "weak_target",
}


def _validate(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    met = _conditions(given)
    issue = next((_UNMET[name] for name, fulfilled in met.items() if not fulfilled), "good")
    return {**met, "keep": issue == "good", "issue_type": issue, "reason": f"by rule: {issue}"}


def _review(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    issue = _validate(writer, given)["issue_type"]
    issue = {"good": "good_implicit_reasoning", "weak_target": "target_mismatch"}.get(issue, issue)
    return {
        "keep": issue == "good_implicit_reasoning",
        "skill_necessity": "low" if issue == "simple_task" else "medium",
        "difficulty": "easy" if coverage(given["query"], given["skill"]) >= STRONG_COVERAGE else "medium",
        "issue_type": issue,
        "reason": f"by rule: {issue}",
        "suggested_query": "",
    }


def _audit(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    met = _conditions(given)
    conditions = ("concrete", "supported", "specialized", "implicit")
    scores = {key: 4 if met[name] else 2 for key, name in zip(AUDIT_MINIMUMS, conditions, strict=True)}
    answer: dict[str, Any] = {**scores, "leakage": not met["implicit"]}
    return {**answer, "pass": audit_passes(answer), "reason": "by rule, from the words that request and skill share"}


def _alternative(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    query, target, candidate = given["query"], given["target"], given["candidate"]
    copied = TrigramSets([copy_text(target), copy_text(candidate)]).jaccard_to(0, [1])[0]
    shares = coverage(query, candidate) >= max(MIN_COVERAGE, 0.5 * coverage(query, target))
    decision = "positive" if copied > COPY_JACCARD else "ignore" if shares else "hard_negative"
    return {"decision": decision, "reason": f"by rule: trigram Jaccard {copied:.2f} to the target"}


def _relevance(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    share = coverage(given["query"], given["candidate"])
    label = "strong_positive" if share >= MIN_COVERAGE else "weak_generic" if share > 0 else "wrong_positive"
    return {"label": label, "reason": f"by rule: {share:.2f} of the request's words are in the skill's text"}


def _category(writer: OfflineWriter, given: Mapping[str, Any]) -> dict[str, Any]:
    text = words_of(_text(given["skill"]))
    counts = [sum(text.count(word) for word in content_words(label)) for label in given["labels"]]
    best = max(range(len(counts)), key=lambda i: (counts[i], -i))
    return {"category": given["labels"][best], "reason": f"by rule: the label's words occur {counts[best]} times"}


def content_words(text: str) -> set[str]:
    """The distinct words that are not function words."""
    return {word for word in words_of(text) if word not in _STOP_WORDS and len(word) > 2}


def coverage(query: str, skill: Skill) -> float:
    """The share of the request's content words that the skill's text holds."""
    wanted = content_words(query)
    return len(wanted & content_words(_text(skill))) / len(wanted) if wanted else 0.0


def _text(skill: Skill) -> str:
    return f"{skill.name}\n{skill.description}\n{skill.body}"


def _jaccard(left: set[str], right: set[str]) -> float:
    return len(left & right) / len(left | right) if left | right else 0.0


_RULES: dict[str, Callable[[OfflineWriter, Mapping[str, Any]], dict[str, Any]]] = {
    "query_synthesis": _synthesize,
    "quality_review": _quality,
    "rationale": _rationale,
    "implicit_rewrite": _rewrite,
    "category": _category,
    "multi_skill_task": _compound,
    "relevance_audit": _relevance,
    "anchor_screening": _screen,
    "bench_query": _bench_query,
    "target_validation": _validate,
    "alternative_audit": _alternative,
    "joint_review": _review,
    "quality_audit": _audit,
}
