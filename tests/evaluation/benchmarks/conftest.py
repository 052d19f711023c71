"""Look-alike folders of every benchmark layout, with a few skills and requests of our own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]


def write_rows(path: Path, rows: Rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def write_value(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


NAMES = {"frost": "Frost alert", "drip": "Drip timer", "slug": "Slug diary", "vents": "Greenhouse vents"}


@pytest.fixture
def skillret_folder(tmp_path: Path) -> Path:
    """Four skills, three requests (one with two targets), the layout below ``data/``."""
    root = tmp_path / "SKILLRET" / "data"
    skills = [
        {"id": f"id-{key}", "name": name, "description": f"{name} for a garden.", "major": "Garden", "stars": 3}
        | ({"body": f"# {name}"} if key != "vents" else {"body": None, "skill_md": f"---\nname: {key}\n---"})
        for key, name in NAMES.items()
    ]
    queries = [
        {"id": "t1", "query": "Warn me before a cold night.", "skill_ids": ["id-frost"], "k": 1},
        {"id": "t2", "query": "Water and air the greenhouse.", "skill_ids": ["id-drip", "id-vents"], "k": 2},
        {"id": "t3", "query": "Who eats the lettuce?", "skill_ids": ["id-slug"], "k": 1},
    ]
    qrels = [
        {"query_id": q["id"], "skill_id": skill_id, "relevance": 1} for q in queries for skill_id in q["skill_ids"]
    ]
    for subset, rows in (("skills", skills), ("queries", queries), ("qrels", qrels)):
        write_rows(root / subset / "test.jsonl", rows)
    return tmp_path / "SKILLRET"


@pytest.fixture
def sra_folder(tmp_path: Path) -> Path:
    """Two of the six suites over five skills, one of them without a name."""
    root = tmp_path / "SRA-Bench"
    corpus = [
        {
            "skill_id": "theoremqa_0",
            "name": "Mean value",
            "description": "A theorem.",
            "content": "Use it.",
            "tools": [],
        },
        {"skill_id": "champ_0", "name": "Pigeons", "description": "", "content": "More pigeons than holes."},
        {"skill_id": "champ_1", "name": "Parity", "description": "Odd and even.", "content": "Count."},
        {"skill_id": "web_0", "name": "", "description": "Something from the web.", "content": "Hello."},
        {"skill_id": "web_1", "name": "Other", "description": "Else.", "content": ""},
    ]
    write_value(root / "corpus" / "corpus.json", corpus)
    write_value(
        root / "instances" / "champ.json",
        [
            instance("champ_00000", "Are two socks equal?", ["champ_0", "champ_1"]),
            instance("champ_00001", "Is the sum odd?", ["champ_1"]),
        ],
    )
    write_value(
        root / "instances" / "theoremqa.json", [instance("theoremqa_00000", "Where is f' zero?", ["theoremqa_0"])]
    )
    return root


def instance(instance_id: str, question: str, skills: list[str]) -> dict[str, Any]:
    return {
        "instance_id": instance_id,
        "dataset": instance_id.split("_")[0],
        "question": question,
        "skill_annotations": skills,
        "eval_data": {"answer": "yes"},
    }


@pytest.fixture
def skillbench_folder(tmp_path: Path) -> Path:
    """Three scored tasks and a generic one; two shards in the easy pool, one in the hard pool."""
    root = tmp_path / "eval_core"

    def skill(skill_id: str) -> dict[str, str]:
        return {"skill_id": skill_id, "name": skill_id.split("/")[1], "description": "d", "body": "b"}

    easy = [skill(i) for i in ("gt/solder", "gt/resin", "gt/pdf", "degraded/solder_1", "web/noise")]
    write_rows(root / "easy" / "part-00000.jsonl.gz", easy[:2])
    write_rows(root / "easy" / "part-00001.jsonl.gz", easy[2:])
    write_rows(root / "hard" / "part-00000.jsonl.gz", [*easy[:1], *easy[3:], skill("hard/almost")])
    write_rows(
        root / "tasks.jsonl",
        [
            {"task_id": "fix-radio", "instruction_text": "The radio hums.", "domain": "electronics", "num_skills": 1},
            {"task_id": "cast-frame", "instruction_text": "Cast and fit a frame.", "domain": "craft", "num_skills": 3},
            {"task_id": "print-form", "instruction_text": "Print a form.", "domain": "office", "num_skills": 1},
        ],
    )
    write_value(
        root / "relevance.json",
        {
            "fix-radio": relevance(["gt/solder"], {"gt/solder": 3, "degraded/solder_1": 1}),
            "cast-frame": relevance(
                ["gt/solder", "gt/resin"],
                {"gt/solder": 3, "gt/resin": 3, "gt/pdf": 3, "degraded/solder_1": 1, "degraded/resin_2": 1},
            ),
            "print-form": {
                "gt_skill_ids": ["gt/pdf"],
                "relevance": {"gt/pdf": 3},
                "core_gt_ids": [],
                "auxiliary_gt_ids": ["gt/pdf"],
                "task_type": "generic_only",
            },
        },
    )
    return root


def relevance(core: list[str], grades: dict[str, int]) -> dict[str, Any]:
    golds = [skill_id for skill_id, grade in grades.items() if grade == 3]
    others = [skill_id for skill_id in golds if skill_id not in core]
    return {
        "gt_skill_ids": golds,
        "relevance": grades,
        "core_gt_ids": core,
        "auxiliary_gt_ids": others,
        "task_type": "mixed" if others else "clean",
    }


@pytest.fixture
def beir_folder(tmp_path: Path) -> Path:
    """Three documents, three queries of which one belongs to another split, graded qrels."""
    root = tmp_path / "tiny-beir"
    corpus = [{"_id": i, "title": f"Title {i}", "text": f"Text of {i}.", "metadata": {}} for i in ("d1", "d2", "d3")]
    queries = [{"_id": q, "text": f"Question {q}?", "metadata": {}} for q in ("q1", "q2", "train1")]
    write_rows(root / "corpus.jsonl", corpus)
    write_rows(root / "queries.jsonl", queries)
    (root / "qrels").mkdir()
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\nq2\td3\t1\nq2\td1\t0\n")
    return root


@pytest.fixture
def skillreason_folder(tmp_path: Path) -> Path:
    """Three skills and two requests with one target each."""
    root = tmp_path / "skillreason"
    skills = [
        {"skill_id": f"garden/{key}", "name": name, "description": f"{name}.", "document": f"# {name}"}
        for key, name in NAMES.items()
    ]
    write_rows(root / "corpus.jsonl", skills)
    write_rows(
        root / "queries.jsonl",
        [
            {
                "query_id": "s1",
                "query": "Save the seedlings tonight.",
                "target_skill_id": "garden/frost",
                "domain": "home",
            },
            {
                "query_id": "s2",
                "query": "Holes in every leaf again.",
                "target_skill_id": "garden/slug",
                "domain": "home",
            },
        ],
    )
    return root


@pytest.fixture
def change() -> Callable[[Path, Callable[[Rows], Any]], None]:
    """``change(file, edit)``: rewrite a JSONL file with ``edit`` applied to its rows."""

    def apply(path: Path, edit: Callable[[Rows], Any]) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        edit(rows)
        write_rows(path, rows)

    return apply
