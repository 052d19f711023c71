"""Prompts of the benchmark's construction and audits (C.3, C.4, A.1, A.2) to the rules of Appendix G.1 and G.2.

The wording is ours; each function makes one task about one record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data_pipeline.corpus import Skill
from data_pipeline.teacher.forms import (
    FLAG,
    QUERY,
    REASON,
    REASON_LIMIT,
    form,
    kept_only_as,
    make_task,
    one_of,
    request_block,
    skill_blocks,
    text,
)
from data_pipeline.teacher.task import TeacherTask

ALTERNATIVE_DOCUMENT_CHARS = 6_000
VALIDATION_ISSUES = (
    "good",
    "simple_task",
    "vague_or_generic",
    "explicit_match",
    "weak_target",
    "excessive_target_ambiguity",
    "other",
)
REVIEW_ISSUES = (
    "good_implicit_reasoning",
    "simple_task",
    "vague_or_generic",
    "explicit_match",
    "target_mismatch",
    "excessive_target_ambiguity",
    "other",
)
ALTERNATIVE_DECISIONS = ("positive", "ignore", "hard_negative")
AUDIT_MINIMUMS = {"naturalness": 4, "gold_alignment": 4, "skill_necessity": 3, "implicitness": 3}
"""G.1: what each score must reach for an item to pass."""

_SCREENING = """
You curate a benchmark for skill retrieval. The data is one skill. Decide whether an implicit request can be built on it.
label 1: it is a concrete, specialized, executable capability that can be inferred from a realistic goal of a user.
label 0: general assistant behaviour; a template or placeholder; malformed or unreadable; useless without a private repository's
context; or every realistic request for it would be a plain keyword match.
Form: {"label": 1, "reason": "one short sentence"}
"""


def anchor_screening(skill: Skill) -> TeacherTask:
    """Whether a skill can be the target of a benchmark request (C.3, G.2)."""
    return make_task(
        "anchor_screening",
        skill.skill_id,
        _SCREENING,
        skill_blocks(skill),
        "Label the skill above.",
        form(label=one_of((0, 1)), reason=REASON),
        {"skill": skill},
    )


_BENCH_QUERY = """
You write benchmark requests for skill retrieval. The data is the target skill. Write one short request of a user that tells the
outcome, the input at hand, limits or the wanted result, and leaves the required capability unsaid.
- One to three natural sentences.
- Never contain the skill's name, its repository or package, or the word "skill".
- Do not go through the whole toolchain or procedure, and copy no phrase that is peculiar to the document.
- Terms of the trade stay where a real user would use them.
- It must take this capability; a general conversational answer must not do.
capability_reasoning: one sentence on the capability that the request implies.
Form: {"query": "...", "capability_reasoning": "one short sentence"}
"""


def bench_query(skill: Skill) -> TeacherTask:
    """An implicit benchmark request with its reasoning, which is not released (C.3, G.2)."""
    return make_task(
        "bench_query",
        skill.skill_id,
        _BENCH_QUERY,
        skill_blocks(skill),
        "Write the request for the skill above.",
        form(query=QUERY, capability_reasoning=text(REASON_LIMIT)),
        {"skill": skill},
    )


_VALIDATION = """
You check whether a benchmark request and its annotated target belong together. The data is the request and the target skill.
- specialized: the request takes a specialized capability, toolchain or workflow of a trade.
- concrete: it states an outcome, a context, a limit or a result.
- implicit: it reveals neither the target nor its whole procedure.
- supported: the target provides what is required, more than shared terms, within a boundary that is clear enough.
keep is true only if all four are. issue_type is good with keep true; otherwise simple_task (writing, formatting, what any model
does), vague_or_generic (broad advice), explicit_match, weak_target, excessive_target_ambiguity or other.
Form: {"specialized": true, "concrete": true, "implicit": true, "supported": true, "keep": true, "issue_type": "good",
"reason": "one short sentence"}
"""


def _check_validation(answer: Mapping[str, Any]) -> str | None:
    if answer["keep"] != all(answer[key] for key in ("specialized", "concrete", "implicit", "supported")):
        return "keep contradicts the four conditions; it is true only if all of them are"
    return kept_only_as("good")(dict(answer))


def target_validation(query_id: str, query: str, skill: Skill) -> TeacherTask:
    """Whether the target provides what the request requires, and the request is fit to test it (C.4, query-target validation)."""
    return make_task(
        "target_validation",
        query_id,
        _VALIDATION,
        request_block(query) | skill_blocks(skill, "target skill"),
        "Check the request against the target above.",
        form(
            specialized=FLAG,
            concrete=FLAG,
            implicit=FLAG,
            supported=FLAG,
            keep=FLAG,
            issue_type=one_of(VALIDATION_ISSUES),
            reason=REASON,
        ),
        {"query": query, "skill": skill},
        _check_validation,
    )


_ALTERNATIVE = """
You judge whether another skill could stand in for the target of one request. The data is the request, its annotated target and
the candidate. Judge whether the candidate can satisfy this request; a shared topic, shared words or similarity are not enough.
- positive: it satisfies the core of the request by itself and replaces the target without the loss of an essential capability.
- ignore: related or partly useful, but neighbouring, broader, narrower, auxiliary or partial.
- hard_negative: alike on the surface, or its boundary does not fit the request.
Forks and copies with the same capability are as a rule positive; skills of the same field with other boundaries are not.
Form: {"decision": "positive", "reason": "one short sentence"}
"""


def alternative_audit(query_id: str, query: str, target: Skill, candidate: Skill) -> TeacherTask:
    """Whether a candidate is a valid alternative to the target, for this request (C.4, A.2, G.2)."""
    blocks = request_block(query) | skill_blocks(target, "target skill", ALTERNATIVE_DOCUMENT_CHARS)
    return make_task(
        "alternative_audit",
        f"{query_id}/{candidate.skill_id}",
        _ALTERNATIVE,
        blocks | skill_blocks(candidate, "candidate skill", ALTERNATIVE_DOCUMENT_CHARS),
        "Judge the candidate for the request above.",
        form(decision=one_of(ALTERNATIVE_DECISIONS), reason=REASON),
        {"query": query, "target": target, "candidate": candidate},
    )


_REVIEW = """
You are one of two independent judges of a candidate for an implicit skill-retrieval benchmark. The data is the request and its
annotated target skill. Keep it only if
1. the request is natural, concrete and informative enough;
2. doing it materially takes a specialized skill or workflow;
3. the required capability stays implicit;
4. the target is a stable, well-supported answer.
Reject simple writing or formatting, broad advice, mentions of tools or skills, weak or wrong targets, and requests that many
skills could serve.
skill_necessity: high, medium or low. difficulty: hard, medium or easy. issue_type: good_implicit_reasoning with keep true;
otherwise simple_task, vague_or_generic, explicit_match, target_mismatch, excessive_target_ambiguity or other.
suggested_query: a better wording where a small change would save the request, else "".
Form: {"keep": true, "skill_necessity": "high", "difficulty": "hard", "issue_type": "good_implicit_reasoning",
"reason": "one short sentence", "suggested_query": ""}
"""


def joint_review(query_id: str, query: str, skill: Skill) -> TeacherTask:
    """The final review of a benchmark candidate (C.4, G.2): asked of two teachers, whose disagreements go to a human."""
    return make_task(
        "joint_review",
        query_id,
        _REVIEW,
        request_block(query) | skill_blocks(skill, "target skill"),
        "Review the candidate above.",
        form(
            keep=FLAG,
            skill_necessity=one_of(("high", "medium", "low")),
            difficulty=one_of(("hard", "medium", "easy")),
            issue_type=one_of(REVIEW_ISSUES),
            reason=REASON,
            suggested_query={"type": "string", "maxLength": 2_000},
        ),
        {"query": query, "skill": skill},
        kept_only_as("good_implicit_reasoning"),
    )


_AUDIT = """
You are an independent evaluator of a skill-retrieval benchmark. The data is a user's request and its gold skill. Score each
criterion by itself, from 1 (clearly fails) to 5 (clearly satisfied). Neither shared words nor polish are evidence; terms of the
trade that a real user would use are no fault.
- naturalness (the request alone): a plausible request of a real user, no benchmark instruction, keyword list or explanation.
- gold_alignment: the gold skill provides the very capability, workflow or procedure that is required; topic is not enough.
- skill_necessity: doing it gains materially from a specialized skill, toolchain, workflow or procedure.
- implicitness: goal, context and limits without the skill's name, its repository or a peculiar procedure copied from it.
leakage: true only if the request directly gives the skill's name, a repository's identifier or such a procedure nearly verbatim.
pass: true only if naturalness >= 4, gold_alignment >= 4, skill_necessity >= 3, implicitness >= 3 and leakage is false.
Form: {"naturalness": 1, "gold_alignment": 1, "skill_necessity": 1, "implicitness": 1, "leakage": false, "pass": false,
"reason": "one short sentence"}
"""


def audit_passes(answer: Mapping[str, Any]) -> bool:
    """G.1's rule on the scores and the leakage of an audit."""
    return not answer["leakage"] and all(answer[key] >= least for key, least in AUDIT_MINIMUMS.items())


def _check_audit(answer: Mapping[str, Any]) -> str | None:
    expected = audit_passes(answer)
    return (
        None
        if answer["pass"] == expected
        else f"pass contradicts the scores; by the rule it is {str(expected).lower()}"
    )


def quality_audit(query_id: str, query: str, gold: Skill) -> TeacherTask:
    """The independent audit of a finished benchmark item, 12,000 characters of document (A.1, G.1)."""
    score = one_of((1, 2, 3, 4, 5))
    return make_task(
        "quality_audit",
        query_id,
        _AUDIT,
        request_block(query) | skill_blocks(gold, "gold skill"),
        "Audit the item above.",
        form(
            **dict.fromkeys(AUDIT_MINIMUMS, score),
            leakage=FLAG,
            **{"pass": FLAG},
            reason=REASON,
        ),
        {"query": query, "skill": gold},
        _check_audit,
    )
