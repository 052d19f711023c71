"""Tables and the plot of end-to-end results: Table 5 with the paper's figures beside ours, suites, and differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.end_to_end.run import FORMAT
from evaluation.paper_tables import TABLE5, TABLE5_MODELS
from evaluation.plots import INK, new_figure, save_figure, tidy_axes
from evaluation.report import align_table

_COLORS = {"none": "#cfcfcf", "gold": "#d4b13f"}
_RETRIEVED = ("#2b6cb0", "#8fbbe3", "#dd7a2b", "#6a9f58", "#9467bd", "#c4577c", "#4aa3a2")

Result = Mapping[str, Any]


def read_end_to_end(path: str | Path) -> dict[str, Any]:
    """Read a result, or the one in a run's folder.

    Raises:
        ValueError: not such a file.
        FileNotFoundError: no such file.
    """
    file = Path(path) / "result.json" if Path(path).is_dir() else Path(path)
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not valid JSON ({error}); expected what skillreason end-to-end run wrote") from error
    found = value.get("format") if isinstance(value, dict) else None
    if found != FORMAT:
        raise ValueError(f"{file}: format is {found!r}; expected {FORMAT}, what skillreason end-to-end run writes")
    return value


def table5(results: Sequence[Result], paper: bool = True) -> str:
    """Table 5: a row a condition, a column a downstream model, accuracies in percent with their intervals; the paper's behind."""
    heads = [str(result["model"]) for result in results]
    ours = [{row["name"]: row for row in result["conditions"]} for result in results]
    names = list(dict.fromkeys(name for column in ours for name in column))
    rows = [["Skill condition", *heads, *(f"{model} (paper)" for model in TABLE5_MODELS if paper)]]
    published = {_key(name): (name, figures) for name, figures in TABLE5.items()} if paper else {}
    for name in names:
        _, figures = published.pop(_key(name), (name, ()))
        cells = [_cell(column[name]) if name in column else "–" for column in ours]
        rows.append([name, *cells, *_published(figures, paper)])
    rows += [[name, *("–" for _ in ours), *_published(figures, paper)] for name, figures in published.values()]
    return align_table(rows)


def suite_table(result: Result) -> str:
    """A row a condition: accuracy of every suite, their average, and how many answers could not be read or never came."""
    suites = [row["suite"] for row in result["conditions"][0]["suites"]]
    sizes = [row["n"] for row in result["conditions"][0]["suites"]]
    head = [f"{suite} (n = {size:,})" for suite, size in zip(suites, sizes, strict=True)]
    rows = [["Skill condition", *head, "macro", "gold shown", "unparsable", "missing"]]
    for row in result["conditions"]:
        cells = [_percent(part["accuracy"]) for part in row["suites"]]
        counts = [str(row["unparsable"]), str(row["missing"])]
        rows.append([row["name"], *cells, _percent(row["accuracy"]), _percent(row["gold_shown"]), *counts])
    return align_table(rows)


def comparison_table(result: Result) -> str:
    """A row a pair: the second condition minus the first in points, with interval and p."""
    rows = [["Difference", "n", "points", "95% interval", "p"]]
    for pair in result["comparisons"]:
        if pair["difference"] is None:
            rows.append([f"{pair['second']} − {pair['first']}", str(pair["n"]), "–", "–", "–"])
            continue
        low, high = (f"{100 * end:+.2f}" for end in pair["interval"])
        p = "< 0.001" if pair["p"] < 0.001 else f"{pair['p']:.3f}"
        points = f"{100 * pair['difference']:+.2f}"
        rows.append([f"{pair['second']} − {pair['first']}", str(pair["n"]), points, f"[{low}, {high}]", p])
    return align_table(rows)


def plot_end_to_end(results: Sequence[Result], path: str | Path) -> Path | None:
    """Grouped bars with intervals: a group a downstream model; for a single one also a group a suite.

    None where there is no accuracy to draw.
    """
    names = list(dict.fromkeys(row["name"] for result in results for row in result["conditions"]))
    groups: list[tuple[str, dict[str, Mapping[str, Any]]]] = []
    for result in results:
        head = str(result["model"]) if len(results) > 1 else "macro average"
        groups.append((head, {row["name"]: row for row in result["conditions"]}))
    if len(results) == 1:
        for place, part in enumerate(results[0]["conditions"][0]["suites"]):
            of_suite = {row["name"]: row["suites"][place] for row in results[0]["conditions"]}
            groups.append((f"{part['suite']}\nn = {part['n']:,}", of_suite))
    if not any(row["accuracy"] is not None for _, group in groups for row in group.values()):
        return None
    kinds = {row["name"]: row["kind"] for result in results for row in result["conditions"]}
    retrieved = [name for name in names if kinds[name] == "retrieved"]
    figure = new_figure(max(6.4, 1.2 + len(groups) * (0.5 + 0.28 * len(names))), 4.2)
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        color = _COLORS.get(kinds[name]) or _RETRIEVED[retrieved.index(name) % len(_RETRIEVED)]
        label: str | None = name
        for place, (_, group) in enumerate(groups):
            row = group.get(name)
            if row is None or row["accuracy"] is None:
                continue
            x, height = place + (number - (len(names) - 1) / 2) * width, 100 * row["accuracy"]
            below, above = (abs(100 * end - height) for end in row["interval"])
            axes.bar(x, height, width * 0.94, color=color, label=label)
            axes.errorbar(x, height, yerr=[[below], [above]], fmt="none", ecolor=INK, elinewidth=1, capsize=2)
            label = None
    axes.set_xticks(range(len(groups)), [head for head, _ in groups], parse_math=False)
    axes.set_ylim(0, 102)
    axes.set_ylabel("tasks solved, percent", fontsize=9, color=INK)
    tidy_axes(axes)
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside upper center", ncols=min(len(names), 3), fontsize=8, frameon=False)
    return save_figure(figure, path)


def _key(name: str) -> str:
    return "".join(name.casefold().replace("×", "x").split())


def _cell(row: Mapping[str, Any]) -> str:
    if row["accuracy"] is None:
        return "–"
    low, high = row["interval"]
    return f"{100 * row['accuracy']:.2f} [{100 * low:.1f}, {100 * high:.1f}]" + ("*" if row["missing"] else "")


def _published(figures: Sequence[float], paper: bool) -> list[str]:
    return [f"{figure:.2f}" for figure in figures] or ["–"] * (len(TABLE5_MODELS) if paper else 0)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
