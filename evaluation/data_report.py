"""A readable page on a pipeline's folder: counts, rejections, teachers and times, with plots; all from its manifests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.pipeline.dag import MANIFEST, PipelineError, read_manifest
from data_pipeline.records import read_bench, read_stage1, read_stage2
from data_pipeline.rows import read_rows
from evaluation import data_plots
from models.folders import atomic_write_text

FILE_NAME = "report.md"
USAGE_KEYS = (
    "calls",
    "cached",
    "retries",
    "lost_calls",
    "repairs",
    "failed",
    "input_tokens",
    "output_tokens",
    "cost_usd",
)
Manifests = dict[str, dict[str, Any]]


def write_report(out: str | Path) -> Path:
    """Write ``<out>/report.md`` and its plots below ``<out>/report``; returns the page.

    Stages that have not run are left out; what is out of date is shown as it is (``skillreason data status`` tells).

    Raises:
        PipelineError: no stage has run there.
    """
    root = Path(out)
    manifests = read_manifests(root)
    if not manifests:
        raise PipelineError(f"{root}: no stage has run here; expected the out folder of skillreason data build")
    sections = [
        "# Data report",
        _overview(manifests),
        _stages(manifests),
        _records(root, manifests),
        _rejections(root, manifests),
        _teachers(manifests),
        _quality(root, manifests),
        _benchmark(root, manifests),
        _reranker(manifests),
        _times(root, manifests),
    ]
    page = root / FILE_NAME
    atomic_write_text(page, "\n\n".join(section for section in sections if section) + "\n")
    return page


def read_manifests(root: Path) -> Manifests:
    """The manifests of the stages that have run, in the order of the pipeline."""
    from data_pipeline.pipeline import ALL_STAGES

    return {s.name: read_manifest(root / s.name) for s in ALL_STAGES if (root / s.name / MANIFEST).is_file()}


def teacher_usage(manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(stage, judge or "", teacher, usage) of everything that was asked."""
    for stage, manifest in manifests.items():
        notes = manifest["notes"]
        if "usage" in notes:
            yield stage, "", notes["teacher"], notes["usage"]
        for role, given in notes.items():
            if isinstance(given, dict) and "usage" in given:
                yield stage, role, given["teacher"], given["usage"]


def _overview(manifests: Manifests) -> str:
    wanted = (
        ("corpus", "skills", "skills after cleaning"),
        ("exclude", "edges", "pairs of the exclusion graph"),
        ("synthesize", "requests", "requests written"),
        ("records", "stage1", "Stage-I records"),
        ("records", "stage2", "Stage-II records"),
        ("bench", "queries", "benchmark requests"),
        ("groups", "groups", "reranker groups"),
    )
    lines = [f"- {manifests[stage]['counts'][key]:,} {what}" for stage, key, what in wanted if stage in manifests]
    warnings = [text for manifest in manifests.values() for text in manifest["notes"].get("warnings", ())]
    lines += [f"- **Note:** {_cell(text)}" for text in dict.fromkeys(warnings)]
    return "\n".join(lines)


def _stages(manifests: Manifests) -> str:
    rows = [[name, _pairs(m["counts"]), _pairs(m["rejected"]), f"{m['seconds']:,.1f}"] for name, m in manifests.items()]
    return "## Stages\n\n" + _table(("stage", "counts", "rejected", "seconds"), rows)


def _records(root: Path, manifests: Manifests) -> str:
    if "records" not in manifests:
        return ""
    stage1 = read_stage1(root / "records" / "stage1.jsonl")
    lengths = {"Stage I": [len(r.query.split()) for r in stage1]}
    lengths["rationales"] = [len(r.query_capability.split()) for r in stage1]
    if manifests["records"]["counts"]["stage2"]:
        lengths["Stage II"] = [len(r.query.split()) for r in read_stage2(root / "records" / "stage2.jsonl")]
    chosen = {record.record_id for record in stage1}
    sources: Counter[str] = Counter()
    if "mine" in manifests:
        for _, row in read_rows(root / "mine" / "negatives.jsonl"):
            if row["record_id"] in chosen:
                sources.update(row["sources"])
    categories = Counter(record.category for record in stage1)
    data_plots.histograms(lengths, root / "report" / "lengths.png", "Words")
    data_plots.bars(dict(categories.most_common(30)), root / "report" / "categories.png", "Stage-I records by category")
    length_rows = [
        [name, f"{len(v):,}", f"{sum(v) / len(v):.2f}", str(min(v)), str(max(v))] for name, v in lengths.items()
    ]
    parts = [
        "## Training records",
        _table(("words of", "texts", "mean", "shortest", "longest"), length_rows),
        "![lengths](report/lengths.png)",
        f"{len(categories):,} categories"
        + (", the 30 largest of them:" if len(categories) > 30 else ":")
        + "\n\n![categories](report/categories.png)",
    ]
    if sources:
        data_plots.bars(sources, root / "report" / "negatives.png", "Negatives of the Stage-I records by source")
        parts.append(_table(("negatives from", "occurrences"), [[k, f"{n:,}"] for k, n in sources.items()]))
        parts.append("![negatives by source](report/negatives.png)")
    return "\n\n".join(parts)


def _rejections(root: Path, manifests: Manifests) -> str:
    rejected = {name: m["rejected"] for name, m in manifests.items() if m["rejected"]}
    if not rejected:
        return ""
    flat = {f"{stage}: {reason}": n for stage, reasons in rejected.items() for reason, n in reasons.items()}
    data_plots.bars(flat, root / "report" / "rejections.png", "Rejected, by stage and reason")
    rows = [[stage, reason, f"{n:,}"] for stage, reasons in rejected.items() for reason, n in reasons.items()]
    table = _table(("stage", "reason", "count"), rows)
    return f"## Rejections\n\n{table}\n\n![rejections](report/rejections.png)"


def _teachers(manifests: Manifests) -> str:
    rows = []
    for stage, role, teacher, usage in teacher_usage(manifests):
        values = ["unknown" if usage.get(key) is None else f"{usage[key]:,}" for key in USAGE_KEYS]
        rows.append([f"{stage} ({role})" if role else stage, teacher, *values])
    if not rows:
        return ""
    text = (
        "Of the run that finished each stage; `cached` are answers that an earlier run had paid for. The offline teacher makes "
        "no calls."
    )
    headings = ("stage", "teacher", *(key.replace("_", " ") for key in USAGE_KEYS))
    return f"## Teachers\n\n{text}\n\n{_table(headings, rows)}"


def _quality(root: Path, manifests: Manifests) -> str:
    if "score" not in manifests:
        return ""
    totals = [row["total"] for _, row in read_rows(root / "score" / "scores.jsonl")]
    data_plots.histograms({"quality score": totals}, root / "report" / "scores.png", "Quality score of valid requests")
    counts = manifests["score"]["counts"]
    text = (
        f"{counts['scored']:,} requests scored, mean {manifests['score']['notes']['mean']}; for {counts['label_risk']:,} of them "
        "a negative shares more words with the request than its target."
    )
    return f"## Quality score\n\n{text}\n\n![scores](report/scores.png)"


def _benchmark(root: Path, manifests: Manifests) -> str:
    if "bench" not in manifests:
        return ""
    queries = read_bench(root / "bench" / "bench.jsonl")
    lengths = [len(query.query.split()) for query in queries]
    domains = Counter(query.domain for query in queries)
    data_plots.histograms(
        {"benchmark": lengths}, root / "report" / "bench_lengths.png", "Words of the benchmark requests"
    )
    parts = [
        "## Benchmark",
        f"{len(queries):,} requests of {sum(lengths) / len(queries):.2f} words on average.",
        _table(("domain", "requests"), [[name, f"{n:,}"] for name, n in sorted(domains.items())]),
        "![lengths](report/bench_lengths.png)",
    ]
    table = root / "quality_audit" / "quality_audit.md"
    if "quality_audit" in manifests and table.is_file():
        parts.append("### Quality audit\n\n" + table.read_text(encoding="utf-8").strip())
    return "\n\n".join(parts)


def _reranker(manifests: Manifests) -> str:
    if "groups" not in manifests:
        return ""
    notes = manifests["groups"]["notes"]
    removed = [[reason, f"{n:,}"] for reason, n in sorted(notes["negatives_removed"].items())]
    text = f"A target is within the depth for {100 * notes['target_in_depth']:.2f}% of the queries."
    return f"## Reranker groups\n\n{text}\n\n" + (_table(("negatives removed", "count"), removed) if removed else "")


def _times(root: Path, manifests: Manifests) -> str:
    seconds = {name: manifest["seconds"] for name, manifest in manifests.items()}
    data_plots.bars(seconds, root / "report" / "seconds.png", "Seconds by stage", number="%.1f")
    return f"## Time\n\n{sum(seconds.values()):,.1f} s in all stages.\n\n![seconds](report/seconds.png)"


def _pairs(values: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {value:,}" for key, value in values.items())


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(text: str) -> str:
    """Categories and reasons may hold anything: no pipe, line end or tag of theirs changes the page."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
