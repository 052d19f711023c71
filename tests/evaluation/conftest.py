"""A library of four skills and three requests as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SKILLS = [
    ("pdf-forms", "Fill PDF forms", "Reads a form and fills its fields with values."),
    ("sql-tuning", "Tune SQL queries", "Finds slow queries and adds the missing index."),
    ("chart-maker", "Make charts", "Draws bar and line charts from a table."),
    ("meeting-notes", "Meeting notes", "Summarizes a recording into decisions and tasks."),
]
QUERIES = [
    {"query_id": "q1", "query": "my slow database needs an index", "skill_id": "sql-tuning"},
    {"query_id": "q2", "query": "draw bar charts", "skill_ids": ["chart-maker", "pdf-forms"]},
    {"query_id": "q3", "query": "zzz", "qrels": {"meeting-notes": 2, "not-in-corpus": 0}},
]


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    rows = [
        {"skill_id": skill_id, "name": name, "description": description, "body": f"# {name}\n\nHow to do it well."}
        for skill_id, name, description in SKILLS
    ]
    return write_jsonl(tmp_path / "corpus.jsonl", rows)


@pytest.fixture
def bench_file(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "bench.jsonl", QUERIES)
