"""The terminal adjudication: what is shown, what is kept, and what a killed session loses (nothing)."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data_pipeline.pipeline import PipelineError
from data_pipeline.pipeline import review as review_module
from data_pipeline.pipeline.decisions import DecisionLog, read_decisions
from data_pipeline.pipeline.review import ReviewSummary, review_queue
from data_pipeline.rows import write_rows


def item(number: int, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "query_id": f"b-{number}",
        "query": f"request number {number}",
        "skill_id": f"garden/s{number}",
        "skill": {"name": f"skill {number}", "description": "Warns early.", "document": "# Steps"},
        "judge_a": {"keep": True, "issue_type": "good_implicit_reasoning", "reason": "clear need"},
        "judge_b": {"keep": False, "issue_type": "simple_task", "reason": "any model can"},
    }
    return {**row, **changes}


Review = Callable[..., tuple[ReviewSummary, str]]


@pytest.fixture
def review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Review:
    """A session on ``queue`` with these answers; what it shows is the second value."""
    monkeypatch.setattr(review_module, "is_interactive", lambda: True)

    def run(answers: str | Iterator[str], queue: Sequence[dict[str, Any]]) -> tuple[ReviewSummary, str]:
        write_rows(tmp_path / "queue.jsonl", queue)
        given = iter(answers.split()) if isinstance(answers, str) else answers
        shown = io.StringIO()

        def answer(question: str) -> str:
            try:
                return next(given)
            except StopIteration:
                raise EOFError from None

        console = Console(file=shown, width=100, highlight=False)
        summary = review_queue(tmp_path / "queue.jsonl", tmp_path / "decisions.jsonl", "ada", console, answer)
        return summary, shown.getvalue()

    return run


def decided(tmp_path: Path) -> list[tuple[str, Any]]:
    return [
        (row["query_id"], row["keep"])
        for row in map(json.loads, (tmp_path / "decisions.jsonl").read_text().splitlines())
    ]


def test_request_target_and_both_verdicts_are_shown(review: Review) -> None:
    _, shown = review("q", [item(1, judge_b=None)])
    for text in (
        "request number 1",
        "garden/s1",
        "skill 1",
        "Warns early.",
        "# Steps",
        "keep · ",
        "clear need",
        "no answer",
    ):
        assert text in shown


def test_keep_and_reject_are_written_with_who_decided_on_which_text(review: Review, tmp_path: Path) -> None:
    summary, _ = review("k reject", [item(1), item(2)])
    assert decided(tmp_path) == [("b-1", True), ("b-2", False)]
    first = json.loads((tmp_path / "decisions.jsonl").read_text().splitlines()[0])
    assert (first["query"], first["skill_id"], first["reviewer"]) == ("request number 1", "garden/s1", "ada")
    assert (summary.made["keep"], summary.made["reject"], summary.undecided) == (1, 1, 0)


def test_a_skipped_item_has_no_decision_and_comes_again_next_time(review: Review, tmp_path: Path) -> None:
    assert review("s k", [item(1), item(2)])[0].undecided == 1
    _, shown = review("k", [item(1), item(2)])
    assert "request number 2" not in shown
    assert decided(tmp_path) == [("b-2", True), ("b-1", True)]


def test_back_shows_the_item_before_and_a_new_decision_replaces_the_old(review: Review, tmp_path: Path) -> None:
    _, shown = review("b k b r k", [item(1), item(2)])  # back at the first item stays there
    assert "decided: keep" in shown
    assert {i: d["keep"] for i, d in read_decisions(tmp_path / "decisions.jsonl").items()} == {
        "b-1": False,
        "b-2": True,
    }


def test_an_unknown_answer_is_asked_again_and_decides_nothing(review: Review, tmp_path: Path) -> None:
    _, shown = review("yes K", [item(1)])
    assert "'yes'; expected one of k, r, s, b, q" in shown
    assert decided(tmp_path) == [("b-1", True)]


@pytest.mark.parametrize("ending", ["q", ""])
def test_quit_and_the_end_of_input_keep_what_was_decided(review: Review, tmp_path: Path, ending: str) -> None:
    summary, _ = review(f"k {ending}", [item(1), item(2)])
    assert summary.undecided == 1
    assert decided(tmp_path) == [("b-1", True)]


def test_a_decision_is_in_the_file_before_the_next_question(review: Review, tmp_path: Path) -> None:
    def answers() -> Iterator[str]:
        yield "k"
        assert decided(tmp_path) == [("b-1", True)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        review(answers(), [item(1), item(2)])
    assert decided(tmp_path) == [("b-1", True)]


def test_control_sequences_and_markup_of_a_document_reach_no_terminal(review: Review) -> None:
    evil = {"name": "[bold red]x[/]", "description": "\x1b]0;owned\x07\x1b[2J", "document": "\u202egnp.exe"}
    _, shown = review("q", [item(1, query="\x1b[31mhello [/] [link=http://x]", skill=evil)])
    assert not set(shown) & {"\x1b", "\x07", "\u202e"}
    assert "hello [/] [link=http://x]" in shown
    assert "[bold red]x[/]" in shown


def test_a_line_that_a_kill_has_cut_is_dropped_and_swallows_no_later_one(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    file.write_text('{"query_id": "b-1", "keep": true}\n{"query_id": "b-2", "ke')
    assert list(read_decisions(file)) == ["b-1"]
    DecisionLog(file).add({"query_id": "b-3", "keep": False})
    assert {i: d["keep"] for i, d in read_decisions(file).items()} == {"b-1": True, "b-3": False}


def test_a_last_line_without_an_end_is_a_decision_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    file.write_text('{"query_id": "b-1", "keep": true}')
    DecisionLog(file).add({"query_id": "b-2", "keep": True})
    assert list(read_decisions(file)) == ["b-1", "b-2"]


def test_a_file_that_is_no_queue_is_named(review: Review) -> None:
    with pytest.raises(PipelineError, match=r"queue.jsonl:1: skill_id is missing or no text"):
        review("k", [{"query_id": "b-1", "query": "x"}])


def test_without_somebody_to_answer_it_says_so(tmp_path: Path) -> None:
    write_rows(tmp_path / "queue.jsonl", [item(1)])
    with pytest.raises(PipelineError, match="standard input is no terminal"):
        review_queue(tmp_path / "queue.jsonl", tmp_path / "decisions.jsonl", answer=lambda question: "k")
    assert not (tmp_path / "decisions.jsonl").exists()


def test_a_queue_whose_skill_is_no_object_is_shown_all_the_same(review: Review, tmp_path: Path) -> None:
    _, shown = review("k k", [item(1, skill="text"), item(2, skill=[1], judge_a="x")])
    assert "request number 2" in shown
    assert decided(tmp_path) == [("b-1", True), ("b-2", True)]


def test_an_empty_queue_needs_nobody_and_leaves_a_file_of_decisions(tmp_path: Path) -> None:
    write_rows(tmp_path / "queue.jsonl", [])
    summary = review_queue(tmp_path / "queue.jsonl", tmp_path / "decisions.jsonl")
    assert (summary.made, summary.undecided) == ({}, 0)
    assert read_decisions(tmp_path / "decisions.jsonl") == {}


@pytest.mark.parametrize("name", ["decisions.txt", "decisions.jsonl.gz", "decisions.parquet"])
def test_decisions_in_a_file_that_lines_cannot_be_added_to_are_refused(tmp_path: Path, name: str) -> None:
    for use in (DecisionLog, read_decisions):
        with pytest.raises(
            PipelineError, match=rf"{name}: decisions are kept as plain lines of JSON.*ending in .jsonl"
        ):
            use(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_terminal_that_cannot_show_a_character_does_not_end_the_review(tmp_path: Path) -> None:
    write_rows(tmp_path / "queue.jsonl", [item(1, query="\u8bf7 caf\u00e9")])
    script = (
        "from data_pipeline.pipeline import review\n"
        "review.is_interactive = lambda: True\n"
        "review.review_queue('queue.jsonl', 'decisions.jsonl', answer=lambda question: 'k')\n"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"? caf?" in done.stdout
    assert decided(tmp_path) == [("b-1", True)]
