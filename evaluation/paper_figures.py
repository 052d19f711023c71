"""The figures of the paper's Tables 3, 4 and 9 (percent), for tables that show them beside ours."""

from __future__ import annotations

METRICS = ("recall@1", "recall@5", "recall@10", "ndcg@10")
BENCHMARKS = ("skillreason-bench", "sra-bench", "skillret")
"""Order of the columns: the four metrics of the first, then those of the next."""

_RAW = (35.18, 50.36, 55.94, 45.07, 50.04, 74.20, 83.17, 69.29, 43.63, 63.45, 69.97, 62.29)
_RAW_COT = (39.88, 55.78, 62.48, 50.48, 51.79, 76.14, 85.56, 71.22, 53.81, 73.55, 79.15, 73.30)
_STAGE1 = (42.29, 58.19, 65.08, 53.02, 52.82, 77.72, 86.95, 72.68, 53.56, 73.49, 79.32, 73.35)
_STAGE2 = (45.16, 62.43, 69.00, 56.49, 52.81, 79.26, 88.18, 73.58, 52.45, 70.87, 76.70, 71.03)

TABLES: dict[str, dict[str, tuple[float, ...]]] = {
    "table3": {
        "base": (29.90, 46.53, 53.69, 41.00, 41.34, 57.08, 63.76, 54.46, 40.95, 58.27, 63.74, 57.18),
        "raw": _RAW,
        "cot": _RAW_COT,
        "transfer": (41.81, 57.42, 64.20, 52.33, 52.62, 77.39, 86.80, 72.36, 53.64, 73.47, 79.28, 73.21),
        "stage1": _STAGE1,
        "stage2": _STAGE2,
        "self-cot": (44.73, 62.24, 69.08, 56.08, 52.90, 80.18, 87.78, 73.92, 51.35, 70.16, 76.24, 70.14),
    },
    "table4": {
        "qwen3-0.6b x qwen3-0.6b": (39.98, 54.63, 58.03, 48.94, 50.95, 67.06, 69.75, 64.33, 46.56, 64.41, 67.48, 63.50),
        "qwen3-4b x qwen3-4b": (48.89, 65.14, 68.06, 58.72, 55.37, 73.90, 78.40, 70.53, 46.83, 63.86, 66.89, 63.35),
        "skillrouter-0.6b x skillrouter-0.6b": (
            43.47, 53.31, 55.40, 49.53, 49.27, 62.33, 65.90, 59.94, 56.60, 77.01, 79.60, 76.86,
        ),
        "skillreason-0.6b x qwen3-0.6b": (
            46.26, 65.06, 71.25, 58.42, 57.11, 83.41, 90.01, 77.82, 49.36, 73.91, 79.13, 71.92,
        ),
        "skillreason-0.6b x qwen3-4b": (
            51.41, 69.78, 73.45, 62.63, 62.29, 85.78, 91.34, 80.91, 50.72, 74.67, 79.44, 72.83,
        ),
        "skillreason-0.6b x skillreason-0.6b": (
            51.38, 68.06, 72.78, 61.86, 61.84, 85.74, 90.90, 80.66, 56.72, 78.00, 80.52, 77.52,
        ),
        "skillreason-0.6b x skillreason-4b": (
            57.90, 71.12, 74.23, 66.19, 68.59, 88.52, 92.39, 84.90, 59.43, 79.56, 80.95, 79.77,
        ),
        "skillreason-4b x skillreason-4b": (
            60.93, 77.50, 81.66, 71.34, 69.27, 90.30, 94.32, 86.47, 59.39, 81.28, 82.98, 81.02,
        ),
    },
    "table9": {
        "raw": _RAW,
        "raw-cot": _RAW_COT,
        "raw-transfer": (19.76, 32.64, 39.02, 28.65, 39.55, 59.75, 67.19, 55.45, 41.81, 60.57, 67.02, 59.05),
        "raw-lm": (40.55, 57.04, 63.37, 51.42, 52.36, 76.92, 86.46, 72.03, 52.63, 72.67, 78.18, 72.04),
        "stage1": _STAGE1,
        "implicit-cl": (43.88, 60.65, 66.73, 54.18, 51.97, 77.61, 86.63, 72.38, 44.31, 62.10, 68.47, 60.94),
        "implicit-sft": (45.68, 63.22, 69.62, 56.51, 52.16, 79.56, 88.42, 73.32, 48.15, 66.73, 72.97, 65.98),
        "stage2": _STAGE2,
        "no-margin": (44.38, 61.87, 68.28, 55.71, 52.71, 78.18, 87.36, 73.09, 51.93, 70.25, 75.76, 70.25),
        "no-gain": (43.55, 60.10, 66.88, 54.54, 52.77, 78.43, 87.39, 73.14, 52.02, 70.48, 76.22, 70.81),
        "no-length": (45.13, 62.40, 69.18, 56.48, 52.74, 78.25, 87.64, 73.45, 51.01, 68.52, 74.49, 68.84),
        "teacher-cot": (44.95, 62.59, 69.38, 56.61, 56.23, 81.17, 89.68, 76.39, 52.04, 70.91, 76.80, 70.88),
    },
}  # fmt: skip


def paper_metrics(row: str, benchmark: str) -> dict[str, float]:
    """A row's figures on one benchmark, as fractions by metric; ``row`` is ``<table>/<row>``. Empty where either is empty.

    Raises:
        ValueError: no such table, row or benchmark; the message lists those there are.
    """
    if not row or not benchmark:
        return {}
    table, _, name = row.partition("/")
    if table not in TABLES or name not in TABLES[table]:
        known = ", ".join(f"{key}/{row_name}" for key, rows in TABLES.items() for row_name in rows)
        raise ValueError(f"the paper's figures have no row {row!r}; expected one of {known}")
    if benchmark not in BENCHMARKS:
        raise ValueError(
            f"the paper's figures have no benchmark {benchmark!r}; expected one of {', '.join(BENCHMARKS)}"
        )
    first = len(METRICS) * BENCHMARKS.index(benchmark)
    return {metric: value / 100 for metric, value in zip(METRICS, TABLES[table][name][first:], strict=False)}
