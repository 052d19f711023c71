"""The typed configuration of the data pipeline: one section a stage, with the paper's numbers as defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from configs.load import ConfigError, load_config
from data_pipeline.pipeline.digests import model_digest
from data_pipeline.teacher.config import TeacherConfig, validate_teacher

ROLES = (
    "synthesis",
    "category",
    "review",
    "rationale",
    "rewrite",
    "screening",
    "bench_query",
    "target_validation",
    "alternatives",
    "judge_a",
    "judge_b",
    "audit_a",
    "audit_b",
    "multi_skill",
    "relevance",
)
"""Who may be a teacher of its own in ``teachers``; a role that is not named there is taken by ``teachers.default``."""

CATEGORY_SOURCES = ("prefix", "teacher", "nearest")

SHARES = {
    "exclusions": ("cosine", "copy"),
    "duplicates": ("cosine", "word_jaccard"),
    "select": ("category_share",),
    "isolation": ("near", "review"),
    "bench": ("duplicate_cosine", "duplicate_jaccard", "alternatives_cosine"),
    "reranker": ("category_share", "name_jaccard", "id_jaccard", "text_jaccard", "cosine"),
}
"""Keys that are numbers from 0 to 1."""

QUOTAS = {
    "negatives": ("skill_neighbours", "query_neighbours", "same_category", "cross_category"),
    "reranker": ("query_negatives", "same_category", "cross_category"),
}
"""How many negatives each source supplies."""


@dataclass
class EncodingConfig:
    encoder: str = ""  # embedding model of skills and requests; empty: TF-IDF/SVD, which needs no model
    batch_size: int = 32
    workers: int = 1  # Ray tasks that encode and mine; 1: this process
    worker_cpus: float = 1.0
    worker_gpus: float = 0.0


@dataclass
class ExclusionsConfig:
    cosine: float = 0.85
    copy: float = 0.60
    neighbours: int = 50


@dataclass
class CategoriesConfig:
    source: str = "prefix"  # of the skill's id, teacher (one of labels), or nearest (label by embedding)
    labels: list[str] = field(default_factory=list)


@dataclass
class SynthesisConfig:
    requests_file: str = ""  # requests that you have (record_id, skill_id, query[, query_capability, implicit_query])
    teacher: bool = True  # ask the teacher for requests; false: those of requests_file alone
    max_skills: int = 0  # ask for so many skills at most, chosen by the seed; 0: all


@dataclass
class NegativesConfig:
    skill_neighbours: int = 4
    query_neighbours: int = 3
    same_category: int = 2
    cross_category: int = 1
    query_source: str = "dense"  # or bm25: D.1's controlled variant


@dataclass
class DuplicatesConfig:
    cosine: float = 0.90
    word_jaccard: float = 0.50


@dataclass
class SelectConfig:
    target: int = 30_000
    reserve: int = 500
    category_share: float = 0.40
    per_skill: int = 2


@dataclass
class IsolationConfig:
    benchmarks: dict[str, str] = field(default_factory=dict)  # name -> file of test requests
    near: float = 0.85
    review: float = 0.70


@dataclass
class BenchConfig:
    exclude_files: list[str] = field(default_factory=list)  # training requests: no benchmark request may equal one
    max_targets: int = 0  # screen so many skills at most, chosen by the seed; 0: all
    min_words: int = 8
    max_words: int = 110
    neighbours: int = 10  # BM25 neighbours that may be near-duplicates, dense neighbours that may be alternatives
    duplicate_cosine: float = 0.90
    duplicate_jaccard: float = 0.50
    alternatives_cosine: float = 0.80
    drop_ambiguous: int = 3  # a request with so many positive alternatives is dropped; 0: never
    decisions_file: str = ""  # a human's decisions on the judges' queue (skillreason data review)
    candidates: int = 6_000  # sampled for the audit of alternatives, balanced over domains; 0: all
    size: int = 4_000  # of these for the final review, balanced over domains
    audit_size: int = 300


@dataclass
class RerankerConfig:
    tasks: int = 0  # multi-skill tasks to ask for; 0: none (the paper: 27,583)
    select: int = 20_000
    category_share: float = 0.40
    per_skill: int = 20
    query_negatives: int = 8
    same_category: int = 1
    cross_category: int = 1
    retriever: str = ""  # the Stage-II retriever that fixes the candidate groups; needed for groups
    depth: int = 20
    min_negatives: int = 8
    name_jaccard: float = 0.60
    id_jaccard: float = 0.80
    text_jaccard: float = 0.60
    cosine: float = 0.85


@dataclass
class PipelineConfig:
    out: str = MISSING  # folder of all artifacts
    sources: list[str] = MISSING  # skill libraries: folders, corpus files, hf:owner/dataset
    seed: int = 42
    teachers: dict[str, TeacherConfig] = field(default_factory=dict)  # default, and any role of its own
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    exclusions: ExclusionsConfig = field(default_factory=ExclusionsConfig)
    categories: CategoriesConfig = field(default_factory=CategoriesConfig)
    synthesis: SynthesisConfig = field(default_factory=SynthesisConfig)
    negatives: NegativesConfig = field(default_factory=NegativesConfig)
    duplicates: DuplicatesConfig = field(default_factory=DuplicatesConfig)
    select: SelectConfig = field(default_factory=SelectConfig)
    isolation: IsolationConfig = field(default_factory=IsolationConfig)
    bench: BenchConfig = field(default_factory=BenchConfig)
    reranker: RerankerConfig = field(default_factory=RerankerConfig)

    def teacher(self, role: str) -> TeacherConfig:
        """The teacher of a role."""
        return self.teachers.get(role) or self.teachers.get("default") or TeacherConfig()

    @property
    def asked(self) -> dict[str, dict[str, Any]]:
        """What of each role's teacher decides its answers; limits, prices and addresses do not."""
        keys = ("kind", "writer", "model", "structured", "temperature", "max_output_tokens", "extra")
        return {role: {key: getattr(self.teacher(role), key) for key in keys} for role in ROLES}

    @property
    def embedding(self) -> dict[str, str]:
        """What of the encoder decides its vectors: a local folder counts by its content."""
        return {"encoder": model_digest(self.encoding.encoder)}

    @property
    def retriever_weights(self) -> str:
        """The reranker's retriever, in the same way."""
        return model_digest(self.reranker.retriever)

    @property
    def benchmark_files(self) -> list[str]:
        """The files of :class:`IsolationConfig`."""
        return list(self.isolation.benchmarks.values())


def load_pipeline_config(path: str | Path | None, overrides: Sequence[str] = ()) -> PipelineConfig:
    """A pipeline's configuration from YAML and ``key=value`` overrides.

    Raises:
        ConfigError: unknown key, wrong type, missing value or impossible combination, by name.
    """
    return load_config(PipelineConfig, path, overrides, check=validate_pipeline)


def validate_pipeline(config: PipelineConfig) -> None:
    """Refuse what cannot work before a stage runs; raises ConfigError naming the key."""
    if not config.sources:
        raise ConfigError("sources is empty; expected at least one folder, corpus file or hf:owner/dataset")
    for role, teacher in config.teachers.items():
        if role not in ("default", *ROLES):
            raise ConfigError(f"teachers.{role}: no such role; expected default or one of {', '.join(ROLES)}")
        validate_teacher(teacher, f"teachers.{role}")
    for section, keys in SHARES.items():
        for key in keys:
            value = getattr(getattr(config, section), key)
            if not 0 <= value <= 1:
                raise ConfigError(f"{section}.{key} is {value}; expected a number from 0 to 1")
    for section in ("select", "reranker"):
        if getattr(config, section).category_share == 0:
            raise ConfigError(f"{section}.category_share is 0.0; expected more than 0: nothing could be selected")
    _validate_negatives(config)
    categories = config.categories
    if categories.source not in CATEGORY_SOURCES:
        raise ConfigError(f"categories.source is {categories.source!r}; expected one of {', '.join(CATEGORY_SOURCES)}")
    if categories.source != "prefix" and len(categories.labels) < 2:
        raise ConfigError(
            f"categories.labels is {categories.labels}; expected two or more with source {categories.source}"
        )
    if not config.synthesis.teacher and not config.synthesis.requests_file:
        raise ConfigError("synthesis.teacher is false and synthesis.requests_file is empty; there would be no requests")
    if config.negatives.query_source not in ("dense", "bm25"):
        raise ConfigError(f"negatives.query_source is {config.negatives.query_source!r}; expected dense or bm25")
    for section, key, least in (
        ("encoding", "batch_size", 1),
        ("encoding", "workers", 1),
        ("exclusions", "neighbours", 1),
        ("select", "target", 1),
        ("select", "per_skill", 1),
        ("select", "reserve", 0),
        ("bench", "size", 1),
        ("bench", "audit_size", 1),
        ("bench", "neighbours", 1),
        ("bench", "candidates", 0),
        ("bench", "max_targets", 0),
        ("bench", "drop_ambiguous", 0),
        ("synthesis", "max_skills", 0),
        ("reranker", "tasks", 0),
        ("reranker", "select", 1),
        ("reranker", "per_skill", 1),
        ("reranker", "min_negatives", 1),
        ("reranker", "depth", 1),
    ):
        value = getattr(getattr(config, section), key)
        if value < least:
            raise ConfigError(f"{section}.{key} is {value}; expected at least {least}")
    bench = config.bench
    if not 1 <= bench.min_words <= bench.max_words:
        raise ConfigError(
            f"bench.min_words is {bench.min_words} and bench.max_words {bench.max_words}; expected 1 <= min_words <= max_words"
        )
    if config.isolation.review > config.isolation.near:
        raise ConfigError(
            f"isolation.review is {config.isolation.review}; expected at most isolation.near, {config.isolation.near}"
        )


def _validate_negatives(config: PipelineConfig) -> None:
    for section, keys in QUOTAS.items():
        quotas = {f"{section}.{key}": getattr(getattr(config, section), key) for key in keys}
        for key, value in quotas.items():
            if value < 0:
                raise ConfigError(f"{key} is {value}; expected at least 0")
        if not any(quotas.values()):
            raise ConfigError(f"{', '.join(quotas)} are all 0; expected at least one negative")
        reached = {key: value for key, value in quotas.items() if key.endswith("_neighbours") or "query" in key}
        key = max(reached, key=lambda key: reached[key])
        if reached[key] > config.exclusions.neighbours:
            raise ConfigError(
                f"{key} is {reached[key]}; expected at most exclusions.neighbours, {config.exclusions.neighbours}: no more are "
                "looked at"
            )
