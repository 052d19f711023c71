"""Whether a written text gives its target away by name (C.4, D.1)."""

from __future__ import annotations

from data_pipeline.corpus import Skill
from data_pipeline.isolation import normalize


def names_skill(text: str, skill: Skill) -> bool:
    """The text contains the skill's name, or its id's last part, as a phrase; case, hyphens and punctuation do not matter.

    Names of a single word do not count: many are plain words of the field (``kubernetes``), which a request may use.
    """
    padded = f" {normalize(text)} "
    names = {normalize(skill.name), normalize(skill.skill_id.rsplit("/", 1)[-1])}
    return any(len(name.split()) > 1 and f" {name} " in padded for name in names)
