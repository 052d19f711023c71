"""What stages read of each other: the library, rows, categories and the configured encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.corpus import SkillCorpus
from data_pipeline.negatives import NegativeQuotas
from data_pipeline.pipeline.config import PipelineConfig
from data_pipeline.pipeline.dag import StageContext
from data_pipeline.pipeline.spread import PipelineEncoder
from data_pipeline.records import Stage1Record
from data_pipeline.rows import read_rows

Row = dict[str, Any]


def corpus_of(context: StageContext) -> SkillCorpus:
    """The cleaned library."""
    return SkillCorpus.from_jsonl(context.inputs["corpus"] / "corpus.jsonl.gz")


def rows_of(context: StageContext, stage: str, name: str) -> list[Row]:
    """The rows of a stage's artifact; an empty file has none."""
    return [row for _, row in read_rows(context.inputs[stage] / name)]


def categories_of(context: StageContext) -> dict[str, str]:
    """Skill id to category."""
    return {row["skill_id"]: row["category"] for row in rows_of(context, "categorize", "categories.jsonl")}


def encoder_of(context: StageContext, corpus: SkillCorpus) -> PipelineEncoder:
    """The configured encoder."""
    return PipelineEncoder(context.config.encoding, corpus, context.config.seed, context.progress)


def quotas_of(config: PipelineConfig) -> NegativeQuotas:
    """The four quotas of Table 13."""
    given = config.negatives
    return NegativeQuotas(given.skill_neighbours, given.query_neighbours, given.same_category, given.cross_category)


def draft(
    row: Mapping[str, Any], negative_ids: Sequence[str], corpus: SkillCorpus, category: str = "-"
) -> Stage1Record:
    """The Stage-I record of a request with its documents, as far as it is known."""
    return Stage1Record(
        record_id=row["record_id"],
        query=row["query"],
        query_capability=row.get("query_capability", ""),
        positive_id=row["skill_id"],
        positive=corpus.document(row["skill_id"]),
        negative_ids=tuple(negative_ids),
        negatives=tuple(corpus.document(skill_id) for skill_id in negative_ids),
        category=category,
    )
