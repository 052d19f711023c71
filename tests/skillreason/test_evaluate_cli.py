"""``evaluate`` on a benchmark folder, ``compare`` and ``rescore``, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skillreason.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A benchmark in the layout of SRA-Bench with two suites."""
    root = tmp_path / "sra"
    corpus = [
        {"skill_id": f"s{i}", "name": name, "description": f"{name} for the garden.", "content": "Do it."}
        for i, name in enumerate(["Frost alert", "Drip timer", "Slug diary", "Greenhouse vents"])
    ]
    suites = {
        "champ": [("c1", "frost tonight, and the drip timer", ["s0", "s1"]), ("c2", "slug holes in leaves", ["s2"])],
        "toolqa": [("t1", "let some air in at noon", ["s3"])],
    }
    for name, value in {
        "corpus/corpus": corpus,
        **{
            f"instances/{suite}": [
                {"instance_id": i, "dataset": suite, "question": q, "skill_annotations": s} for i, q, s in rows
            ]
            for suite, rows in suites.items()
        },
    }.items():
        (root / f"{name}.json").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.json").write_text(json.dumps(value))
    return root


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_a_benchmark_folder_needs_no_corpus_and_prints_suites_slices_and_what_differs(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, folder: Path, tmp_path: Path
):
    out, plot = tmp_path / "out.json", tmp_path / "slices.png"
    code, output, _ = run(capsys, "evaluate", "--model", "bm25", "--bench", folder, "--out", out, "--plot", plot)
    assert code == 0
    written = json.loads(out.read_text())
    assert written["benchmark"]["name"] == "sra-bench"
    low, high = written["intervals"]["metrics"]["recall@10"]
    assert f"recall@10      {written['metrics']['recall@10']:.4f}  [{low:.4f}, {high:.4f}]" in output
    assert [line.split("|")[1].strip() for line in output.splitlines() if line.startswith("|")][:5] == [
        *("Suite", "-" * 13, "toolqa", "champ", "macro average"),
    ]
    assert "| By length" in output
    assert "| By overlap" in output
    assert any("expected 5,400 queries (Table 1), found 3" in message for message in caplog.messages)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_suite_is_evaluated_with_split(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path):
    out = tmp_path / "out.json"
    assert run(capsys, "evaluate", "--model", "bm25", "--bench", folder, "--split", "toolqa", "--out", out)[0] == 0
    assert json.loads(out.read_text())["n_queries"] == 1


def test_a_benchmark_is_counted_and_written_without_evaluating(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, folder: Path, tmp_path: Path
):
    code, output, _ = run(capsys, "benchmark", folder, "--out", tmp_path / "ours")
    assert code == 0
    assert output.startswith("sra-bench: 3 requests, 4 skills")
    assert [line.split() for line in output.splitlines()[1:3]] == [["toolqa", "1"], ["champ", "2"]]
    assert any("expected 26,262 skills" in message for message in caplog.messages)
    arguments = ("--corpus", tmp_path / "ours" / "corpus.jsonl.gz", "--bench", tmp_path / "ours" / "bench.jsonl")
    assert run(capsys, "evaluate", "--model", "bm25", *arguments, "--out", tmp_path / "o.json")[0] == 0


def test_two_results_are_compared_in_a_table_a_file_and_a_plot(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
):
    first, second, out = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    assert run(capsys, "evaluate", "--model", "bm25", "--bench", folder, "--out", first)[0] == 0
    value = json.loads(first.read_text())
    for row in value["queries"]:
        row["ids"] = row["ids"][::-1]
    second.write_text(json.dumps(value | {"model": "upside-down"}))
    arguments = ("--metric", "recall@1", "--metric", "mrr", "--out", out, "--plot", tmp_path / "c.png")
    code, output, _ = run(capsys, "compare", first, second, *arguments)
    assert code == 0
    assert output.startswith("A: bm25, B: upside-down; 3 queries")
    assert list(json.loads(out.read_text())["metrics"]) == ["recall@1", "mrr"]
    assert (tmp_path / "c.png").is_file()


def test_alternatives_are_credited_at_evaluation_and_afterwards(
    capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path
):
    decisions = tmp_path / "alternatives.jsonl"
    row = {"query_id": "t1", "target_id": "s3", "decision": "positive", "reason": "", "retrievers": [], "teacher": "x"}
    decisions.write_text("".join(json.dumps(row | {"skill_id": skill_id}) + "\n" for skill_id in ("s0", "s1", "s2")))
    result = tmp_path / "out.json"
    arguments = ("--model", "bm25", "--bench", folder, "--out", result)
    code, output, _ = run(capsys, "evaluate", *arguments, "--alternatives", decisions)
    assert code == 0
    assert "Expanded R@5" in output
    at_once = json.loads(result.read_text())["alternatives"]
    code, output, _ = run(capsys, "rescore", result, "--alternatives", decisions, "--out", tmp_path / "r.json")
    assert code == 0
    assert json.loads((tmp_path / "r.json").read_text()) == {"bm25": at_once}
    # All four skills are listed: those that are no target of c1 (2) and c2 (3) were judged by nobody.
    assert "bm25: 3 validated alternatives listed, 5 skills that nobody judged" in output


def test_what_is_wrong_is_one_line(capsys: pytest.CaptureFixture[str], folder: Path, tmp_path: Path):
    code, _, error = run(capsys, "evaluate", "--model", "bm25", "--bench", "skilret", "--out", tmp_path / "o.json")
    assert (code, error.strip().splitlines()[-1].startswith("error: no benchmark 'skilret'")) == (1, True)
    code, _, error = run(capsys, "compare", folder / "corpus" / "corpus.json", "no.json")
    assert code == 1
    assert "not a result of skillreason evaluate" in error
