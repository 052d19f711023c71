"""From a skill document to its knowledge graph, by rule (section 3.2)."""

from __future__ import annotations

from data_pipeline.skill2query.parsing.parse import parse_skill

__all__ = ["parse_skill"]
