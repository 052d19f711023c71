"""A small terminal adjudication: shows each item of the judges' queue and keeps a human's decisions (C.4, A.1)."""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from data_pipeline.pipeline.dag import PipelineError
from data_pipeline.pipeline.decisions import DecisionLog, read_decisions
from data_pipeline.rows import read_rows
from data_pipeline.teacher.untrusted import clean_text

DOCUMENT_CHARS = 1_500
CHOICES = {"k": "keep", "r": "reject", "s": "skip", "b": "back", "q": "quit"}
_QUESTION = "[k]eep  [r]eject  [s]kip  [b]ack  [q]uit > "


@dataclass
class ReviewSummary:
    """What a session did: decisions made in it, and how many items of the queue have none yet."""

    made: Counter[str] = field(default_factory=Counter)
    undecided: int = 0


def is_interactive() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def review_queue(
    queue_file: str | Path,
    decisions_file: str | Path,
    reviewer: str = "",
    console: Console | None = None,
    answer: Callable[[str], str] = input,
) -> ReviewSummary:
    """Go through the items that have no decision yet, one after the other; each decision is on the disk at once.

    Raises:
        PipelineError: nobody is there to answer, the queue is not one, or the decisions are no JSONL file.
    """
    rows = _read_queue(queue_file)
    decided = read_decisions(decisions_file) if Path(decisions_file).exists() else {}
    open_rows = [row for row in rows if row["query_id"] not in decided]
    if open_rows and not is_interactive():
        raise PipelineError(
            "data review asks questions and standard input is no terminal; run it in one, or write the decisions file yourself: "
            'one {"query_id": …, "keep": true or false} a line'
        )
    log = DecisionLog(decisions_file)
    if console is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows what it can
        console = Console(highlight=False)
    summary = ReviewSummary()
    console.print(f"{len(rows)} items, {len(rows) - len(open_rows)} decided before", markup=False)
    number = 0
    while number < len(open_rows):
        row = open_rows[number]
        _show(console, row, f"{number + 1} of {len(open_rows)}", decided.get(row["query_id"]))
        choice = _choice(console, answer)
        if choice == "quit":
            break
        if choice == "back":
            number = max(number - 1, 0)
            continue
        if choice in ("keep", "reject"):
            decision = {
                "query_id": row["query_id"],
                "query": row["query"],
                "skill_id": row["skill_id"],
                "keep": choice == "keep",
                "reviewer": reviewer,
                "decided_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            log.add(decision)
            decided[row["query_id"]] = decision
            summary.made[choice] += 1
        number += 1
    summary.undecided = sum(row["query_id"] not in decided for row in rows)
    return summary


def _read_queue(file: str | Path) -> list[dict[str, Any]]:
    rows = []
    for number, row in read_rows(file):
        for key in ("query_id", "query", "skill_id"):
            if not isinstance(row.get(key), str):
                raise PipelineError(
                    f"{file}:{number}: {key} is missing or no text; expected a queue of the judge stage"
                )
        rows.append(row)
    return rows


def _choice(console: Console, answer: Callable[[str], str]) -> str:
    while True:
        try:
            given = answer(_QUESTION).strip().lower()
        except EOFError:
            return "quit"
        for letter, name in CHOICES.items():
            if given in (letter, name):
                return name
        console.print(f"{given!r}; expected one of {', '.join(CHOICES)}", markup=False)


def _show(console: Console, row: Mapping[str, Any], place: str, decision: Mapping[str, Any] | None) -> None:
    console.print()
    console.print(Panel(_safe(row["query"]), title=Text(f"{place}  {_safe(row['query_id'])}"), title_align="left"))
    skill = row["skill"] if isinstance(row.get("skill"), Mapping) else {}
    console.print(Text.assemble(("target  ", "bold"), _safe(row["skill_id"]), "  ", _safe(skill.get("name", ""))))
    console.print(_safe(skill.get("description", "")))
    document = str(skill.get("document", ""))
    shown = document[:DOCUMENT_CHARS] + (" …" if len(document) > DOCUMENT_CHARS else "")
    console.print(Text(str(_safe(shown)), style="dim"))
    for judge in ("judge_a", "judge_b"):
        console.print(Text.assemble((f"{judge}  ", "bold"), _safe(_verdict(row.get(judge)))))
    if decision is not None:
        console.print(Text(f"decided: {'keep' if decision['keep'] else 'reject'}", style="bold"))


def _verdict(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "no answer"
    passed = value.get("keep", value.get("pass"))
    rest = [f"{key}: {item}" for key, item in value.items() if key not in ("keep", "pass") and item not in ("", None)]
    return " · ".join([{True: "keep", False: "reject"}.get(passed, "?"), *rest])


def _safe(text: Any) -> Text:
    """Documents and requests are untrusted: no control sequence of theirs reaches the terminal, and no markup is read."""
    return Text(clean_text(str(text)))
