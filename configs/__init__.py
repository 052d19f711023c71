"""The configuration of SkillReason: YAML files, their typed schema and the loader."""

from __future__ import annotations

from configs.load import ConfigError, load_config, to_yaml
from configs.schema import GrpoConfig, RerankerConfig, Stage1Config

__all__ = ["ConfigError", "GrpoConfig", "RerankerConfig", "Stage1Config", "load_config", "to_yaml"]
