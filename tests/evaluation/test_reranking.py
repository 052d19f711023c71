"""``evaluate`` and ``search`` with a reranker after the retriever, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus import Skill, SkillCorpus
from evaluation import evaluate, search
from models.reranker import Reranker, export_reranker
from models.reranker_format import RerankerFormat
from skillreason.cli import main

FORM = RerankerFormat(yes="y", no="n", body_chars=20, max_length=600)
WORDS = (
    "bars",
    "lines",
    "fields",
    "tables",
    "queries",
    "minutes",
    "routes",
    "budgets",
    "captions",
    "lessons",
    "clauses",
    "x",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """``corpus.jsonl`` of twelve skills that share the word draw, ``bench.jsonl``, and ``run/export``, a reranker."""
    folder = tmp_path_factory.mktemp("reranking")
    skills = [Skill(f"s{n}", word, f"draw {word} " * (n + 1), f"Draw {word}. " * 9) for n, word in enumerate(WORDS)]
    SkillCorpus(skills).to_jsonl(folder / "corpus.jsonl")
    bench = [{"query_id": f"q{n}", "query": f"draw {w} for me", "skill_id": f"s{n}"} for n, w in enumerate(WORDS[:3])]
    (folder / "bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bench))
    export_reranker(Reranker.load(tiny_folder, form=FORM), FORM, folder / "run" / "export")
    return folder


def expected_order(folder: Path, query: str, ids: list[str], depth: int) -> list[str]:
    """The first ``depth`` ids by scores of pairs that are computed one at a time, then the others."""
    corpus, reranker = SkillCorpus.from_jsonl(folder / "corpus.jsonl"), Reranker.load(folder / "run" / "export")
    texts = [f"{s.name} | {s.description[:300]} | {s.body[:20]}" for s in map(corpus.get, ids[:depth])]
    scores = np.array([reranker.score(query, [text], share_prefix=False)[0] for text in texts])
    return [ids[i] for i in np.argsort(-scores, kind="stable")] + ids[depth:]


def test_evaluate_reranks_the_first_results_of_each_request(folder: Path):
    arguments = ("bm25", folder / "corpus.jsonl", folder / "bench.jsonl")
    before, after = evaluate(*arguments), evaluate(*arguments, rerank=folder / "run", rerank_depth=5)
    assert after["rerank"] == {"model": str(folder / "run"), "depth": 5}
    assert "rerank" not in before
    changed = 0
    for row, other in zip(before["queries"], after["queries"], strict=True):
        query = f"draw {WORDS[int(row['query_id'][1:])]} for me"
        assert other["ids"] == expected_order(folder, query, row["ids"], 5)
        changed += other["ids"] != row["ids"]
    assert changed  # or nothing was tested
    firsts = [row["ids"][0] == f"s{n}" for n, row in enumerate(after["queries"])]
    assert after["metrics"]["recall@1"] == pytest.approx(np.mean(firsts))


def test_search_reranks(folder: Path):
    query = "draw fields for me"
    found = [hit.skill_id for hit in search("bm25", folder / "corpus.jsonl", query, 12)]
    reranked = search("bm25", folder / "corpus.jsonl", query, 3, rerank=folder / "run" / "export", rerank_depth=12)
    assert [hit.skill_id for hit in reranked] == expected_order(folder, query, found, 12)[:3]
    assert reranked[0].score >= reranked[1].score


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_the_command_line_reranks(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = ("--model", "bm25", "--corpus", folder / "corpus.jsonl")
    out = tmp_path / "out.json"
    more = ("--bench", folder / "bench.jsonl", "--out", out, "--rerank", folder / "run", "--rerank-depth", "4")
    assert run(capsys, "evaluate", *files, *more)[0] == 0
    expected = evaluate("bm25", folder / "corpus.jsonl", folder / "bench.jsonl", rerank=folder / "run", rerank_depth=4)
    assert json.loads(out.read_text())["metrics"] == pytest.approx(expected["metrics"])
    code, output, _ = run(capsys, "search", "draw fields for me", *files, "--rerank", folder / "run", "--k", "2")
    assert code == 0
    hits = search("bm25", folder / "corpus.jsonl", "draw fields for me", 2, rerank=folder / "run")
    assert [line.split()[2] for line in output.splitlines()[::2]] == [hit.skill_id for hit in hits]


@pytest.mark.parametrize(
    ("reranker", "depth", "message"),
    [
        ("no/such/folder", "20", "no config.json; expected a Hugging Face model folder or a hub id"),
        ("{run}", "0", "rerank depth is 0; expected a positive number"),
    ],
)
def test_what_cannot_rerank_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], reranker: str, depth: str, message: str
):
    options = ("--rerank", reranker.format(run=folder / "run"), "--rerank-depth", depth)
    code, _, errors = run(capsys, "search", "draw", "--model", "bm25", "--corpus", folder / "corpus.jsonl", *options)
    assert code == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert message in line
