"""A report for the owner of a skill library: what keeps skills from being found, and what each of them would need."""

from __future__ import annotations

from evaluation.library_report.run import LibraryConfig, LibraryReport, report_library

__all__ = ["LibraryConfig", "LibraryReport", "report_library"]
