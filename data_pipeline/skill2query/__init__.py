"""Pseudo-queries from a skill's own structure: its knowledge graph, and what is generated from it (the Skill2Query paper)."""

from __future__ import annotations

from data_pipeline.skill2query.graph import SkillGraph
from data_pipeline.skill2query.parsing import parse_skill
from data_pipeline.skill2query.refine import refine_graph
from data_pipeline.skill2query.statistics import graph_statistics

__all__ = ["SkillGraph", "graph_statistics", "parse_skill", "refine_graph"]
