"""The three formats of one table, read back by independent readers."""

from __future__ import annotations

import csv
import io
import re

import pytest

from evaluation.tables.formats import csv_text, escape, latex, markdown
from evaluation.tables.layout import PAPER, Column, Row, Table

TABLE = Table(
    "table2",
    "Retrieval (%)",
    "System",
    [Column("A_b", "R@1"), Column("A_b", "N@10"), Column("", "Total")],
    [
        Row("mine | 50%", (12.375, 1.0, None)),
        Row("other", (2.0, 3.0, 4.0), spread=(0.5, None, None)),
        Row("other, paper", (9.0, 9.0, 9.0), PAPER, "Paper"),
    ],
    ["a note"],
)


def test_markdown_is_a_table_of_the_same_cells():
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark").enable("table").render(markdown(TABLE))
    cells = re.findall(r"<t[dh](?: [^>]*)?>(.*?)</t[dh]>", html, flags=re.DOTALL)
    rows = [cells[start : start + 4] for start in range(0, len(cells), 4)]
    assert rows == [
        ["System", "A_b R@1", "A_b N@10", "Total"],
        ["mine | 50%", "<strong>12.38</strong>", "1.00", "–"],
        ["other", "2.00 ± 0.50", "<strong>3.00</strong>", "4.00"],
        ["<em>Paper</em>", "", "", ""],
        ["<em>other, paper</em>", "9.00", "9.00", "9.00"],
    ]
    assert "<li>a note</li>" in html


def test_csv_keeps_all_digits_and_the_source():
    rows = list(csv.DictReader(io.StringIO(csv_text(TABLE))))
    assert [row["source"] for row in rows] == ["ours", "ours", "paper"]
    assert rows[0]["A_b R@1"] == "12.375"
    assert rows[0]["Total"] == ""
    assert rows[1]["A_b R@1 sd"] == "0.5"


def test_latex_has_a_cell_for_every_column_and_escapes():
    text = latex(TABLE)
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith(r"\\") and r"\multicolumn{4}" not in line]
    assert lines[0] == r" & \multicolumn{2}{c}{A\_b} & \multicolumn{1}{c}{} \\"
    assert all(line.count("&") == 3 for line in lines[1:])
    assert r"mine | 50\% & \textbf{" in body
    assert r"2.00 $\pm$ 0.50" in body
    assert r"\cmidrule(lr){2-3}" in body


@pytest.mark.parametrize(
    ("text", "expected"), [("a_b & c%", r"a\_b \& c\%"), ("\\x{y}", r"\textbackslash{}x\{y\}"), ("×–", r"$\times$--")]
)
def test_escape(text, expected):
    assert escape(text) == expected
