"""From results to the paper's tables: one function a layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.metrics import FULL_COVERAGE
from evaluation.paper_figures import BENCHMARKS, METRICS, TABLES
from evaluation.paper_tables import TABLE2, TABLE5, TABLE5_MODELS, TABLE7, TABLE8, TABLE10, TABLE11
from evaluation.study_table import SHORT
from evaluation.tables.layout import Column, Row, Table, with_paper
from evaluation.tables.names import Names
from evaluation.tables.sources import Found, Sources

BENCH_LABELS = {"skillreason-bench": "SkillReason-Bench", "sra-bench": "SRA-Bench", "skillret": "SkillRet"}
SKILLBENCH = ("skillbench-easy", "skillbench-hard")

_PATHS = {
    "bm25": "Retrieval only",
    "encoder": "Retrieval only",
    "hybrid": "Retrieval only",
    "rerank": "Retrieve–rerank",
    "rationale": "Self-CoT augmentation",
}
_PIPELINES = {
    "qwen3-0.6b": ("Qwen3-Embedding-0.6B", "Qwen3-Reranker-0.6B"),
    "qwen3-4b": ("Qwen3-Embedding-4B", "Qwen3-Reranker-4B"),
    "skillrouter-0.6b": ("SkillRouter-Embedding-0.6B", "SkillRouter-Reranker-0.6B"),
    "skillreason-0.6b": ("SkillReason-0.6B", "SkillReason-Reranker-0.6B"),
    "skillreason-4b": ("SkillReason-4B", "SkillReason-Reranker-4B"),
}
"""Table 4's names of a retriever and of the reranker that belongs to it."""


def retriever_table(sources: Sources, names: Names, paper: str) -> Table | None:
    """Table 2: retrievers alone, four metrics on every benchmark."""
    found = [item for item in sources.results if not item[1].get("rerank") and _bench(item[1]) not in SKILLBENCH]
    return _results_table("table2", "Retriever performance (%)", "Retriever", found, names, TABLE2, paper)


def pipeline_table(sources: Sources, names: Names, paper: str) -> Table | None:
    """Table 4: a retriever and the reranker that reorders its results; cells of grids are rows as well."""
    found = [item for item in sources.results if item[1].get("rerank") and _bench(item[1]) not in SKILLBENCH]
    figures = {
        f"{_PIPELINES[first][0]} × {_PIPELINES[second][1]}": values
        for (first, second), values in ((pair.split(" x "), values) for pair, values in TABLES["table4"].items())
    }
    table = _results_table("table4", "Retrieve–rerank pipelines (%)", "Pipeline", found, names, figures, paper)
    grids = [_study_rows(f"{path}", grid["rows"], paper, "table4", grid["title"]) for path, grid in sources.grids]
    return _joined([part for part in (table, *grids) if part is not None])


def study_tables(sources: Sources, paper: str) -> list[Table]:
    """Tables 3 and 9, and whatever other tables a study has."""
    tables: dict[str, list[Table]] = {}
    for path, study in sources.studies:
        for key, rows in study["tables"].items():
            caption = study["title"] if len(study["tables"]) == 1 else f"{study['title']}: {key}"
            tables.setdefault(key, []).append(_study_rows(str(path), rows, paper, key, caption))
    return [joined for parts in tables.values() if (joined := _joined(parts)) is not None]


def end_to_end_table(sources: Sources, names: Names, paper: str) -> Table | None:
    """Table 5: accuracy of downstream models, a row a condition, macro-averaged over suites."""
    if not sources.end_to_end:
        return None
    models = list(dict.fromkeys(names.of_model(value["model"]) for _, value in sources.end_to_end))
    cells: dict[str, dict[str, float]] = {}
    notes = []
    for path, value in sources.end_to_end:
        for condition in value["conditions"]:
            label = {"none": "No skills", "gold": "Gold skills"}.get(condition["kind"]) or names.of_model(
                condition["name"]
            )
            if condition["accuracy"] is not None:
                cells.setdefault(label, {})[names.of_model(value["model"])] = 100 * condition["accuracy"]
        notes += [f"{path}: {note}" for note in value.get("notes", [])]
    columns = [*models, *(name for name in TABLE5_MODELS if paper == "all" and name not in models)]
    figures = {
        label: tuple(
            next((v for m, v in zip(TABLE5_MODELS, values, strict=True) if _same_model(m, name)), None)
            for name in columns
        )
        for label, values in TABLE5.items()
    }
    rows = [Row(label, tuple(of_model.get(name) for name in columns)) for label, of_model in cells.items()]
    return Table(
        "table5",
        "End-to-end task accuracy (%), macro-averaged over suites",
        "Skill condition",
        [Column("", name) for name in columns],
        with_paper(rows, figures, paper),
        notes,
    )


def alternatives_tables(sources: Sources, names: Names, paper: str) -> list[Table]:
    """Tables 7 and 8: recall before and after validated alternatives count, a table a benchmark."""
    by_bench: dict[str, dict[str, Mapping[str, Any]]] = {}
    bench_of = {str(path): value for path, value in sources.results}
    for _, value in sources.results:
        if value.get("alternatives"):
            by_bench.setdefault(_bench(value), {})[names.of_result(value)] = value["alternatives"]
    for _, rescored in sources.rescored:
        for model, entry in rescored.items():
            result = bench_of.get(str(entry.get("result")))
            bench = "" if result is None else _bench(result)
            by_bench.setdefault(bench, {})[names.of_model(model) if result is None else names.of_result(result)] = entry
    tables = []
    for bench, of_model in by_bench.items():
        depths = list(dict.fromkeys(row["k"] for entry in of_model.values() for row in entry["recall"]))
        columns = [Column("", f"{what} R@{k}") for k in depths for what in ("Original", "Expanded", "Δ")]
        rows = []
        for label, entry in of_model.items():
            found = {row["k"]: row for row in entry["recall"]}
            keys = [(k, key) for k in depths for key in ("original", "expanded", "delta")]
            rows.append(Row(label, tuple(100 * found[k][key] if k in found else None for k, key in keys)))
        key = {"skillreason-bench": "table7", "skillret": "table8"}.get(bench, f"table7-{bench}" if bench else "table7")
        figures = {"table7": TABLE7, "table8": TABLE8}.get(key, {}) if depths == [1, 5] and bench else {}
        where = BENCH_LABELS.get(bench, bench) or "a benchmark that the file does not name"
        caption = f"Recall with validated alternatives on {where} (%)"
        signed = frozenset(range(2, len(columns), 3))
        rows = with_paper(rows, dict(figures), paper)
        tables.append(Table(key.replace(".jsonl", ""), caption, "Retriever", columns, rows, signed=signed))
    return tables


def skillbench_table(sources: Sources, names: Names, paper: str) -> Table | None:
    """Table 10: SkillBench's two pools with complete coverage of multi-skill tasks."""
    found = [item for item in sources.results if _bench(item[1]) in SKILLBENCH]
    if not found:
        return None
    shown, notes = _newest(found, names)
    metrics = {"recall@1": "R@1", "recall@10": "R@10", FULL_COVERAGE: "Multi FC@10"}
    columns = [Column(split.split("-")[1].title(), head) for split in SKILLBENCH for head in metrics.values()]
    rows = [
        Row(label, tuple(_percent(of.get(split), metric) for split in SKILLBENCH for metric in metrics))
        for label, of in shown.items()
    ]
    rows = with_paper(rows, dict(TABLE10), paper)
    return Table("table10", "SkillBench retrieval results (%)", "Retriever", columns, rows, notes)


def latency_table(sources: Sources, names: Names, paper: str) -> Table | None:
    """Table 11: mean milliseconds of one request; retrieval is encoding and search."""
    if not sources.latencies:
        return None
    rows, notes = [], []
    for path, value in sources.latencies:
        protocol, where = value["protocol"], value["environment"]
        machine = where["gpu"] or f"{where['cpu']}, {protocol['threads']} threads"
        notes.append(
            f"{path}: {protocol['queries']} requests over {protocol['skills']:,} skills, {machine}, {protocol['dtype']}."
        )
        for row in value["paths"]:
            phases = {name: phase["mean"] for name, phase in row["phases"].items()}
            searched = phases.get("encode", 0.0) + phases.get("search", 0.0)
            model = "BM25" if row["method"] == "bm25" else names.of_model(row["model"])
            if row["method"] == "hybrid":
                model = f"Hybrid (BM25 + {model})"
            if row["reranker"]:
                model += f" × {names.of_model(row['reranker'])}"
            values = (searched, phases.get("generate"), phases.get("rank"), row["total"]["mean"])
            rows.append(Row(f"{_PATHS[row['method']]}: {model}", values))
    columns = [Column("", head, "") for head in ("Retrieval", "Generation", "Rank", "Total")]
    if paper != "none":
        notes.append("The paper's figures: one A800-SXM4-80GB, 6,660 skills, PyTorch 2.6; other hardware than ours.")
    rows = with_paper(rows, dict(TABLE11), paper)
    return Table("table11", "Online latency at batch size 1 (ms)", "Path", columns, rows, notes)


def _results_table(
    key: str,
    caption: str,
    first: str,
    found: Sequence[Found],
    names: Names,
    figures: Mapping[str, Sequence[float | None]],
    paper: str,
) -> Table | None:
    if not found:
        return None
    shown, notes = _newest(found, names)
    benches = _bench_order(bench for of in shown.values() for bench in of)
    if paper == "all":
        benches = _bench_order([*benches, *BENCHMARKS])
    rows = [
        Row(label, tuple(_percent(of.get(bench), metric) for bench in benches for metric in METRICS))
        for label, of in shown.items()
    ]
    width = len(METRICS)
    placed = {
        label: tuple(
            values[BENCHMARKS.index(bench) * width + place] if bench in BENCHMARKS else None
            for bench in benches
            for place in range(width)
        )
        for label, values in figures.items()
    }
    return Table(key, caption, first, _bench_columns(benches, METRICS), with_paper(rows, placed, paper), notes)


def _study_rows(path: str, rows: Sequence[Mapping[str, Any]], paper: str, key: str, caption: str) -> Table:
    benches = list(dict.fromkeys(bench for row in rows for bench in row["benches"]))
    metrics = list(dict.fromkeys(m for row in rows for cell in row["benches"].values() for m in cell["mean"])) or list(
        METRICS
    )
    keys = [(bench, metric) for bench in benches for metric in metrics]
    out: list[Row] = []
    seeds = 1
    for row in rows:
        cells = row["benches"]
        seeds = max([seeds, *(cell["n"] for cell in cells.values())])

        def values(kind: str, cells: Mapping[str, Any] = cells) -> tuple[float | None, ...]:
            return tuple(
                None if (value := cells.get(bench, {}).get(kind, {}).get(metric)) is None else 100 * value
                for bench, metric in keys
            )

        spread = values("sd")
        ours = Row(row["label"], values("mean"), block=row["block"], spread=spread if any(spread) else ())
        figures = {row["label"]: values("paper")}
        out += with_paper([ours], figures, "matching" if paper != "none" else "none")
    notes = (
        [f"{path}: means over at most {seeds} seeds of training, ± standard deviation (n − 1)."] if seeds > 1 else []
    )
    return Table(key, f"{caption} (%)", "Configuration", _bench_columns(benches, metrics), out, notes)


def _joined(tables: Sequence[Table]) -> Table | None:
    """Tables of one layout as one: columns united, rows one after the other."""
    if len(tables) < 2:
        return tables[0] if tables else None
    columns = list(dict.fromkeys(column for table in tables for column in table.columns))
    columns.sort(key=lambda column: list(dict.fromkeys(c.group for c in columns)).index(column.group))
    rows = []
    for table in tables:
        place = {column: number for number, column in enumerate(table.columns)}

        def moved(values: Sequence[float | None], place: dict[Column, int] = place) -> tuple[float | None, ...]:
            return tuple(values[place[column]] if column in place else None for column in columns)

        rows += [
            Row(row.label, moved(row.values), row.source, row.block, moved(row.spread) if row.spread else ())
            for row in table.rows
        ]
    notes = [note for table in tables for note in table.notes]
    return Table(tables[0].key, tables[0].caption, tables[0].first, columns, rows, notes)


def _newest(found: Sequence[Found], names: Names) -> tuple[dict[str, dict[str, dict[str, Any]]], list[str]]:
    """Results by label and benchmark; of two of the same, the file that was written last, and a note."""
    shown: dict[str, dict[str, dict[str, Any]]] = {}
    chosen: dict[tuple[str, str], Path] = {}
    notes = []
    for path, value in found:
        key = (names.of_result(value), _bench(value))
        if key in chosen:
            newer, older = sorted((path, chosen[key]), key=lambda file: file.stat().st_mtime, reverse=True)
            notes.append(f"{key[0]} on {key[1]}: {newer} is shown, {older} is older.")
            if newer != path:
                continue
        chosen[key] = path
        shown.setdefault(key[0], {})[key[1]] = value
    return shown, notes


def _bench(result: Mapping[str, Any]) -> str:
    return str(result["benchmark"]["name"])


def _bench_order(benches: Iterable[str]) -> list[str]:
    """The paper's three first, in its order."""
    unique = dict.fromkeys(benches)
    return [*(name for name in BENCHMARKS if name in unique), *(name for name in unique if name not in BENCHMARKS)]


def _bench_columns(benches: Sequence[str], metrics: Sequence[str]) -> list[Column]:
    return [
        Column(BENCH_LABELS.get(bench, bench.removesuffix(".jsonl")), SHORT.get(metric, metric))
        for bench in benches
        for metric in metrics
    ]


def _percent(result: Mapping[str, Any] | None, metric: str) -> float | None:
    value = None if result is None else result["metrics"].get(metric)
    return None if value is None else 100 * value


def _same_model(paper: str, name: str) -> bool:
    """``Qwen/Qwen3-4B`` is the paper's Qwen3-4B, ``Qwen3-4B-Thinking`` is not."""
    return name.rpartition("/")[2].lower() == paper.lower()
