"""Offline index augmentation (3.4 of the Skill2Query paper): pseudo-queries as part of the text that is indexed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from data_pipeline.corpus import INDEX_TEXT, Skill, SkillCorpus
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from models.views import DEFAULT_FORMAT, serialize_document

PER_SKILL = 10
"""Pseudo-queries a skill by default."""


class IndexConfig(StrEnum):
    """What of a skill is indexed (Tables 1 to 4)."""

    NAME = "name"
    NAME_DESCRIPTION = "name_description"
    FULL = "full"


class Placement(StrEnum):
    """Where the pseudo-queries stand in the text.

    ``append`` is the paper's: after everything else. A lexical index does not care. An encoder that keeps 256 tokens of a
    body of 2,500 characters never sees what is appended to it: ``before_body`` puts the queries after the description, so
    that the end of the body is what is lost.
    """

    APPEND = "append"
    BEFORE_BODY = "before_body"


def index_texts(
    corpus: SkillCorpus,
    config: IndexConfig | str = IndexConfig.FULL,
    pseudo_queries: Iterable[PseudoQuery] | None = None,
    per_skill: int = PER_SKILL,
    placement: Placement | str = Placement.APPEND,
    document_format: str = DEFAULT_FORMAT,
) -> list[str]:
    """The text to index for each skill, in corpus order.

    The document of the chosen configuration, cut as always (description 300, body 2,500 characters), and the skill's
    pseudo-queries, a line each; these are never cut. Without pseudo-queries the plain document: the baseline.

    Args:
        pseudo_queries: of any skills; those of skills that the corpus lacks are left alone.
        per_skill: at most so many a skill, see :func:`select_queries`.
        document_format: the model's, see :func:`models.views.serialize_document`.

    Raises:
        ValueError: an unknown configuration or placement, or ``per_skill`` below 1.
    """
    config, placement = _member(IndexConfig, config, "config"), _member(Placement, placement, "placement")
    chosen = select_by_skill(pseudo_queries or (), per_skill)
    return [_index_text(skill, config, chosen.get(skill.skill_id, ()), placement, document_format) for skill in corpus]


def augment_corpus(
    corpus: SkillCorpus,
    pseudo_queries: Iterable[PseudoQuery],
    config: IndexConfig | str = IndexConfig.FULL,
    per_skill: int = PER_SKILL,
    placement: Placement | str = Placement.APPEND,
    document_format: str = DEFAULT_FORMAT,
) -> SkillCorpus:
    """The same skills with :func:`index_texts` as their own ``index_text``, which every command then indexes."""
    texts = index_texts(corpus, config, pseudo_queries, per_skill, placement, document_format)
    return SkillCorpus(
        replace(skill, metadata={**skill.metadata, INDEX_TEXT: text}) for skill, text in zip(corpus, texts, strict=True)
    )


def select_by_skill(queries: Iterable[PseudoQuery], per_skill: int = PER_SKILL) -> dict[str, list[str]]:
    """Texts of the chosen pseudo-queries by skill id, see :func:`select_queries`."""
    by_skill: dict[str, list[PseudoQuery]] = {}
    for query in queries:
        by_skill.setdefault(query.skill_id, []).append(query)
    return {skill_id: select_queries(own, per_skill) for skill_id, own in by_skill.items()}


def select_queries(queries: Sequence[PseudoQuery], per_skill: int = PER_SKILL) -> list[str]:
    """Up to ``per_skill`` different texts of one skill's pseudo-queries.

    Those that pass every check come before those that do not. Of each capability the first one is taken, then of each the
    second, and so on, and of a capability's templates each once before any twice: functional coverage comes first (A.4.2), and
    several fillings of one template add little but their values.

    Raises:
        ValueError: ``per_skill`` below 1.
    """
    if per_skill < 1:
        raise ValueError(f"per_skill is {per_skill}; expected at least 1")
    different: dict[str, PseudoQuery] = {}
    for query in queries:
        different.setdefault(" ".join(query.query.lower().split()), query)
    ranked = list(different.values())
    for key in ("template_id", "capability_id"):
        ranked = _in_turns(ranked, key)
    ranked.sort(key=lambda query: not query.valid)
    return [" ".join(query.query.split()) for query in ranked[:per_skill]]


E = TypeVar("E", bound=StrEnum)


def _member(kind: type[E], value: str, name: str) -> E:
    if value not in list(kind):
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(kind)}")
    return kind(value)


def _in_turns(queries: Sequence[PseudoQuery], key: str) -> list[PseudoQuery]:
    """The first query of each group that shares ``key``, then the second of each, and so on; valid ones count for themselves."""
    seen: Counter[tuple[bool, str]] = Counter()
    turns: list[int] = []
    for query in queries:
        group = (query.valid, getattr(query, key))
        turns.append(seen[group])
        seen[group] += 1
    return [queries[i] for i in sorted(range(len(queries)), key=turns.__getitem__)]


def _index_text(
    skill: Skill, config: IndexConfig, queries: Sequence[str], placement: Placement, document_format: str
) -> str:
    description = None if config == IndexConfig.NAME else skill.description
    head = serialize_document(skill.name, description, document_format=document_format)
    body = ""
    if config == IndexConfig.FULL:
        body = serialize_document(skill.name, description, skill.body, document_format)[len(head) :]
    added = "".join(f"\n{query}" for query in queries)
    return head + body + added if placement == Placement.APPEND else head + added + body
