"""Folders in the layout of BEIR: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from evaluation.benchmarks.base import OPEN_PROTOCOL, Benchmark
from evaluation.benchmarks.labels import Asked, ask_once, join, read_grade
from evaluation.benchmarks.tables import Row, find_table, read_skills, read_table

_ID = ("_id", "id")
_QRELS_HEADER = ("query-id", "corpus-id", "score")


def is_beir(folder: Path) -> bool:
    """Whether a folder has the three parts."""
    return all(list(folder.glob(f"{stem}.jsonl*")) for stem in ("corpus", "queries")) and (folder / "qrels").is_dir()


def load_beir(folder: Path, name: str, split: str | None) -> Benchmark:
    """Read the folder; ``title`` becomes the skill's name and ``text`` its body (``description`` where there is one).

    Queries without a line in the qrels of ``split`` (default ``test``) are left out and counted: the file usually holds those
    of other splits too.

    Raises:
        RecordError: a broken row, a repeated id, qrels that name an unknown query or skill.
        FileNotFoundError: a part is missing.
    """
    corpus = read_skills(find_table(folder, "corpus"), ("_id", "id", "skill_id"), ("text", "body"))
    asked = ask_once(
        Asked(row, row.text(*_ID, "query_id"), row.text("text", "query"), row.text("domain", empty=True))
        for row in read_table(find_table(folder, "queries"))
    )
    grades = (
        read_grade(row, ("query-id", "query_id"), ("corpus-id", "corpus_id", "skill_id"), ("score", "relevance"))
        for row in _qrels(folder / "qrels", split or "test")
    )
    queries, notes = join(asked, grades, corpus)
    return Benchmark(name, corpus, queries, OPEN_PROTOCOL, str(folder), notes=tuple(notes))


def _qrels(folder: Path, split: str) -> Iterator[Row]:
    path = folder / f"{split}.tsv"
    if not path.is_file():
        if list(folder.glob(f"{split}.jsonl*")):
            yield from read_table(find_table(folder, split))
            return
        there = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
        raise FileNotFoundError(f"{folder}: no qrels {split}.tsv; the folder has: {there}")
    with path.open(encoding="utf-8", newline="") as handle:
        header: list[str] | None = None
        for number, cells in enumerate(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE), start=1):
            if not cells:
                continue
            if header is None:
                header = list(_QRELS_HEADER)
                if len(cells) == len(header) and not cells[-1].strip().lstrip("-").isdigit():
                    header = [cell.strip() for cell in cells]
                    continue
            row = Row(path, number, dict(zip(header, cells, strict=False)))
            if len(cells) != len(header):
                raise row.error(f"{len(cells)} columns separated by tabs; expected {len(header)}: {', '.join(header)}")
            yield row
