"""From a skill library to training records, a benchmark and reranker groups: the stages of Appendices C, D and E.5."""

from __future__ import annotations

from data_pipeline.pipeline.benchmark import BENCHMARK_STAGES
from data_pipeline.pipeline.config import PipelineConfig, load_pipeline_config
from data_pipeline.pipeline.dag import Pipeline, PipelineError, Stage, StageContext, StageReport, StageStatus
from data_pipeline.pipeline.reranker import RERANKER_STAGES
from data_pipeline.pipeline.training import TRAINING_STAGES

ALL_STAGES = (*TRAINING_STAGES, *BENCHMARK_STAGES, *RERANKER_STAGES)
DEFAULT_TARGETS = ("audit", "isolation")
"""What ``skillreason data build`` makes when nothing is asked for: audited training records."""

__all__ = [
    "ALL_STAGES",
    "DEFAULT_TARGETS",
    "Pipeline",
    "PipelineConfig",
    "PipelineError",
    "Stage",
    "StageContext",
    "StageReport",
    "StageStatus",
    "load_pipeline_config",
]
