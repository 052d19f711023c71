"""Tables as values: best figures, the paper's rows, and what cells say."""

from __future__ import annotations

import pytest

from evaluation.tables.layout import PAPER, Column, Row, Table, with_paper


def table(*rows: Row, **settings) -> Table:
    columns = [Column("Bench", "R@1"), Column("Bench", "ms", "min")]
    return Table("table2", "A caption", "System", columns, list(rows), **settings)


def test_the_best_of_ours_is_found_by_column_and_the_papers_figures_do_not_compete():
    found = table(Row("a", (10.0, 5.0)), Row("b", (20.0, 7.0)), Row("c", (99.0, 1.0), PAPER))
    assert found.best == {(1, 0), (0, 1)}


def test_figures_that_print_alike_are_both_best():
    assert table(Row("a", (10.001, None)), Row("b", (10.0, None))).best == {(0, 0), (1, 0)}


def test_one_system_alone_is_not_the_best_of_anything():
    assert table(Row("a", (10.0, 5.0))).best == set()


def test_cells():
    shown = table(Row("a", (1234.5, None), spread=(0.25, None)), digits=1, signed=frozenset({0}))
    assert [shown.cell(shown.rows[0], place) for place in (0, 1)] == ["+1,234.5 ± 0.2", "–"]


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="row 'a' has 1 figures for 2 columns"):
        table(Row("a", (1.0,)))


def test_the_papers_row_stands_below_its_configuration():
    figures = {"A": (1.0,), "B": (2.0,), "C": (None,)}
    ours = [Row("A", (5.0,)), Row("mine", (6.0,)), Row("C", (7.0,))]
    labels = {paper: [row.label for row in with_paper(ours, figures, paper)] for paper in ("matching", "all", "none")}
    assert labels["matching"] == ["A", "A, paper", "mine", "C"]
    assert labels["all"] == ["A", "A, paper", "mine", "C", "B"]
    assert labels["none"] == ["A", "mine", "C"]
