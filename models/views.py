"""The exact strings the model reads: documents, the query views of Stage I, and the rationale prompt.

Appendix E.1 of the SkillReason paper names the pieces; the line breaks between them are pinned here and held by golden
tests, because a model trained on one spelling and served on another silently loses recall.
"""

from __future__ import annotations

from dataclasses import dataclass

TASK_INSTRUCTION = (
    "Given a task description, retrieve the most relevant skill document that would help an agent complete the task"
)
QUERY_PREFIX = f"Instruct: {TASK_INSTRUCTION}\nQuery:"
SUMMARY_ANCHOR = "In summary, the retrieval representation for this task is:"
TEACHER_SUFFIX = (
    "Based on the user task and the analysis above, retrieve the most relevant skill document that would help the agent "
    "complete the task."
)

DESCRIPTION_CHARS = 300
BODY_CHARS = 2500


@dataclass(frozen=True)
class View:
    """One model input in three parts, so that truncation can spare what must survive.

    ``text`` is their concatenation. When it is too long, the end of ``content`` is lost first and then the end of
    ``analysis``; ``prefix`` (the instruction) and ``suffix`` (the anchor) are never cut.
    """

    prefix: str
    content: str
    label: str = ""
    analysis: str = ""
    suffix: str = ""

    @property
    def text(self) -> str:
        return self.prefix + self.content + self.label + self.analysis + self.suffix


def serialize_document(name: str, description: str, body: str) -> str:
    """``name | description[:300] | body[:2500]`` (E.1); documents carry no instruction."""
    return f"{name} | {description[:DESCRIPTION_CHARS]} | {body[:BODY_CHARS]}"


def document_view(document: str) -> View:
    """An already serialized document; over-long ones lose the end of the body."""
    return View(prefix="", content=document)


def raw_view(request: str) -> View:
    """The query as it is encoded at inference: instruction and request (eqs. 1, 2)."""
    return View(prefix=QUERY_PREFIX, content=request)


def privileged_view(request: str, rationale: str) -> View:
    """[q; c] of eqs. 3 and 8-10: the request, the rationale and the summary anchor. An empty rationale keeps its label."""
    return View(QUERY_PREFIX, request, "\nQuery analysis:", rationale, f"\n{SUMMARY_ANCHOR}")


def teacher_view(request: str, rationale: str) -> View:
    """The view whose ranking distribution is the target of eq. 5: as the privileged view, with the retrieval suffix."""
    return View(QUERY_PREFIX, request, "\nQuery analysis:", rationale, f"\n{TEACHER_SUFFIX}")


_RATIONALE_INSTRUCTION = """\
Given a user task, write one concise query-analysis sentence for skill retrieval.

Requirements:
- State only the capabilities required by the user.
- Do not provide implementation steps, an extended explanation, or an answer to the task.
- Do not mention skill names or skill IDs.
- Do not output JSON, markdown, bullets, numbered steps, or labels.
- Use exactly this sentence pattern: "The user needs skills for <capability description>."
- Keep the sentence under 32 words.

USER TASK:
"""
_SHORT_RATIONALE_INSTRUCTION = "USER TASK:\n"
RATIONALE_CUE = "\n\nQUERY ANALYSIS:\n"

RATIONALE_PROMPTS = {"paper": _RATIONALE_INSTRUCTION, "short": _SHORT_RATIONALE_INSTRUCTION}


def rationale_prompt(request: str, style: str = "paper") -> View:
    """The prompt after which the policy writes a rationale: the LM branch of Stage I and the rollouts of Stage II (G.3).

    It is G.3's annotation prompt without the known capability, which the policy never sees, and it is raw text without a
    chat template. ``style="short"`` drops the written rules: a model of a few million parameters learns the sentence
    pattern from eq. 6, and two thirds of every rollout's tokens would be instructions it cannot read.
    """
    if style not in RATIONALE_PROMPTS:
        raise ValueError(f"rationale prompt style {style!r}; expected one of {sorted(RATIONALE_PROMPTS)}")
    return View(RATIONALE_PROMPTS[style], request, suffix=RATIONALE_CUE)
