"""Prompts of the training data (D.1, E.5) to the rules of Appendix G.3 and G.4; each function makes one task about one record.

The wording is ours. The benchmark's prompts are in :mod:`data_pipeline.teacher.bench_prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_pipeline.corpus import Skill
from data_pipeline.teacher.forms import (
    FLAG,
    QUERY,
    REASON,
    check_rationale,
    form,
    kept_only_as,
    make_task,
    one_of,
    request_block,
    several,
    skill_blocks,
    text,
)
from data_pipeline.teacher.task import TeacherTask

REQUESTS_PER_SKILL = 3
AUDIT_BODY_CHARS = 700
"""E.5: the body excerpt that the relevance audit sees."""
MIN_TARGETS, MAX_TARGETS = 2, 5
QUALITY_ISSUES = (
    "good",
    "malformed",
    "unnatural",
    "generic",
    "redundant",
    "target_leakage",
    "target_mismatch",
    "insufficient_context",
)
RELEVANCE_LABELS = ("strong_positive", "auxiliary_positive", "borderline_positive", "weak_generic", "wrong_positive")

_SYNTHESIS = """
You write requests that users send to an agent. The data is one skill; write three requests for which it is the right one.
- Each states a concrete need, with what the user has at hand, what limits them, or what they want back.
- They sound like users, not like test descriptions or summaries of the skill.
- They never contain the skill's name, its id, its repository or "use this skill".
- They neither restate the description nor copy a procedure that is peculiar to the document.
- All three need the same capability, in clearly different situations.
Form: {"queries": ["first request", "second request", "third request"]}
"""


def query_synthesis(skill: Skill) -> TeacherTask:
    """Three explicit requests for a skill (D.1 query synthesis, G.3)."""
    return make_task(
        "query_synthesis",
        skill.skill_id,
        _SYNTHESIS,
        skill_blocks(skill),
        "Write the three requests for the skill above.",
        form(queries=several(QUERY, REQUESTS_PER_SKILL)),
        {"skill": skill},
    )


_QUALITY = """
You review a written request that is to train a skill retriever. The data is the request, its target skill, and the other
requests written for that skill. Keep the request only if
1. it is a plausible, concrete need of a user;
2. the skill has the capability that it takes;
3. it gives enough context, limits or a wanted result to search by;
4. it neither names, summarizes nor copies the skill;
5. it differs in substance from the other requests.
issue_type: "good" with keep true; otherwise malformed, unnatural, generic, redundant, target_leakage, target_mismatch or
insufficient_context.
Form: {"keep": true, "issue_type": "good", "reason": "one short sentence"}
"""


def quality_review(record_id: str, query: str, skill: Skill, others: Sequence[str] = ()) -> TeacherTask:
    """Whether a synthesized request is kept (D.1 teacher review, G.3)."""
    listed = "\n".join(f"{number}. {' '.join(other.split())}" for number, other in enumerate(others, start=1))
    return make_task(
        "quality_review",
        record_id,
        _QUALITY,
        request_block(query, "request") | skill_blocks(skill) | request_block(listed or "(none)", "other requests"),
        "Review the request above.",
        form(keep=FLAG, issue_type=one_of(QUALITY_ISSUES), reason=REASON),
        {"query": query, "skill": skill, "others": tuple(others)},
        kept_only_as("good"),
    )


_RATIONALE = """
You write one sentence of query analysis for skill retrieval. The data is a user's task and the skill known to serve it.
- State only which capabilities the user needs: no steps, no explanation, no answer to the task.
- Take the capability from the skill and fit it to this task.
- Never contain a skill's name or id. No lists, labels or markup in the sentence.
- Exactly this pattern, under 32 words: "The user needs skills for <capability description>."
Form: {"query_capability": "The user needs skills for ..."}
"""


def rationale(record_id: str, query: str, skill: Skill) -> TeacherTask:
    """The capability-level rationale c* of a request (D.1 annotation, G.3); the negatives stay unseen.

    G.3 asks for the bare sentence; here it stands in an object, so that one reader checks all answers.
    """
    return make_task(
        "rationale",
        record_id,
        _RATIONALE,
        request_block(query, "user task") | skill_blocks(skill, "known skill"),
        "Write the sentence for the task above.",
        form(query_capability=text(400)),
        {"query": query, "skill": skill},
        check_rationale,
    )


_QUERY_ANALYSIS = """
You write one sentence of query analysis for skill retrieval. The data is a user's task; which skill serves it is not known.
- State only which capabilities the user needs: no steps, no explanation, no answer to the task.
- No names of skills or products that the task does not name. No lists, labels or markup in the sentence.
- Exactly this pattern, under 32 words: "The user needs skills for <capability description>."
Form: {"query_capability": "The user needs skills for ..."}
"""


def query_analysis(record_id: str, query: str) -> TeacherTask:
    """The rationale of a request at inference (Table 9, teacher-CoT augmentation): G.3's without the known capability."""
    return make_task(
        "query_analysis",
        record_id,
        _QUERY_ANALYSIS,
        request_block(query, "user task"),
        "Write the sentence for the task above.",
        form(query_capability=text(400)),
        {"query": query},
        check_rationale,
    )


_REWRITE = """
You rewrite an explicit request as a user would put it who knows the goal but not the method. The data is the request, what it
requires, and its target skill.
- Keep the task, the inputs at hand, the limits and the wanted result; the target skill must stay the right one.
- Speak of goals and results, not of tools, algorithms, interfaces, packages or capabilities by name.
- Keep enough of the task to search by. Add no demand that neither the request nor the skill has.
- Never contain the skill's name or id, nor wording of its document.
Form: {"implicit_query": "...", "reason": "one short sentence"}
"""


def implicit_rewrite(record_id: str, query: str, query_capability: str, skill: Skill) -> TeacherTask:
    """The implicit Stage-II wording of a Stage-I request (D.1, G.3)."""
    blocks = request_block(query, "original request") | request_block(query_capability, "required capability")
    return make_task(
        "implicit_rewrite",
        record_id,
        _REWRITE,
        blocks | skill_blocks(skill, "target skill"),
        "Rewrite the original request above.",
        form(implicit_query=QUERY, reason=REASON),
        {"query": query, "query_capability": query_capability, "skill": skill},
    )


_CATEGORY = """
You sort skills into categories. The data is one skill. Choose the one category in which somebody would look for it first, by
what it does and not by the words it uses.
Categories: {labels}
Form: {{"category": "...", "reason": "one short sentence"}}
"""


def category(skill: Skill, labels: Sequence[str]) -> TeacherTask:
    """The category of a skill, one of ``labels``: for corpora whose ids do not tell it (D.1 groups by category)."""
    return make_task(
        "category",
        skill.skill_id,
        _CATEGORY.format(labels=", ".join(labels)),
        skill_blocks(skill),
        "Choose the category of the skill above.",
        form(category=one_of(labels), reason=REASON),
        {"skill": skill, "labels": tuple(labels)},
    )


_MULTI_SKILL = """
You write a compound task that a user gives to an agent. The data is several skills, numbered; the task must need every one of
them, each for a part that the others cannot do.
- One coherent piece of work with concrete inputs and a wanted result, in two to five sentences, as a user would say it.
- Never contain the name, id or repository of a skill, nor the word "skill"; do not go through the skills one by one.
- needs: for each skill, in their order, the part of the task that requires it, in a few words.
- query_capability: exactly "The user needs skills for <all capabilities>.", under 32 words.
Form: {"query": "...", "needs": ["part that needs skill 1", "..."], "query_capability": "The user needs skills for ..."}
"""


def multi_skill_task(record_id: str, skills: Sequence[Skill]) -> TeacherTask:
    """A task that needs two to five skills at once (E.5), with its rationale for the reranker's auxiliary losses.

    Raises:
        ValueError: another number of skills.
    """
    if not MIN_TARGETS <= len(skills) <= MAX_TARGETS:
        raise ValueError(f"{record_id}: {len(skills)} skills; expected {MIN_TARGETS} to {MAX_TARGETS} for one task")
    blocks: dict[str, str] = {}
    for number, skill in enumerate(skills, start=1):
        blocks |= skill_blocks(skill, f"skill {number}", document_chars=4_000)
    return make_task(
        "multi_skill_task",
        record_id,
        _MULTI_SKILL,
        blocks,
        f"Write one task that needs all {len(skills)} skills above.",
        form(query=QUERY, needs=several(text(300), len(skills)), query_capability=text(400)),
        {"skills": tuple(skills)},
        check_rationale,
    )


_RELEVANCE = """
You judge whether one candidate skill is a valid target of a request that may need several skills. The data is the request and
the candidate. Go by what the candidate's text documents; do not infer what is not there.
- strong_positive: it directly provides a core capability; without it an essential part of the request stays undone.
- auxiliary_positive: it provides a concrete capability for a secondary part that the request does name.
- borderline_positive: plausibly useful, but request or text are not evidence enough.
- weak_generic: it offers something broad where the request takes a specific tool, workflow or procedure.
- wrong_positive: no capability that the request needs, or another task.
Shared words, similarity, rank or general helpfulness never make a positive.
Form: {"label": "strong_positive", "reason": "one short sentence"}
"""


def relevance_audit(record_id: str, query: str, candidate: Skill) -> TeacherTask:
    """The label of a query-skill relation of the reranker's data (E.5, G.4), by name, description and 700 characters of body."""
    return make_task(
        "relevance_audit",
        record_id,
        _RELEVANCE,
        request_block(query) | skill_blocks(candidate, "candidate", AUDIT_BODY_CHARS),
        "Label the candidate for the request above.",
        form(label=one_of(RELEVANCE_LABELS), reason=REASON),
        {"query": query, "candidate": candidate},
    )
