"""The three baselines of A.1: the same prompt, answer form, filling and checks; only what the teacher sees of a skill differs.

- ``zero_shot``: name and description.
- ``few_shot``: besides, up to three usage examples of the same document, drawn at random.
- ``skillflow``: the whole document as flat text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from data_pipeline.corpus import Skill
from data_pipeline.skill2query.filling import STRUCTURED, GenerationConfig
from data_pipeline.skill2query.graph import SkillGraph
from data_pipeline.skill2query.pseudo_query import Form, Template
from data_pipeline.skill2query.teacher_templates import example_block, metadata_blocks, template_task
from data_pipeline.skill2query.wording import MARK, mark_of
from data_pipeline.teacher.forms import skill_blocks
from data_pipeline.teacher.task import TeacherTask

FEW_SHOT_EXAMPLES = 3


def baseline_task(skill: Skill, graph: SkillGraph, config: GenerationConfig) -> TeacherTask:
    """The question of a baseline about one skill. Of the graph it takes the usage examples alone, and only for few-shot.

    Raises:
        ValueError: a method that is no baseline.
    """
    blocks = metadata_blocks(skill.name, skill.description)
    if config.method == "few_shot":
        blocks |= example_block(few_shot_examples(graph, config.seed))
    elif config.method == "skillflow":
        blocks = skill_blocks(skill)
    elif config.method == STRUCTURED:
        raise ValueError(f"method {config.method!r} is no baseline; expected zero_shot, few_shot or skillflow")
    record_id = f"{config.method}/{skill.skill_id}"
    return template_task(record_id, blocks, config.per_skill, skill.name, {"skill": skill, "graph": graph})


def few_shot_examples(graph: SkillGraph, seed: int) -> list[str]:
    """Up to three of the document's usage examples, the same for the same skill and seed, in the document's order."""
    texts = list(dict.fromkeys(example.text for example in graph.examples))
    chosen = random.Random(f"{seed}/{graph.skill_id}").sample(range(len(texts)), min(FEW_SHOT_EXAMPLES, len(texts)))
    return [texts[place] for place in sorted(chosen)]


def baseline_templates(graph: SkillGraph, method: str, answer: Mapping[str, Any], writer: str) -> list[Template]:
    """The templates of an answer, without capabilities; a slot belongs to the parameter whose name has the same words, if any."""
    known = {mark_of(parameter.name): parameter.node_id for parameter in reversed(graph.parameters)}
    return [
        Template(
            template_id=f"{graph.skill_id}:{method}:{number}",
            skill_id=graph.skill_id,
            capability_id="",
            form=Form(row["form"]),
            text=" ".join(row["template"].split()),
            slots={mark: known.get(mark_of(mark), "") for mark in MARK.findall(row["template"])},
            writer=writer,
        )
        for number, row in enumerate(answer["templates"])
    ]
