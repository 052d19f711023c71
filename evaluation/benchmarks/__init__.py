"""Benchmarks: their layouts, the counts they should have, and the protocol each is scored by."""

from __future__ import annotations

from evaluation.benchmarks.base import OPEN_PROTOCOL, Benchmark, Expected, Protocol
from evaluation.benchmarks.load import PUBLISHED, load_benchmark, load_folder, save_benchmark

__all__ = [
    "OPEN_PROTOCOL",
    "PUBLISHED",
    "Benchmark",
    "Expected",
    "Protocol",
    "load_benchmark",
    "load_folder",
    "save_benchmark",
]
