"""A table as it is printed: columns under groups, rows in blocks, figures with where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

OURS, PAPER = "ours", "paper"
DASH = "–"


@dataclass(frozen=True)
class Column:
    """One column of figures: ``head`` under the wider head ``group``; ``best`` says which end of it is the better."""

    group: str
    head: str
    best: str = "max"  # max, min, or nothing where no figure is better than another

    @property
    def name(self) -> str:
        """Both heads in one line."""
        return f"{self.group} {self.head}".strip()


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        label: what was measured.
        values: a figure a column, as it is printed (percent, milliseconds); None where there is none.
        source: :data:`OURS` or :data:`PAPER`.
        block: the heading it stands under.
        spread: standard deviations over seeds, a value a column; empty where there was one run.
    """

    label: str
    values: tuple[float | None, ...]
    source: str = OURS
    block: str = ""
    spread: tuple[float | None, ...] = ()


@dataclass
class Table:
    """A table of the paper with rows of ours.

    Attributes:
        key: ``table2`` …, also the name of its files.
        caption: what it shows.
        first: head of the column of labels.
        notes: printed below it.
        digits: decimals.
        signed: columns printed with their sign.
    """

    key: str
    caption: str
    first: str
    columns: list[Column]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    digits: int = 2
    signed: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.values) != len(self.columns) or len(row.spread) not in (0, len(self.columns)):
                raise ValueError(
                    f"{self.key}: row {row.label!r} has {len(row.values)} figures for {len(self.columns)} columns"
                )

    @property
    def best(self) -> set[tuple[int, int]]:
        """(row, column) of the best of our figures in each column that has at least two."""
        found: set[tuple[int, int]] = set()
        for place, column in enumerate(self.columns):
            ours = [
                (value, number)
                for number, row in enumerate(self.rows)
                if row.source == OURS and (value := row.values[place]) is not None
            ]
            if len(ours) > 1 and column.best:
                top = (max if column.best == "max" else min)(value for value, _ in ours)
                found |= {(number, place) for value, number in ours if self.rounded(value) == self.rounded(top)}
        return found

    def rounded(self, value: float) -> str:
        """A figure with the table's decimals."""
        return f"{value:,.{self.digits}f}"

    def cell(self, row: Row, place: int) -> str:
        """A figure as text, with ``±`` and its deviation where it has one."""
        value = row.values[place]
        if value is None:
            return DASH
        sign = "+" if place in self.signed and value > 0 else ""
        spread = row.spread[place] if row.spread else None
        return sign + self.rounded(value) + ("" if spread is None else f" ± {self.rounded(spread)}")


def with_paper(
    rows: Sequence[Row], figures: dict[str, tuple[float | None, ...]], paper: str, block: str = "Paper"
) -> list[Row]:
    """Our rows with the paper's beside them.

    Args:
        rows: ours; a row whose label is one of ``figures`` is the same configuration.
        figures: the paper's, by label; in the columns of the rows.
        paper: ``matching`` puts a configuration's figures below ours, ``all`` also the others in a block of their own at
            the end, ``none`` leaves them out.
    """
    if paper not in ("matching", "all", "none"):
        raise ValueError(f"paper is {paper!r}; expected matching, all or none")
    known = {label: values for label, values in figures.items() if any(value is not None for value in values)}
    out: list[Row] = []
    for row in rows:
        out.append(row)
        if paper != "none" and row.label in known:
            out.append(Row(f"{row.label}, paper", known[row.label], PAPER, row.block))
    if paper == "all":
        shown = {row.label for row in rows}
        out += [Row(label, values, PAPER, block) for label, values in known.items() if label not in shown]
    return out
