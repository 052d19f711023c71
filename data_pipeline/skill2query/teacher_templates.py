"""The Query Template Generator by a teacher model (3.3.2): one system prompt and one answer form for every method (A.2).

Table 9, which held the paper's prompt, is lost; the rules here are ours, from the prose of 3.3.2, A.2 and A.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data_pipeline.skill2query.graph import Capability, Parameter, SkillGraph
from data_pipeline.skill2query.pseudo_query import Form, Template
from data_pipeline.skill2query.style import Style, sentence_form
from data_pipeline.skill2query.templates import parameter_marks
from data_pipeline.skill2query.wording import MARK, action_of, names
from data_pipeline.teacher.forms import DESCRIPTION_CHARS, NAME_CHARS, form, make_task, one_of, text
from data_pipeline.teacher.task import Check, TeacherTask
from data_pipeline.teacher.untrusted import cut

KIND = "query_templates"
CAPABILITIES_PER_TASK = 5
EXAMPLES_SHOWN = 8
EXAMPLE_CHARS = 500
TEMPLATE_CHARS = 300
MIN_WORDS, MAX_WORDS = 3, 40

RULES = """
You write query templates: sentences that a user would type to an agent when they need what the skill in the data does.
- A template asks for one thing. Where the data lists capabilities with ids, it asks for exactly one of them, and "capability" is
  that id. Where the data lists none, "capability" is an empty string.
- What changes from one use to the next is a slot: a name in braces, such as {file}, of lower-case letters and underscores.
  Where the data lists slots for a capability, use only those, and always the required ones. Where it lists none, use slots
  for the inputs that the skill evidently takes, or no slot. Never put a value in the place of a slot.
- "form" is the form of the sentence: imperative ("Extract the tables from {file}."), yes_no ("Can you extract the tables from
  {file}?"), wh ("How do I extract the tables from {file}?") or indirect ("I need the tables from {file}."). Use all four,
  equally often.
- Short, concrete and natural: 3 to 40 words, in the manner of the usage examples where the data has some. The sentence reads well
  when its slots are filled: articles, number and prepositions fit.
- Never contain the skill's name or id, the word "skill", markup, or a copy of a sentence of the data.
Form: {"templates": [{"capability": "c1", "form": "imperative", "template": "..."}]}
"""
"""Shared by all methods (A.2): only the data differs."""


def template_task(
    record_id: str,
    blocks: Mapping[str, str],
    count: int,
    name: str,
    inputs: Mapping[str, Any],
    slots: Mapping[str, Mapping[str, Parameter]] | None = None,
) -> TeacherTask:
    """A task for up to ``count`` templates.

    Args:
        name: the skill's, which no template may contain.
        slots: for each capability id the marks that its templates may use; None where the method knows no capabilities.
    """
    item = form(capability=_identifier(slots), form=one_of([str(kind) for kind in Form]), template=text(TEMPLATE_CHARS))
    schema = form(templates={"type": "array", "items": item, "minItems": 1, "maxItems": count})
    order = f"Write {count} templates for the skill above."
    return make_task(KIND, record_id, RULES, blocks, order, schema, inputs, _check(name, slots))


def _identifier(slots: Mapping[str, Any] | None) -> dict[str, Any]:
    return one_of(list(slots)) if slots else {"type": "string", "enum": [""]}


def graph_tasks(
    graph: SkillGraph, style: Style, capabilities: Sequence[Capability], count: int
) -> Iterator[TeacherTask]:
    """Tasks for ``count`` templates of each of these capabilities of a graph, five capabilities a task."""
    for start in range(0, len(capabilities), CAPABILITIES_PER_TASK):
        chunk = capabilities[start : start + CAPABILITIES_PER_TASK]
        slots = {capability.node_id: parameter_marks(graph.parameters_of(capability)) for capability in chunk}
        yield template_task(
            f"skill2query/{graph.skill_id}/{start // CAPABILITIES_PER_TASK}",
            graph_blocks(graph, style, chunk, slots),
            count * len(chunk),
            graph.name,
            {"graph": graph, "slots": slots},
            slots,
        )


def graph_blocks(
    graph: SkillGraph,
    style: Style,
    capabilities: Sequence[Capability],
    slots: Mapping[str, Mapping[str, Parameter]],
) -> dict[str, str]:
    """The parsed graph as data: metadata, capabilities with their slots, style and usage examples."""
    listed = [
        {
            "id": capability.node_id,
            "does": action_of(capability.text) or capability.text,
            "detail": cut(capability.detail, EXAMPLE_CHARS),
            "slots": [_shown(mark, parameter) for mark, parameter in slots[capability.node_id].items()],
        }
        for capability in capabilities
    ]
    blocks = metadata_blocks(graph.name, graph.description)
    blocks["capabilities"] = json.dumps(listed, ensure_ascii=False, indent=1)
    if style.examples:
        blocks["style"] = json.dumps(_pattern(style), ensure_ascii=False)
    return blocks | example_block([example.text for example in graph.examples][:EXAMPLES_SHOWN])


def metadata_blocks(name: str, description: str) -> dict[str, str]:
    """What every method sees: name and description."""
    return {"skill name": cut(name, NAME_CHARS), "skill description": cut(description, DESCRIPTION_CHARS)}


def example_block(examples: Sequence[str]) -> dict[str, str]:
    """Usage examples, numbered; nothing where there are none."""
    lines = [f"{number}. {cut(' '.join(e.split()), EXAMPLE_CHARS)}" for number, e in enumerate(examples, start=1)]
    return {"usage examples": "\n".join(lines)} if lines else {}


def graph_templates(task: TeacherTask, answer: Mapping[str, Any], writer: str) -> list[Template]:
    """The templates of an answer to one of :func:`graph_tasks`, slots tied to the parameters of their capability."""
    graph: SkillGraph = task.inputs["graph"]
    slots: Mapping[str, Mapping[str, Parameter]] = task.inputs["slots"]
    chunk = task.task_id.rpartition("/")[2]
    return [
        Template(
            template_id=f"{graph.skill_id}:{row['capability']}:{chunk}.{number}",
            skill_id=graph.skill_id,
            capability_id=row["capability"],
            form=Form(row["form"]),
            text=" ".join(row["template"].split()),
            slots={mark: slots[row["capability"]][mark].node_id for mark in MARK.findall(row["template"])},
            writer=writer,
        )
        for number, row in enumerate(answer["templates"])
    ]


def _check(name: str, slots: Mapping[str, Mapping[str, Parameter]] | None) -> Check:
    """What the schema cannot say. Required slots are left to the static validation: Exec-Pass is to measure them."""

    def check(answer: dict[str, Any]) -> str | None:
        for number, row in enumerate(answer["templates"]):
            known = None if slots is None else slots[row["capability"]]
            problem = template_problem(row["template"], Form(row["form"]), name, known)
            if problem:
                return f"templates[{number}]: {problem}"
        return None

    return check


def template_problem(template: str, kind: Form, name: str, known: Mapping[str, Parameter] | None) -> str | None:
    """Why a written template cannot be used, or None. ``known``: the marks it may have; None: any."""
    unknown = next((mark for mark in MARK.findall(template) if known is not None and mark not in known), None)
    if unknown is not None:
        return (
            f"slot {{{unknown}}}; expected one of {', '.join(known or ()) or 'none, this capability has no parameters'}"
        )
    plain = MARK.sub("x", template)
    if re.search(r"[{}<>`*#\n]", plain):
        return "braces that are no slot, or markup; expected plain text with slots such as {file}"
    if not MIN_WORDS <= len(plain.split()) <= MAX_WORDS:
        return f"{len(plain.split())} words; expected {MIN_WORDS} to {MAX_WORDS}"
    if names(plain, name):
        return "the skill's name; expected a request that does not name it"
    asked = plain.rstrip(" \"'").endswith("?")
    if (kind in (Form.YES_NO, Form.WH) and not asked) or (
        kind == Form.IMPERATIVE and sentence_form(plain) in (Form.YES_NO, Form.WH)
    ):
        return f"not a sentence of form {kind}; expected the form that it has"
    return None


def _shown(mark: str, parameter: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {"slot": mark, "type": str(parameter.type), "required": parameter.required}
    optional = {
        "values": list(parameter.values),
        "default": parameter.default,
        "minimum": parameter.minimum,
        "maximum": parameter.maximum,
        "examples": list(parameter.examples),
        "unit": parameter.unit,
        "about": cut(parameter.description, EXAMPLE_CHARS),
    }
    return shown | {key: value for key, value in optional.items() if value not in (None, "", [])}


def _pattern(style: Style) -> dict[str, Any]:
    return {
        "median words": style.words,
        "forms": {str(kind): count for kind, count in style.forms.items()},
        "polite share": round(style.polite, 2),
        "person": style.person,
    }
