"""Training requests taken from a skill's own text, for libraries with few requests or none.

Short passages of a SKILL.md are no substitute for requests that people wrote, but they teach a backbone without pretraining
which words belong to which skill, the rare ones above all: no passage can be told apart by the few words that whole
requests repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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


def self_requests(
    corpus: SkillCorpus,
    requests: Sequence[TrainingRequest] = (),
    words: int = PASSAGE_WORDS,
    stride: int = STRIDE,
) -> list[TrainingRequest]:
    """Overlapping passages of each skill's description and body, and of the training requests there are.

    A passage of a skill has one of its capabilities as rationale, a passage of a request that request's own. Record ids are
    ``self/<skill_id>/<n>`` and ``self/<skill_id>/<record_id>/<n>``, by which they can be told from requests that somebody
    wrote; there is no ``implicit_query``, so they take part in Stage I alone. Code blocks are left out.

    Args:
        requests: their explicit and implicit wordings are cut up as well; requests for skills not in the corpus are left out.
        words: length of a passage.
        stride: words from one passage to the next.
    """
    made = [passage for skill in corpus for passage in _of_skill(skill, words, stride)]
    for request in requests:
        if request.skill_id in corpus:
            made.extend(_of_request(request, words, stride))
    return made


def add_self_requests(
    built: BuiltRecords,
    corpus: SkillCorpus,
    requests: Sequence[TrainingRequest] = (),
    seed: int = 42,
    progress: bool = False,
) -> BuiltRecords:
    """Append Stage-I records of :func:`self_requests`, each with the nearest skill as its one explicit negative.

    Ten negatives a passage would repeat every document of the library some thousand times; the batch supplies the others.
    """
    quotas = NegativeQuotas(skill_neighbours=1, query_neighbours=0, same_category=0, cross_category=0)
    own = build_records(
        self_requests(corpus, requests),
        corpus,
        quotas=quotas,
        seed=seed,
        document_format=built.manifest["document_format"],
        progress=progress,
    )
    counts = {"stage1_records": len(own.stage1), "passage_words": PASSAGE_WORDS, "stride": STRIDE}
    manifest = {**built.manifest, "self_requests": counts}
    return replace(built, stage1=[*built.stage1, *own.stage1], manifest=manifest)


def _of_skill(skill: Skill, words: int, stride: int) -> Iterator[TrainingRequest]:
    section = _CAPABILITIES.search(skill.body)
    listed = [_clean(item) for item in _ITEM.findall(section.group(1))] if section else []
    capabilities = [c for c in listed if c] or [_clean(skill.description)]
    passages = _passages(f"{skill.description}\n{_CODE.sub(' ', skill.body)}", words, stride)
    for number, passage in enumerate(passages):
        rationale = _rationale(capabilities[number % len(capabilities)])
        yield TrainingRequest(f"{SELF_PREFIX}{skill.skill_id}/{number}", skill.skill_id, passage, rationale)


def _of_request(request: TrainingRequest, words: int, stride: int) -> Iterator[TrainingRequest]:
    passages = [p for text in (request.query, request.implicit_query) for p in _passages(text, words, stride)]
    for number, passage in enumerate(passages):
        record_id = f"{SELF_PREFIX}{request.skill_id}/{request.record_id}/{number}"
        yield TrainingRequest(record_id, request.skill_id, passage, request.query_capability)


def _passages(text: str, words: int, stride: int) -> list[str]:
    found = _clean(text).split()
    return [" ".join(found[start : start + words]) for start in range(0, len(found) - words + 1, stride)]


def _clean(text: str) -> str:
    return " ".join(_MARKUP.sub(" ", text).split())


def _rationale(capability: str) -> str:
    words = capability.rstrip(" .;:").split()[: MAX_RATIONALE_WORDS - 5]
    if words and words[0][1:].islower():
        words[0] = words[0].lower()
    return f"The user needs skills for {' '.join(words)}."
