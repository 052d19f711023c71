"""End-to-end task accuracy (Table 5): do better skills make a downstream model solve more tasks?"""

from __future__ import annotations

from evaluation.end_to_end.report import comparison_table, plot_end_to_end, read_end_to_end, suite_table, table5
from evaluation.end_to_end.run import CodeConfig, DownstreamConfig, EndToEndConfig, run_end_to_end
from evaluation.end_to_end.sandbox import Limits, Sandbox, SandboxError

__all__ = [
    "CodeConfig",
    "DownstreamConfig",
    "EndToEndConfig",
    "Limits",
    "Sandbox",
    "SandboxError",
    "comparison_table",
    "plot_end_to_end",
    "read_end_to_end",
    "run_end_to_end",
    "suite_table",
    "table5",
]
