"""The data report says what the manifests and artifacts say."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import read_stage1
from data_pipeline.pipeline import ALL_STAGES, Pipeline, PipelineError, load_pipeline_config
from data_pipeline.rows import read_rows
from data_pipeline.sample_library import load_sample_corpus
from evaluation.data_report import teacher_usage, write_report


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages but the retriever-conditioned groups, on a few of the sample library's skills."""
    folder = tmp_path_factory.mktemp("report")
    load_sample_corpus().to_jsonl(folder / "library.jsonl")
    overrides = [
        f"out={folder / 'out'}",
        f"sources=[{folder / 'library.jsonl'}]",
        "select.target=60",
        "reranker.tasks=6",
    ]
    overrides += ["synthesis.max_skills=40", "bench.max_targets=15"]
    pipeline = Pipeline(ALL_STAGES, load_pipeline_config(None, overrides), folder / "out")
    pipeline.run(until=["isolation", "quality_audit", "task_audit"])
    return folder / "out"


@pytest.fixture(scope="module")
def page(out: Path) -> str:
    assert write_report(out) == out / "report.md"
    return (out / "report.md").read_text(encoding="utf-8")


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the table whose first heading this is."""
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def manifest(out: Path, stage: str) -> dict[str, Any]:
    return json.loads((out / stage / "manifest.json").read_text())


def test_every_stage_that_ran_stands_there_with_its_counts_and_rejections(out: Path, page: str) -> None:
    ran = [stage.name for stage in ALL_STAGES if (out / stage.name / "manifest.json").exists()]
    shown = {row[0]: row for row in table(page, "stage")}
    assert list(shown) == ran
    for name in ran:
        for column, key in ((1, "counts"), (2, "rejected")):
            cells = dict(item.rsplit(" ", 1) for item in shown[name][column].split(", ") if item)
            assert {k: int(v.replace(",", "")) for k, v in cells.items()} == manifest(out, name)[key] or "," in shown[
                name
            ][column]


def test_lengths_are_those_of_the_records(out: Path, page: str) -> None:
    words = [len(record.query.split()) for record in read_stage1(out / "records" / "stage1.jsonl")]
    expected = ["Stage I", str(len(words)), f"{sum(words) / len(words):.2f}", str(min(words)), str(max(words))]
    assert table(page, "words of")[0] == expected


def test_negatives_by_source_are_those_of_the_selected_records(out: Path, page: str) -> None:
    records = {r.record_id for r in read_stage1(out / "records" / "stage1.jsonl")}
    expected: Counter[str] = Counter()
    for _, row in read_rows(out / "mine" / "negatives.jsonl"):
        if row["record_id"] in records:
            expected.update(row["sources"])
    assert {name: int(n) for name, n in table(page, "negatives from")} == expected
    assert expected["skill_neighbours"] == 4 * len(records)


def test_rejections_are_those_of_the_manifests(out: Path, page: str) -> None:
    section = page.split("## Rejections")[1]
    shown = [(stage, reason, int(n.replace(",", ""))) for stage, reason, n in table(section, "stage")]
    expected = [
        (stage.name, reason, n)
        for stage in ALL_STAGES
        if (out / stage.name / "manifest.json").exists()
        for reason, n in manifest(out, stage.name)["rejected"].items()
    ]
    assert shown == expected
    assert expected


def test_every_plot_of_the_page_exists(out: Path, page: str) -> None:
    plots = re.findall(r"!\[[^]]*]\(([^)]+)\)", page)
    assert {Path(plot).stem for plot in plots} >= {
        "lengths",
        "categories",
        "negatives",
        "rejections",
        "scores",
        "seconds",
    }
    assert all((out / plot).read_bytes().startswith(b"\x89PNG") for plot in plots)


def test_the_time_is_the_sum_of_the_stages(out: Path, page: str) -> None:
    total = sum(manifest(out, s.name)["seconds"] for s in ALL_STAGES if (out / s.name / "manifest.json").exists())
    assert f"{total:,.1f} s in all stages" in page


def test_the_audit_table_and_the_warning_on_judges_are_there(page: str) -> None:
    assert "| audit_a |" in page
    assert "**Note:** judge_a, judge_b are all offline: their agreement is not independent" in page


def test_usage_is_listed_for_stages_with_one_teacher_and_with_two_judges() -> None:
    usage = {"calls": 3, "cost_usd": None}
    manifests = {
        "review": {"notes": {"teacher": "openai:m", "usage": usage}},
        "judge": {"notes": {"agreement": 1.0, "judge_a": {"teacher": "a", "usage": usage}, "warnings": []}},
        "mine": {"notes": {"quotas": {"same_category": 2}}},
    }
    assert list(teacher_usage(manifests)) == [("review", "", "openai:m", usage), ("judge", "judge_a", "a", usage)]


def test_names_from_the_library_change_no_table(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "corpus"
    folder.mkdir(parents=True)
    value = {"stage": "corpus", "artifacts": {}, "counts": {"skills": 1, "a|b\n<script>": 2}, "rejected": {}}
    (folder / "manifest.json").write_text(json.dumps({**value, "notes": {}, "seconds": 0.5}))
    page = write_report(tmp_path / "out").read_text()
    assert "a\\|b &lt;script> 2" in page
    assert "1 skills after cleaning" in page


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no stage has run here"):
        write_report(tmp_path)


def test_a_manifest_of_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "score").mkdir()
    (tmp_path / "score" / "manifest.json").write_text('{"artifacts": {}, "counts": {}, "seconds": 1.0}')
    with pytest.raises(PipelineError, match=r"score/manifest.json: rejected is no mapping: .*another version"):
        write_report(tmp_path)
