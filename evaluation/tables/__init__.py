"""The paper's tables from result files of ours: Tables 2 to 5 and 7 to 11 in Markdown, LaTeX and CSV, with plots."""

from __future__ import annotations

from evaluation.tables.report import report_tables

__all__ = ["report_tables"]
