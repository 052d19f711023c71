"""A library as it is now against an index of it: what was added, changed and removed, and what cannot be read just now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.cleaning import DroppedRecord, clean
from data_pipeline.corpus import INDEX_TEXT, Skill, SkillCorpus, metadata_from_row, skill_to_row
from data_pipeline.ingest import read_raw
from serving.index import SkillIndex, absolute_path


@dataclass(frozen=True)
class Library:
    """Skills as they were found.

    Attributes:
        skills: the usable ones.
        dropped: records that cleaning removed, see :func:`data_pipeline.cleaning.clean`.
        source: the paths that they came from.
        cleaned: whether the skills were read from folders, not from a corpus file.
    """

    skills: SkillCorpus
    dropped: list[DroppedRecord]
    source: list[str]
    cleaned: bool


@dataclass(frozen=True)
class UpdatePlan:
    """The difference between a library and an index; ids in the library's order.

    Attributes:
        skills: what the index is going to hold.
        added, changed, removed: ids of skills; a skill whose fields are the same in every byte is unchanged.
        broken: records of indexed skills that are there and cannot be used; the index keeps what it has of them.
        unusable: records of new skills that cannot be used.
        outdated: changed skills whose ``index_text`` no longer fits and was left out; only where the library has none.
        dropped: records by the reason for which cleaning removed them, the broken ones included.
    """

    skills: SkillCorpus
    added: list[str]
    changed: list[str]
    removed: list[str]
    broken: list[DroppedRecord]
    unusable: list[DroppedRecord]
    outdated: list[str]
    dropped: dict[str, int]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.added or self.changed or self.removed)


def read_library(skills: Sequence[str | Path] = (), corpus: str | Path | None = None) -> Library:
    """The skills of folders (or of whatever ``skillreason ingest`` takes), cleaned; or of a corpus file, as it stands.

    Raises:
        ValueError: both or neither are given, no usable skill is left, or a row of the corpus is wrong.
        FileNotFoundError: a path is missing, or a folder has no SKILL.md.
    """
    if bool(skills) == (corpus is not None):
        raise ValueError("expected either folders of skills (--skills) or a corpus file (--corpus)")
    if corpus is not None:
        return Library(SkillCorpus.from_jsonl(corpus), [], [absolute_path(corpus)], cleaned=False)
    result = clean(raw for path in skills for raw in read_raw(str(path)))
    if not result.kept:
        raise ValueError(
            f"no usable skill in {', '.join(map(str, skills))} ({result.reasons}); skillreason ingest says more"
        )
    return Library(SkillCorpus(result.kept), result.dropped, [absolute_path(path) for path in skills], cleaned=True)


def plan_update(index: SkillIndex, library: Library) -> UpdatePlan:
    """Compare an index with its library.

    A skill that is there but cannot be read, as a file that is just being edited, keeps its place in the index. A folder has no
    ``index_text``: a skill that is otherwise unchanged keeps the one that it has in the index.
    """
    old = {skill.skill_id: skill for skill in index.skills}
    skills, added, changed, outdated = [], [], [], []
    for found in library.skills:
        skill = replace(found, metadata=metadata_from_row(found.metadata))
        before = old.get(skill.skill_id)
        if before is None:
            added.append(skill.skill_id)
        else:
            if library.cleaned and INDEX_TEXT in before.metadata and INDEX_TEXT not in skill.metadata:
                if _same_text(before, skill):
                    skill = replace(skill, metadata=skill.metadata | {INDEX_TEXT: before.metadata[INDEX_TEXT]})
                else:
                    outdated.append(skill.skill_id)
            if skill_to_row(skill) != skill_to_row(before):
                changed.append(skill.skill_id)
        skills.append(skill)
    present = {skill.skill_id for skill in skills}
    broken = {r.skill_id: r for r in library.dropped if r.skill_id in old and r.skill_id not in present}
    skills += [old[skill_id] for skill_id in broken]
    removed = [skill_id for skill_id in old if skill_id not in present and skill_id not in broken]
    dropped = dict(Counter(record.reason for record in library.dropped))
    unusable = [r for r in library.dropped if r.skill_id not in old and r.skill_id not in present]
    return UpdatePlan(SkillCorpus(skills), added, changed, removed, list(broken.values()), unusable, outdated, dropped)


def _same_text(left: Skill, right: Skill) -> bool:
    return (left.name, left.description, left.body) == (right.name, right.description, right.body)
