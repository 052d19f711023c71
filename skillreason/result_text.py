"""A result of ``skillreason evaluate`` as lines and tables for a terminal."""

from __future__ import annotations

import logging
from typing import Any


def print_result(result: dict[str, Any]) -> None:
    """Print what an evaluation found: prompts, rationales, metrics with intervals, suites, slices, alternatives, notes."""
    from evaluation.report import align_table

    print(f"{result['model']} on {result['n_queries']} requests, {result['n_skills']} skills:")
    if "encoder" in result:
        used = result["encoder"]
        print(
            f"  prompts: query {used['query']!r} ({used['query_source']}), document {used['document']!r} "
            f"({used['document_source']}); {used['similarity']}; at most {used['max_length']} tokens"
        )
    if "augment" in result:
        used = result["augment"]
        print(
            f"  rationales: {used['requests']} requests with, {used['without']} without; {used['words']} words on average, "
            f"written in {used['seconds']:.1f} s ({used['reused']} reused)"
        )
    bounds = result["intervals"]["metrics"]
    for name, value in result["metrics"].items():
        low, high = bounds.get(name, (None, None))
        print(f"  {name:<14} {value:.4f}" + (f"  [{low:.4f}, {high:.4f}]" if name in bounds else ""))
    headline = list(bounds)
    if "suites" in result:
        rows = [[row["suite"], str(row["n_queries"]), *_percent(row["metrics"], headline)] for row in result["suites"]]
        if "macro" in result:
            rows.append(["macro average", "", *_percent(result["macro"]["metrics"], headline)])
        print("\n" + align_table([["Suite", "n", *headline], *rows]))
    for kind, slices in result.get("slices", {}).items():
        rows = [[row["slice"], str(row["n_queries"]), *_percent(row["metrics"], headline)] for row in slices]
        print("\n" + align_table([[f"By {kind}", "n", *headline], *rows]))
    if "alternatives" in result:
        from evaluation.alternatives import rescoring_table

        print("\n" + rescoring_table({result["model"]: result["alternatives"]}))
    for note in result["benchmark"]["notes"]:
        logging.getLogger("skillreason").warning(note)


def _percent(metrics: dict[str, float], names: list[str]) -> list[str]:
    return [f"{100 * metrics[name]:.1f}" if name in metrics else "–" for name in names]
