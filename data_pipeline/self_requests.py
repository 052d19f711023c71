"""Training requests taken from a skill's own text, for libraries with few requests or none.

The sentences and list items of a SKILL.md are what its author says the skill is asked for and does. They are no substitute
for requests that people wrote, but they show a backbone without pretraining which words belong together.
"""

from __future__ import annotations

import hashlib
import re

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.records import TrainingRequest
from data_pipeline.validation import query_problem

MIN_WORDS, MAX_WORDS = 8, 60
MAX_RATIONALE_WORDS = 31

_ITEM = re.compile(r"^\s*[-*+]\s+(.+)$", re.MULTILINE)
_CAPABILITIES = re.compile(r"^#+\s*Capabilities\s*$\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_CODE = re.compile(r"```.*?```", re.DOTALL)
_MARKUP = re.compile(r"[*_`#>|\"“”]+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n{2,}")


def self_requests(corpus: SkillCorpus, per_skill: int = 0) -> list[TrainingRequest]:
    """Requests made of each skill's own sentences and list items, with a rationale made of its capabilities.

    Rows carry record ids ``self/<skill_id>/<n>``, by which they can be told from requests that somebody wrote; ``implicit_query``
    is empty, so they take part in Stage I alone.

    Args:
        per_skill: at most so many, chosen by hash; 0 keeps all.
    """
    return [request for skill in corpus for request in _of_skill(skill, per_skill)]


def _of_skill(skill: Skill, per_skill: int) -> list[TrainingRequest]:
    body = _CODE.sub(" ", skill.body)
    section = _CAPABILITIES.search(body)
    listed = [_clean(item) for item in _ITEM.findall(section.group(1))] if section else []
    capabilities = [c for c in listed if c] or [_clean(skill.description)]
    prose = "\n\n".join(line for line in body.splitlines() if not line.lstrip().startswith(("#", "|")))
    pieces = [_clean(p) for p in (*_ITEM.findall(body), *_SENTENCE_END.split(_ITEM.sub("", prose)))]
    texts = [p for p in dict.fromkeys(pieces) if MIN_WORDS <= len(p.split()) <= MAX_WORDS and query_problem(p) is None]
    if per_skill > 0:
        texts = sorted(texts, key=lambda t: hashlib.sha256(f"{skill.skill_id}:{t}".encode()).digest())[:per_skill]
    return [
        TrainingRequest(
            record_id=f"self/{skill.skill_id}/{number}",
            skill_id=skill.skill_id,
            query=text,
            query_capability=_rationale(capabilities[number % len(capabilities)]),
        )
        for number, text in enumerate(texts)
    ]


def _clean(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def _rationale(capability: str) -> str:
    words = capability.rstrip(" .;:").split()[: MAX_RATIONALE_WORDS - 5]
    if words and words[0][1:].islower():
        words[0] = words[0].lower()
    return f"The user needs skills for {' '.join(words)}."
