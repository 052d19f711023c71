"""Training requests taken from a skill's own text, for libraries with few requests or none.

Short passages of a SKILL.md are no substitute for requests that people wrote, but they teach a backbone without pretraining
which words belong to which skill, the rare ones above all: no passage can be told apart by the few words that whole
requests repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from data_pipeline.build import BuiltRecords, build_records
from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.negatives import NegativeQuotas
from data_pipeline.records import SELF_PREFIX, TrainingRequest

PASSAGE_WORDS = 8  # the shortest request that D.1 admits
STRIDE = 4
MAX_RATIONALE_WORDS = 31  # G.3: under 32

_ITEM = re.compile(r"^\s*[-*+]\s+(.+)$", re.MULTILINE)
_CAPABILITIES = re.compile(r"^#+\s*Capabilities\s*$\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL | re.IGNORECASE)
_CODE = re.compile(r"```.*?```", re.DOTALL)
_MARKUP = re.compile(r"[*_`#>|\"“”-]+")


def self_requests(corpus: SkillCorpus, words: int = PASSAGE_WORDS, stride: int = STRIDE) -> list[TrainingRequest]:
    """Overlapping passages of each skill's description and body, each with one of its capabilities as rationale.

    Record ids are ``self/<skill_id>/<n>``, by which they can be told from requests that somebody wrote; there is no
    ``implicit_query``, so they take part in Stage I alone. Code blocks are left out.

    Args:
        words: length of a passage.
        stride: words from one passage to the next.
    """
    return [request for skill in corpus for request in _of_skill(skill, words, stride)]


def add_self_requests(built: BuiltRecords, corpus: SkillCorpus, seed: int = 42, progress: bool = False) -> BuiltRecords:
    """Append Stage-I records of :func:`self_requests`, each with the nearest skill as its one explicit negative.

    Ten negatives a passage would repeat every document of the library some thousand times; the batch supplies the others.
    """
    quotas = NegativeQuotas(skill_neighbours=1, query_neighbours=0, same_category=0, cross_category=0)
    own = build_records(self_requests(corpus), corpus, quotas=quotas, seed=seed, progress=progress)
    counts = {"stage1_records": len(own.stage1), "passage_words": PASSAGE_WORDS, "stride": STRIDE}
    manifest = {**built.manifest, "self_requests": counts}
    return replace(built, stage1=[*built.stage1, *own.stage1], manifest=manifest)


def _of_skill(skill: Skill, words: int, stride: int) -> Iterator[TrainingRequest]:
    section = _CAPABILITIES.search(skill.body)
    listed = [_clean(item) for item in _ITEM.findall(section.group(1))] if section else []
    capabilities = [c for c in listed if c] or [_clean(skill.description)]
    text = _clean(f"{skill.description}\n{_CODE.sub(' ', skill.body)}").split()
    for number, start in enumerate(range(0, len(text) - words + 1, stride)):
        yield TrainingRequest(
            record_id=f"{SELF_PREFIX}{skill.skill_id}/{number}",
            skill_id=skill.skill_id,
            query=" ".join(text[start : start + words]),
            query_capability=_rationale(capabilities[number % len(capabilities)]),
        )


def _clean(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def _rationale(capability: str) -> str:
    words = capability.rstrip(" .;:").split()[: MAX_RATIONALE_WORDS - 5]
    if words and words[0][1:].islower():
        words[0] = words[0].lower()
    return f"The user needs skills for {' '.join(words)}."
