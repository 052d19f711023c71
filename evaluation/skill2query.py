"""The comparison of Tables 1 to 4 of the Skill2Query paper: index configurations, plain, augmented, and with expanded queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.corpus import SkillCorpus
from data_pipeline.records import BenchQuery
from data_pipeline.skill2query.augment import PER_SKILL, IndexConfig, Placement, index_texts
from data_pipeline.skill2query.expand import SEEDS, VARIANTS, ExpandedRetriever, Seed
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from evaluation.metrics import evaluate_ranking
from evaluation.plots import INK, new_figure, save_figure, tidy_axes
from models.folders import atomic_write_text
from retrieval.retriever import Retriever, document_format, open_retriever

METRICS = {"recall@1": "R@1", "recall@10": "R@10", "ndcg@1": "N@1", "ndcg@10": "N@10"}
MODES = ("baseline", "offline", "online")
CONFIG_LABELS = {IndexConfig.NAME: "name", IndexConfig.NAME_DESCRIPTION: "name + description", IndexConfig.FULL: "full"}
_COLORS = ("#cfcfcf", "#2b6cb0", "#dd7a2b")
_DEPTH = 100


@dataclass(frozen=True)
class Row:
    """One line of the table: metrics are fractions between 0 and 1."""

    bench: str
    model: str
    config: str
    mode: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class Settings:
    """What the three modes depend on beside model, corpus and pseudo-queries."""

    per_skill: int = PER_SKILL
    placement: str = Placement.BEFORE_BODY
    variants: int = VARIANTS
    seeds: int = SEEDS
    modes: tuple[str, ...] = MODES
    configs: tuple[str, ...] = tuple(IndexConfig)


def compare(
    corpus: SkillCorpus,
    benches: Mapping[str, Sequence[BenchQuery]],
    models: Sequence[str],
    queries: Sequence[PseudoQuery],
    seed: Callable[[str], Seed | None],
    settings: Settings | None = None,
    *,
    cache_dir: str | Path | None = None,
    max_length: int | None = None,
    progress: bool = False,
) -> list[Row]:
    """Every model on every bench, for each index configuration as it is, with augmented index, and with expanded queries.

    Args:
        benches: test requests by the name they have in the table.
        models: as for ``skillreason evaluate``: ``bm25``, a folder, ``hybrid:FOLDER``.
        queries: pseudo-queries of the corpus' skills, for the augmented index.
        seed: see :class:`data_pipeline.skill2query.expand.ExpandedRetriever`.

    Raises:
        ValueError: a target that the corpus lacks, and what the model or the metrics refuse.
        FileNotFoundError: a model is missing.
    """
    settings = settings or Settings()
    for name, bench in benches.items():
        lacking = [s for query in bench for s, grade in query.qrels.items() if grade > 0 and s not in corpus]
        if lacking:
            raise ValueError(
                f"bench {name}: target {lacking[0]!r} is not in the corpus ({len(lacking)} such targets); expected every target "
                f"among its {len(corpus)} skills"
            )
    rows: list[Row] = []
    for model in models:
        documents = document_format(model)

        def index(texts: Sequence[str], model: str = model) -> Retriever:
            return open_retriever(
                model, corpus.ids, texts, cache_dir=cache_dir, max_length=max_length, progress=progress
            )

        for config in settings.configs:
            retrievers: dict[str, Retriever] = {}
            plain = index(index_texts(corpus, config, document_format=documents))
            if "baseline" in settings.modes:
                retrievers["baseline"] = plain
            if "offline" in settings.modes:
                texts = index_texts(corpus, config, queries, settings.per_skill, settings.placement, documents)
                retrievers["offline"] = index(texts)
            if "online" in settings.modes:
                retrievers["online"] = ExpandedRetriever(plain, seed, settings.variants, settings.seeds)
            for mode, retriever in retrievers.items():
                for name, bench in benches.items():
                    rows.append(Row(name, model, config, mode, _measure(retriever, bench)))
    return sorted(rows, key=lambda row: list(benches).index(row.bench))


def comparison_table(rows: Iterable[Row]) -> str:
    """Markdown, one table a bench, percent; in parentheses the difference to the baseline in percentage points."""
    rows = list(rows)
    baseline = {(row.bench, row.model, row.config): row.metrics for row in rows if row.mode == "baseline"}
    lines: list[str] = []
    for bench in dict.fromkeys(row.bench for row in rows):
        heads = " | ".join(METRICS.values())
        lines += [f"### {bench}", "", f"| model | index | mode | {heads} |", "|---|---|---|" + "---:|" * len(METRICS)]
        for row in (row for row in rows if row.bench == bench):
            known = baseline.get((bench, row.model, row.config)) if row.mode != "baseline" else None
            cells = [
                f"{100 * row.metrics[key]:.1f}" + (f" ({100 * (row.metrics[key] - known[key]):+.1f})" if known else "")
                for key in METRICS
            ]
            label = CONFIG_LABELS[IndexConfig(row.config)]
            lines.append(f"| {_short(row.model)} | {label} | {row.mode} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def write_table(path: str | Path, rows: Iterable[Row]) -> None:
    """:func:`comparison_table` as a file."""
    atomic_write_text(Path(path), comparison_table(rows))


def plot_comparison(rows: Sequence[Row], path: str | Path, metric: str = "recall@10") -> Path:
    """Grouped bars in percent, one panel a bench, one group a model and index configuration, one bar a mode."""
    benches = list(dict.fromkeys(row.bench for row in rows))
    groups = list(dict.fromkeys((row.model, row.config) for row in rows))
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    value = {(row.bench, row.model, row.config, row.mode): 100 * row.metrics[metric] for row in rows}
    figure = new_figure(max(6.0, 1.5 + 1.25 * len(groups)), 2.9 * len(benches) + 0.8)
    for place, bench in enumerate(benches, start=1):
        axes = figure.add_subplot(len(benches), 1, place)
        for number, mode in enumerate(modes):
            places = [group + (number - (len(modes) - 1) / 2) * 0.28 for group in range(len(groups))]
            heights = [value.get((bench, *group, mode), 0.0) for group in groups]
            bars = axes.bar(places, heights, 0.26, color=_COLORS[MODES.index(mode)], label=mode if place == 1 else "")
            axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7, color=INK)
        labels = [f"{_short(model)}\n{CONFIG_LABELS[IndexConfig(config)]}" for model, config in groups]
        axes.set_xticks(range(len(groups)), labels, fontsize=8)
        axes.set_ylim(0, 105)
        axes.set_ylabel(f"{METRICS[metric]}, percent", fontsize=9, color=INK)
        axes.set_title(bench, fontsize=10, loc="left", color=INK)
        tidy_axes(axes)
        axes.grid(visible=False, axis="x")
    figure.legend(loc="outside lower center", ncols=len(modes), fontsize=9, frameon=False)
    return save_figure(figure, path)


def _measure(retriever: Retriever, bench: Sequence[BenchQuery]) -> dict[str, float]:
    ranking = retriever.search([query.query for query in bench], _DEPTH)
    found = evaluate_ranking(ranking, [q.query_id for q in bench], {q.query_id: q.qrels for q in bench}, (1, 10))
    return {key: found[key] for key in METRICS}


def _short(model: str) -> str:
    kind, colon, path = model.rpartition(":")
    name = Path(path).name
    return f"{kind}{colon}{name}"
