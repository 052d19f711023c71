"""The exact strings the model reads: documents, the query views of Stage I, and the rationale prompt.

Appendix E.1 of the SkillReason paper names the pieces; the line breaks between them are pinned here and held by golden
tests, because a model trained on one spelling and served on another silently loses recall.
"""

from __future__ import annotations

import re
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
QUERY_CHARS = 1500
"""Of a request that models of the ``skill2query`` document format see (C.2.1 of the Skill2Query paper)."""

DEFAULT_FORMAT = "skillreason"
_LAYOUTS = {"skillreason": ("", "", "", " | "), "skill2query": ("Name: ", "Description: ", "Body: ", "\n")}
DOCUMENT_FORMATS = tuple(_LAYOUTS)
"""How a document is put together; a model is trained, exported and searched with one of them."""
_NAMED = re.compile(r"Name: [^\n]*(?:\n(?:Description|Body): |$)")


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


def serialize_document(
    name: str,
    description: str | None = None,
    body: str | None = None,
    document_format: str = DEFAULT_FORMAT,
    *,
    description_chars: int = DESCRIPTION_CHARS,
    body_chars: int = BODY_CHARS,
) -> str:
    """``name | description[:300] | body[:2500]`` (E.1), or the lines of C.2.1 of the Skill2Query paper.

    Those are ``Name: …``, ``Description: …`` and ``Body: …``, cut alike; the paper's text keeps the first label only, the other
    two are ours. Documents carry no instruction. A part that is None is left out with its label, as the poorer index
    configurations of that paper want it.

    Raises:
        ValueError: no such format.
    """
    if document_format not in _LAYOUTS:
        raise ValueError(f"document format {document_format!r}; expected one of {', '.join(DOCUMENT_FORMATS)}")
    *labels, separator = _LAYOUTS[document_format]
    parts = (
        name,
        None if description is None else description[:description_chars],
        None if body is None else body[:body_chars],
    )
    return separator.join(label + part for label, part in zip(labels, parts, strict=True) if part is not None)


def format_of_document(document: str) -> str:
    """The format in which a document was serialized: records keep the text alone, and it says enough."""
    return "skill2query" if _NAMED.match(document) else DEFAULT_FORMAT


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
