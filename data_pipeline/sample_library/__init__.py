"""The embedded sample library: written for this project, it is what ``skillreason demo`` and most tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from data_pipeline.cleaning import RawSkill, clean
from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import BenchQuery, TrainingRequest, parse_bench_query, parse_training_request
from data_pipeline.rows import RecordError, parse_jsonl
from data_pipeline.skill_md import parse_skill_md

__all__ = ["load_sample_corpus", "load_sample_requests"]


def load_sample_corpus() -> SkillCorpus:
    """The skills of ``skills/<domain>/<skill>/SKILL.md`` as ``<domain>/<skill>``, sorted by id.

    Works from an installed package too. ValueError where a file would not pass the cleaning of C.2.
    """
    result = clean(_skill_files(resources.files(__package__ or __name__) / "skills", ""))
    if result.dropped or not result.kept:
        raise ValueError(f"the sample library has unusable skills: {result.dropped or 'no skills at all'}")
    return SkillCorpus(sorted(result.kept, key=lambda skill: skill.skill_id))


def load_sample_requests() -> tuple[list[TrainingRequest], list[BenchQuery]]:
    """The requests of ``requests.jsonl``: rows with ``"split": "train"`` and with ``"split": "test"``, in file order.

    Raises RecordError naming file, row and key for an unusable row, another split or a repeated id.
    """
    name = "requests.jsonl"
    data = (resources.files(__package__ or __name__) / name).read_bytes()
    training: list[TrainingRequest] = []
    test: list[BenchQuery] = []
    seen: set[str] = set()
    for row, value in parse_jsonl(name, data.splitlines(keepends=True)):
        if isinstance(value, RecordError):
            raise value
        split = value.pop("split", None)
        if split == "train":
            training.append(parse_training_request(name, row, value))
            key, record_id = "record_id", training[-1].record_id
        elif split == "test":
            test.append(parse_bench_query(name, row, value))
            key, record_id = "query_id", test[-1].query_id
        else:
            raise RecordError(name, row, "expected 'train' or 'test'", "split", split)
        if record_id in seen:
            raise RecordError(name, row, "duplicate id", key, record_id)
        seen.add(record_id)
    return training, test


def _skill_files(folder: Traversable, prefix: str) -> Iterator[RawSkill]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _skill_files(entry, f"{prefix}{entry.name}/")
        elif entry.name == "SKILL.md":
            path = f"{prefix}{entry.name}"
            yield parse_skill_md(entry.read_bytes(), prefix.rstrip("/"), path, path)
