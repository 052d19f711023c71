"""Measuring retrieval: metrics, benchmark runs, single searches, the fusion weight, plots and reports."""

from __future__ import annotations

from evaluation.fusion_weight import FusionChoice, choose_fusion_weight
from evaluation.metrics import evaluate_ranking, metric_names, query_metrics
from evaluation.plots import plot_curves, plot_recall_by_stage
from evaluation.report import format_table, write_report, write_results_json
from evaluation.run import evaluate
from evaluation.search import Hit, search

__all__ = [
    "FusionChoice",
    "Hit",
    "choose_fusion_weight",
    "evaluate",
    "evaluate_ranking",
    "format_table",
    "metric_names",
    "plot_curves",
    "plot_recall_by_stage",
    "query_metrics",
    "search",
    "write_report",
    "write_results_json",
]
