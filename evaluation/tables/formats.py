"""Tables as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import re
from itertools import groupby

from evaluation.report import align_table
from evaluation.tables.layout import DASH, PAPER, Row, Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", DASH: "--", "±": r"$\pm$", "×": r"$\times$", "Δ": r"$\Delta$",
    "−": "$-$", "†": r"$\dagger$",
}  # fmt: skip


def markdown(table: Table) -> str:
    """The caption, the table, its notes. Best figures are bold, the paper's rows in italics."""
    lines = [[_plain(table.first), *(_plain(column.name) for column in table.columns)]]
    best = table.best
    for block, rows in _blocks(table):
        if block:
            lines.append([f"*{_plain(block)}*", *[""] * len(table.columns)])
        for number, row in rows:
            label = f"*{_plain(row.label)}*" if row.source == PAPER else _plain(row.label)
            cells = [table.cell(row, place) for place in range(len(table.columns))]
            marked = [f"**{text}**" if (number, place) in best else text for place, text in enumerate(cells)]
            lines.append([label, *marked])
    parts = [f"**{_plain(table.caption)}**", align_table(lines)]
    if table.notes:
        parts.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(parts)


def latex(table: Table) -> str:
    r"""A ``table`` float with a ``booktabs`` tabular, columns under ``\multicolumn`` heads; needs that package alone."""
    width = len(table.columns)
    best = table.best
    groups = [(group, len(list(columns))) for group, columns in groupby(table.columns, key=lambda column: column.group)]
    out = [
        r"\begin{table}[t]",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{escape(table.caption)}}}",
        rf"\label{{tab:{table.key}}}",
        rf"\begin{{tabular}}{{l{'r' * width}}}",
        r"\toprule",
    ]
    if any(group for group, _ in groups):
        heads, rules, place = [], [], 2
        for group, span in groups:
            heads.append(rf"\multicolumn{{{span}}}{{c}}{{{escape(group)}}}")
            if group:
                rules.append(rf"\cmidrule(lr){{{place}-{place + span - 1}}}")
            place += span
        out += [f" & {' & '.join(heads)} \\\\", "".join(rules)]
    out += [
        f"{' & '.join([escape(table.first), *(escape(column.head) for column in table.columns)])} \\\\",
        r"\midrule",
    ]
    for place, (block, rows) in enumerate(_blocks(table)):
        if place and out[-1] != r"\midrule":
            out.append(r"\midrule")
        if block:
            out.append(rf"\multicolumn{{{width + 1}}}{{l}}{{\textit{{{escape(block)}}}}} \\")
        for number, row in rows:
            cells = [escape(table.cell(row, column)) for column in range(width)]
            marked = [rf"\textbf{{{text}}}" if (number, column) in best else text for column, text in enumerate(cells)]
            label = rf"\textit{{{escape(row.label)}}}" if row.source == PAPER else escape(row.label)
            out.append(f"{' & '.join([label, *marked])} \\\\")
    out += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(out) + "\n"


def csv_text(table: Table) -> str:
    """A line a row with its block and source; figures unrounded, deviations over seeds in columns of their own."""
    deviations = any(row.spread for row in table.rows)
    heads = [column.name for column in table.columns]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["block", table.first, "source", *heads, *(f"{head} sd" for head in heads if deviations)])
    for row in table.rows:
        spread = row.spread or (None,) * len(heads)
        figures = [*row.values, *(spread if deviations else ())]
        writer.writerow([row.block, row.label, row.source, *("" if value is None else value for value in figures)])
    return buffer.getvalue()


def escape(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(character, character) for character in text)


def _blocks(table: Table) -> list[tuple[str, list[tuple[int, Row]]]]:
    numbered = enumerate(table.rows)
    return [(block, list(rows)) for block, rows in groupby(numbered, key=lambda item: item[1].block)]


def _plain(text: str) -> str:
    """Text that Markdown prints as it is in a table: no cell or emphasis begins in a model's name."""
    return re.sub(r"([\\|*`<>])", r"\\\1", text.replace("\n", " "))
