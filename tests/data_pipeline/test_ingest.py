"""From folders, files and datasets to a corpus file and its report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline import RecordError, SkillCorpus, ingest
from data_pipeline.cleaning import Reason
from data_pipeline.ingest import read_raw

BODY = (
    "Compare planned and actual spend for each cost centre, explain every variance above five percent, list follow-ups."
)


def skill_md(folder: Path, name: str = "x", body: str = BODY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "SKILL.md"
    file.write_text(f"---\nname: {name}\ndescription: Explains {name}\n---\n\n{body}\n")
    return file


def test_ids_are_paths_below_the_given_folder(tmp_path: Path) -> None:
    skill_md(tmp_path / "lib/finance/budget-variance")
    skill_md(tmp_path / "lib/.claude/skills/deep/er")
    outcome = ingest([str(tmp_path / "lib")], tmp_path / "c.jsonl", progress=False)
    corpus = SkillCorpus.from_jsonl(tmp_path / "c.jsonl")
    assert corpus.ids == [".claude/skills/deep/er", "finance/budget-variance"]
    assert corpus.get("finance/budget-variance").metadata == {"path": "finance/budget-variance/SKILL.md"}
    assert (outcome.collected, outcome.kept, outcome.dropped) == (2, 2, {})


def test_version_control_and_package_folders_are_no_skills(tmp_path: Path) -> None:
    skill_md(tmp_path / "lib/a")
    skill_md(tmp_path / "lib/node_modules/b")
    skill_md(tmp_path / "lib/.git/c")
    ingest([str(tmp_path / "lib")], tmp_path / "c.jsonl", progress=False)
    assert SkillCorpus.from_jsonl(tmp_path / "c.jsonl").ids == ["a"]


@pytest.mark.parametrize("given", ["lib/only", "lib/only/SKILL.md"])
def test_a_single_skill_is_named_by_its_folder(tmp_path: Path, given: str) -> None:
    skill_md(tmp_path / "lib/only")
    ingest([str(tmp_path / given)], tmp_path / "c.jsonl", progress=False)
    assert SkillCorpus.from_jsonl(tmp_path / "c.jsonl").ids == ["only"]


def test_one_id_in_two_paths_is_a_named_duplicate(tmp_path: Path) -> None:
    first = skill_md(tmp_path / "one/finance/budget", "first")
    second = skill_md(tmp_path / "two/finance/budget", "second")
    outcome = ingest([str(tmp_path / "one"), str(tmp_path / "two")], tmp_path / "c.jsonl", progress=False)
    assert SkillCorpus.from_jsonl(tmp_path / "c.jsonl")[0].name == "first"
    assert outcome.dropped == {"duplicate_id": 1}
    (record,) = outcome.records
    assert (record.skill_id, record.file, record.row) == ("finance/budget", str(second), None)
    assert str(first) in record.detail


def test_the_report_lists_every_dropped_record(tmp_path: Path) -> None:
    skill_md(tmp_path / "lib/good")
    skill_md(tmp_path / "lib/short", body="No.")
    bad = skill_md(tmp_path / "lib/yaml")
    bad.write_text("---\nname: a: b: c\n---\n" + BODY)
    ingest([str(tmp_path / "lib")], tmp_path / "c.jsonl", progress=False)
    report = json.loads((tmp_path / "c.jsonl.report.json").read_text())
    assert (report["collected"], report["kept"]) == (3, 1)
    assert report["dropped"] == {"too_short": 1, "malformed_frontmatter": 1}
    assert {(r["skill_id"], r["reason"], r["file"]) for r in report["records"]} == {
        ("short", "too_short", str(tmp_path / "lib/short/SKILL.md")),
        ("yaml", "malformed_frontmatter", str(bad)),
    }
    assert report["sources"] == {str(tmp_path / "lib"): 3}


def test_the_report_can_go_elsewhere(tmp_path: Path) -> None:
    skill_md(tmp_path / "lib/good")
    ingest([str(tmp_path / "lib")], tmp_path / "c.jsonl", tmp_path / "r.json", progress=False)
    assert (tmp_path / "r.json").exists()
    assert not (tmp_path / "c.jsonl.report.json").exists()


def test_bad_rows_of_a_corpus_file_are_dropped_by_row(tmp_path: Path) -> None:
    good = json.dumps({"id": 17, "name": "n", "description": "d", "content": BODY, "repo": "r"})
    path = tmp_path / "lib.jsonl"
    path.write_bytes(f"{good}\n{{broken\n[1]\n".encode() + b'{"skill_id": "\xff"}\n{"skill_id": "cut')
    outcome = ingest([str(path)], tmp_path / "c.jsonl", progress=False)
    (skill,) = SkillCorpus.from_jsonl(tmp_path / "c.jsonl")
    assert (skill.skill_id, skill.body, skill.metadata) == ("17", BODY, {"repo": "r"})
    assert [(r.row, r.reason) for r in outcome.records] == [
        (2, "malformed_record"),
        (3, "malformed_record"),
        (4, "unreadable"),
        (5, "malformed_record"),
    ]
    assert "truncated" in outcome.records[-1].detail


def test_a_truncated_archive_is_an_error_not_a_smaller_corpus(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [{"skill_id": str(i), "name": "n", "description": "d", "body": BODY + str(i * i)} for i in range(3000)]
    path = write_jsonl("lib.jsonl.gz", rows)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RecordError, match="truncated or damaged gzip"):
        ingest([str(path)], tmp_path / "c.jsonl", progress=False)
    assert not (tmp_path / "c.jsonl").exists()


def test_a_hub_dataset_is_read_by_name_and_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple[str, str]] = []

    def load(name: str, split: str) -> datasets.Dataset:
        asked.append((name, split))
        return datasets.Dataset.from_list(
            [
                {"skill_id": "a/x", "name": "x", "description": "d", "body": BODY, "repo": None},
                {"skill_id": "a/y", "name": None, "description": "d", "body": BODY, "repo": "r"},
            ]
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    outcome = ingest(["hf:owner/skills:test"], tmp_path / "c.jsonl", progress=False)
    ingest(["hf:owner/skills"], tmp_path / "c2.jsonl", progress=False)
    assert asked == [("owner/skills", "test"), ("owner/skills", "train")]
    assert SkillCorpus.from_jsonl(tmp_path / "c.jsonl").ids == ["a/x"]
    assert [(r.file, r.row, r.reason) for r in outcome.records] == [("hf:owner/skills:test", 2, "missing_name")]


@pytest.mark.parametrize(
    "path, error, problem",
    [
        ("nowhere", FileNotFoundError, "no such file or folder"),
        ("hf:owner", ValueError, "expected hf:owner/name"),
        ("empty", FileNotFoundError, "no SKILL.md in this folder"),
        ("notes.txt", ValueError, "unknown kind of source"),
    ],
)
def test_an_unusable_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, error: type[Exception], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(error, match=f"{path}: {problem}"):
        ingest([path], tmp_path / "c.jsonl", progress=False)


def test_nothing_left_to_keep_is_an_error_with_a_report(tmp_path: Path) -> None:
    skill_md(tmp_path / "lib/short", body="No.")
    with pytest.raises(ValueError, match="no skill left of 1 read"):
        ingest([str(tmp_path / "lib")], tmp_path / "c.jsonl", progress=False)
    assert not (tmp_path / "c.jsonl").exists()
    assert json.loads((tmp_path / "c.jsonl.report.json").read_text())["dropped"] == {"too_short": 1}


def test_a_pipe_or_device_in_a_library_is_dropped_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "SKILL.md").symlink_to("/dev/zero")
    found = {raw.skill_id: raw.problem for raw in read_raw(str(tmp_path))}
    assert found == dict.fromkeys(("device", "pipe"), (Reason.UNREADABLE, "cannot be read: no regular file"))
