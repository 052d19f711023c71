"""When a stage of a pipeline runs, what it leaves behind, and what makes it run again."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from data_pipeline.pipeline import Pipeline, PipelineError, Stage, StageContext, StageReport


@dataclass
class WordsConfig:
    suffix: str = "!"
    limit: int = 10


@dataclass
class Config:
    source: str = ""
    words: WordsConfig = field(default_factory=WordsConfig)
    unrelated: int = 0


def read(context: StageContext) -> StageReport:
    text = Path(context.config.source).read_text()
    (context.out / "words.txt").write_text("\n".join(sorted(text.split())))
    return StageReport(counts={"words": len(text.split())}, rejected={"empty": 0, "long": 1})


def mark(context: StageContext) -> StageReport:
    words = (context.inputs["read"] / "words.txt").read_text().split("\n")
    (context.out / "marked.txt").write_text("\n".join(w + context.config.words.suffix for w in words))
    return StageReport()


def count(context: StageContext) -> StageReport:
    (context.out / "count.txt").write_text(str(len((context.inputs["mark"] / "marked.txt").read_text().split("\n"))))
    return StageReport()


STAGES = (
    Stage("read", read, keys=("source",), files=("source",)),
    Stage("mark", mark, needs=("read",), keys=("words.suffix",)),
    Stage("count", count, needs=("mark",)),
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "source.txt").write_text("pear apple fig")
    return Config(source=str(tmp_path / "source.txt"))


def build(config: Config, tmp_path: Path, stages: tuple[Stage, ...] = STAGES) -> Pipeline:
    return Pipeline(stages, config, tmp_path / "out")


def test_a_second_run_does_nothing(config: Config, tmp_path: Path) -> None:
    assert build(config, tmp_path).run() == ["read", "mark", "count"]
    assert build(config, tmp_path).run() == []
    assert (tmp_path / "out" / "count" / "count.txt").read_text() == "3"


def test_a_changed_key_reruns_the_stage_that_reads_it_and_only_those_whose_inputs_changed(
    config: Config, tmp_path: Path
) -> None:
    build(config, tmp_path).run()
    config.words.suffix = "?"
    assert [(s.name, s.state) for s in build(config, tmp_path).status()][1] == ("mark", "stale")
    assert build(config, tmp_path).run() == ["mark", "count"]


def test_equal_artifacts_leave_later_stages_up_to_date(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    Path(config.source).write_text("fig  pear\napple")  # other bytes, the same sorted words
    assert build(config, tmp_path).run() == ["read"]


def test_a_key_that_no_stage_reads_changes_nothing(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    config.unrelated, config.words.limit = 5, 3
    assert build(config, tmp_path).run() == []


def test_a_moved_source_with_the_same_content_changes_nothing(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    config.source = str(Path(config.source).rename(tmp_path / "moved.txt"))
    assert build(config, tmp_path).run() == []


def test_a_new_version_of_the_code_reruns_the_stage(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    newer = (STAGES[0], Stage("mark", mark, needs=("read",), keys=("words.suffix",), version=2), STAGES[2])
    assert build(config, tmp_path, newer).run() == ["mark"]


def test_an_artifact_that_was_edited_or_removed_is_made_anew(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    (tmp_path / "out" / "mark" / "marked.txt").write_text("something else")
    assert [s.state for s in build(config, tmp_path).status()] == ["done", "stale", "done"]
    assert build(config, tmp_path).run() == ["mark"]


def test_only_what_is_asked_for_and_what_it_needs_runs(config: Config, tmp_path: Path) -> None:
    assert build(config, tmp_path).run(until=["mark"]) == ["read", "mark"]
    assert [s.state for s in build(config, tmp_path).status()] == ["done", "done", "missing"]


def test_a_forced_stage_runs_though_it_is_up_to_date(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    assert build(config, tmp_path).run(force=["mark"]) == ["mark"]


def test_the_manifest_tells_counts_and_the_rejections_that_occurred(config: Config, tmp_path: Path) -> None:
    pipeline = build(config, tmp_path)
    pipeline.run()
    manifest = json.loads((tmp_path / "out" / "read" / "manifest.json").read_text())
    assert manifest["counts"] == {"words": 3}
    assert manifest["rejected"] == {"long": 1}
    assert list(manifest["artifacts"]) == ["words.txt"]
    assert pipeline.manifest("mark")["config"] == {"words.suffix": "!"}


def test_a_stage_that_fails_leaves_nothing_and_keeps_what_was_there(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()

    def fail(context: StageContext) -> StageReport:
        (context.out / "marked.txt").write_text("half")
        raise RuntimeError("the disk is full")

    broken = (STAGES[0], Stage("mark", fail, needs=("read",), keys=("words.suffix",), version=3), STAGES[2])
    with pytest.raises(RuntimeError, match="the disk is full"):
        build(config, tmp_path, broken).run()
    assert (tmp_path / "out" / "mark" / "marked.txt").read_text() == "apple!\nfig!\npear!"
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.endswith(".tmp")]


def test_a_killed_run_goes_on_where_it_was(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run(until=["read"])
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
from pathlib import Path
from data_pipeline.pipeline import Pipeline, Stage, StageReport

def die(context):
    (context.out / "marked.txt").write_text("half")
    (context.state / "paid.txt").write_text("kept")
    os.kill(os.getpid(), 9)

def read(context):
    raise AssertionError("read is up to date")

class Config: source = {config.source!r}
stages = [Stage("read", read, keys=("source",), files=("source",)), Stage("mark", die, needs=("read",))]
Pipeline(stages, Config, {str(tmp_path / "out")!r}).run()
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9

    def resume(context: StageContext) -> StageReport:
        assert (context.state / "paid.txt").read_text() == "kept"
        return mark(context)

    stages = (STAGES[0], Stage("mark", resume, needs=("read",), keys=("words.suffix",)), STAGES[2])
    assert build(config, tmp_path, stages).run() == ["mark", "count"]
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.endswith(".tmp")]


def test_a_second_process_in_the_same_folder_is_refused(config: Config, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(context: StageContext) -> StageReport:
        with pytest.raises(PipelineError, match="another process") as error:
            build(config, tmp_path).run()
        refused.append(str(error.value))
        return StageReport()

    build(config, tmp_path, (Stage("second", second),)).run()
    assert len(refused) == 1


def test_an_unknown_stage_a_missing_file_and_a_circle_are_refused_by_name(config: Config, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"no stage 'raed'; expected one of read, mark, count"):
        build(config, tmp_path).run(until=["raed"])
    with pytest.raises(PipelineError, match="mark needs read, which does not come before it"):
        build(config, tmp_path, (STAGES[1], STAGES[0]))
    config.source = str(tmp_path / "nowhere.txt")
    with pytest.raises(PipelineError, match=r"source: .*nowhere.txt: no such file"):
        build(config, tmp_path).run()


def test_a_manifest_that_is_not_json_is_named(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    (tmp_path / "out" / "read" / "manifest.json").write_text("{")
    with pytest.raises(PipelineError, match=r"read/manifest.json: not JSON"):
        build(config, tmp_path).run()


def test_status_shows_an_input_file_that_is_gone_and_goes_on(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    Path(config.source).unlink()
    first, *others = build(config, tmp_path).status()
    assert (first.state, [s.state for s in others]) == ("stale", ["done", "done"])
    assert first.why == f"source: {config.source}: no such file or folder"


def test_what_no_stage_has_written_is_never_replaced(config: Config, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "mark" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("my own")
    with pytest.raises(PipelineError, match=r"mark: in the way, and without the manifest of a stage"):
        build(config, tmp_path).run()
    assert mine.read_text() == "my own"
    assert not (tmp_path / "out" / "read").exists()  # found before any stage ran


@pytest.mark.parametrize(
    "text", ["[]", '{"records": 3}', '{"artifacts": {}, "counts": {}, "rejected": {}, "seconds": 1.0}']
)
def test_a_folder_with_a_manifest_of_another_kind_is_not_replaced(config: Config, tmp_path: Path, text: str) -> None:
    manifest = tmp_path / "out" / "read" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(text)
    with pytest.raises(PipelineError, match=r"read/manifest.json: \w+ is no mapping: not a stage's manifest"):
        build(config, tmp_path).run()
    assert manifest.read_text() == text


def test_an_empty_folder_is_not_in_the_way(config: Config, tmp_path: Path) -> None:
    (tmp_path / "out" / "read").mkdir(parents=True)
    assert build(config, tmp_path).run() == ["read", "mark", "count"]


def test_a_forced_stage_runs_though_nothing_wanted_leads_to_it(config: Config, tmp_path: Path) -> None:
    build(config, tmp_path).run()
    assert build(config, tmp_path).run(until=["read"], force=["count"]) == ["count"]
