"""``skillreason data …``: the commands end to end, their exit statuses, and errors in one line."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from data_pipeline import SkillCorpus
from data_pipeline.pipeline import review as review_module
from data_pipeline.rows import read_rows, write_rows
from data_pipeline.sample_library import load_sample_corpus
from skillreason.cli import app, main


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)], input=text)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Audited records of sixty sample skills by the command itself, and its overrides."""
    folder = tmp_path_factory.mktemp("built")
    skills = list(load_sample_corpus())
    SkillCorpus(skills[::2] + skills[1::8]).to_jsonl(folder / "library.jsonl")
    overrides = [f"out={folder / 'out'}", f"sources=[{folder / 'library.jsonl'}]", "synthesis.max_skills=30"]
    result = run("build", "-c", "data_library", *overrides)
    assert result.exit_code == 0, result.output
    assert "stages ran; artifacts are in" in result.output
    return folder / "out", overrides


def test_a_second_build_runs_nothing(built: tuple[Path, list[str]]) -> None:
    result = run("build", "-c", "data_library", *built[1])
    assert result.exit_code == 0
    assert "0 stages ran" in result.output


def test_status_tells_what_is_done_stale_and_missing(built: tuple[Path, list[str]]) -> None:
    result = run("status", "-c", "data_library", *built[1], "select.per_skill=1")
    states = {line.split()[0]: line.split()[1] for line in result.output.splitlines() if line.strip()}
    assert result.exit_code == 0
    assert (states["corpus"], states["review"], states["select"], states["bench"]) == (
        "done",
        "done",
        "stale",
        "missing",
    )
    assert "per_skill" in result.output


def test_report_names_its_page(built: tuple[Path, list[str]]) -> None:
    result = run("report", built[0])
    assert result.exit_code == 0
    assert Path(result.output.strip()) == built[0] / "report.md"


def test_a_wrong_key_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["data", "build", "out=x", "sources=[y]", "select.taget=3"])
    assert stopped.value.code == 1
    assert capsys.readouterr().err.count("\n") == 1


def copy_of_records(built: tuple[Path, list[str]], tmp_path: Path) -> Path:
    for name in ("stage1.jsonl", "stage2.jsonl", "exclusions.json"):
        (tmp_path / name).write_bytes((built[0] / "records" / name).read_bytes())
    return tmp_path


def test_the_audit_of_sound_records_exits_with_0(built: tuple[Path, list[str]], tmp_path: Path) -> None:
    corpus = built[0] / "corpus" / "corpus.jsonl.gz"
    result = run("audit", built[0] / "records", "--corpus", corpus, "--out", tmp_path / "audit.json")
    assert result.exit_code == 0
    assert set(json.loads((tmp_path / "audit.json").read_text())["found"].values()) == {0}


def test_the_audit_exits_with_1_for_a_single_finding_and_names_it(
    built: tuple[Path, list[str]], tmp_path: Path
) -> None:
    records = copy_of_records(built, tmp_path)
    rows = [row for _, row in read_rows(records / "stage1.jsonl")]
    rows[3]["negatives"][2] += " "
    write_rows(records / "stage1.jsonl", rows)
    result = run("audit", records, "--corpus", built[0] / "corpus" / "corpus.jsonl.gz")
    assert result.exit_code == 1
    assert f"'record_id': '{rows[3]['record_id']}'" in result.output
    assert [line.split()[1] for line in result.output.splitlines() if "id_text_mismatches " in line][:1] == ["1"]


def test_isolation_exits_with_1_for_a_copied_request_and_0_without(
    built: tuple[Path, list[str]], tmp_path: Path
) -> None:
    first = next(row for _, row in read_rows(built[0] / "records" / "stage1.jsonl"))
    leaked = {"query_id": "q1", "query": first["query"].upper() + " !!", "skill_id": first["positive_id"]}
    fresh = {"query_id": "q2", "query": "which wine goes with mushrooms in autumn", "skill_id": first["positive_id"]}
    for name, rows, status in (("clean", [fresh], 0), ("leaked", [leaked, fresh], 1)):
        write_rows(tmp_path / f"{name}.jsonl", rows)
        out = tmp_path / name
        result = run(
            "isolation", "--train", built[0] / "records", "--bench", f"b={tmp_path / name}.jsonl", "--out", out
        )
        assert result.exit_code == status, result.output
        assert f"| b | {len(rows)} | {status} |" in (out / "isolation.md").read_text()


def queue(tmp_path: Path) -> Path:
    rows = [{"query_id": f"b-{i}", "query": f"request {i}", "skill_id": "a/b", "judge_a": None} for i in range(3)]
    write_rows(tmp_path / "queue.jsonl", rows)
    return tmp_path / "queue.jsonl"


def test_review_takes_answers_from_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review_module, "is_interactive", lambda: True)
    arguments = ("review", queue(tmp_path), "--decisions", tmp_path / "d.jsonl", "--reviewer", "ada")
    result = run(*arguments, text="k\nr\nq\n")
    assert result.exit_code == 0, result.output
    assert "kept 1, rejected 1; 1 without a decision" in result.output
    assert "kept 1, rejected 0; 0 without a decision" in run(*arguments, text="k\n").output
    rows = [row for _, row in read_rows(tmp_path / "d.jsonl")]
    assert [(row["query_id"], row["keep"], row["reviewer"]) for row in rows] == [
        ("b-0", True, "ada"),
        ("b-1", False, "ada"),
        ("b-2", True, "ada"),
    ]


def test_review_without_a_terminal_is_refused(tmp_path: Path) -> None:
    result = run("review", queue(tmp_path), "--decisions", tmp_path / "d.jsonl", text="k\n")
    assert result.exit_code == 1
    assert "standard input is no terminal" in str(result.exception)


def test_alternatives_reads_what_evaluate_writes(tmp_path: Path) -> None:
    corpus = list(load_sample_corpus())[:12]
    SkillCorpus(corpus).to_jsonl(tmp_path / "corpus.jsonl")
    bench = [{"query_id": f"q{i}", "query": s.description, "skill_id": s.skill_id} for i, s in enumerate(corpus[:3])]
    write_rows(tmp_path / "bench.jsonl", bench)
    files = ("--bench", str(tmp_path / "bench.jsonl"), "--corpus", str(tmp_path / "corpus.jsonl"))
    evaluated = CliRunner().invoke(app, ["evaluate", "--model", "bm25", *files, "--out", str(tmp_path / "bm25.json")])
    assert evaluated.exit_code == 0, evaluated.output
    out = tmp_path / "out" / "alternatives.jsonl"
    result = run("alternatives", *files, "--results", tmp_path / "bm25.json", "--out", out, "kind=offline")
    assert result.exit_code == 0, result.output
    rows = [row for _, row in read_rows(out)]
    assert f"{len(rows)} non-target predictions, {len(rows)} different" in result.output
    assert {row["retrievers"][0] for row in rows} == {"bm25"}
    assert not {(row["query_id"], row["skill_id"]) for row in rows} & {(b["query_id"], b["skill_id"]) for b in bench}


def test_alternatives_refuses_a_teacher_that_cannot_work(tmp_path: Path) -> None:
    files = ("--bench", "b.jsonl", "--corpus", "c.jsonl", "--results", "r.json", "--out", tmp_path / "o.jsonl")
    result = run("alternatives", *files, "kind=openai")
    assert result.exit_code == 1
    assert "teacher.model is ''" in str(result.exception)


def test_the_client_of_a_teacher_writes_no_line_for_every_call(tmp_path: Path) -> None:
    import httpx2  # what the SDKs ask with

    logging.getLogger(httpx2.__name__).setLevel(logging.NOTSET)
    with pytest.raises(SystemExit):
        main(["data", "report", str(tmp_path)])
    assert logging.getLogger(httpx2.__name__).level == logging.WARNING


def test_a_forced_stage_is_run_with_the_default_targets(built: tuple[Path, list[str]]) -> None:
    result = run("build", "-c", "data_library", *built[1], "--force", "screen")
    assert "1 stages ran" in result.output
    assert (built[0] / "screen" / "targets.jsonl").is_file()
