"""Skill libraries, training records and test requests: ingestion, cleaning, negatives, validation and batches."""

from __future__ import annotations

from data_pipeline.build import (
    BuiltRecords,
    build_records,
    read_records_folder,
    to_stage2,
    write_records_folder,
)
from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.heldout import is_heldout
from data_pipeline.ingest import IngestReport, ingest
from data_pipeline.negatives import NegativeQuotas, category_from_prefix
from data_pipeline.records import (
    BenchQuery,
    Stage1Record,
    Stage2Record,
    TrainingRequest,
    read_bench,
    read_stage1,
    read_stage2,
    read_training_requests,
    write_records,
)
from data_pipeline.rows import RecordError
from data_pipeline.sampler import SeparatedBatchSampler, UniqueSkillBatchSampler

__all__ = [
    "BenchQuery",
    "BuiltRecords",
    "ExclusionGraph",
    "IngestReport",
    "NegativeQuotas",
    "RecordError",
    "SeparatedBatchSampler",
    "Skill",
    "SkillCorpus",
    "Stage1Record",
    "Stage2Record",
    "TrainingRequest",
    "UniqueSkillBatchSampler",
    "build_records",
    "category_from_prefix",
    "ingest",
    "is_heldout",
    "read_bench",
    "read_records_folder",
    "read_stage1",
    "read_stage2",
    "read_training_requests",
    "to_stage2",
    "write_records",
    "write_records_folder",
]
