"""The configuration of SkillReason: YAML files, their typed schema and the loader."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from configs.load import ConfigError, load_config, to_yaml
    from configs.schema import GrpoConfig, RerankerConfig, Stage1Config

__all__ = ["ConfigError", "GrpoConfig", "RerankerConfig", "Stage1Config", "load_config", "to_yaml"]

_MODULES = {
    "ConfigError": "configs.load",
    "load_config": "configs.load",
    "to_yaml": "configs.load",
    "GrpoConfig": "configs.schema",
    "RerankerConfig": "configs.schema",
    "Stage1Config": "configs.schema",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the schema needs nothing that has to be installed, the loader does."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
