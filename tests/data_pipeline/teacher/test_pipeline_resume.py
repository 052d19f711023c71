"""A pipeline that is killed while a model answers: the next run asks for nothing that it has, and ends the same."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import SkillCorpus
from data_pipeline.pipeline import Pipeline, PipelineConfig, PipelineError, load_pipeline_config
from data_pipeline.pipeline.training import TRAINING_STAGES
from data_pipeline.rows import read_rows
from data_pipeline.sample_library import load_sample_corpus

ROOT = Path(__file__).resolve().parents[3]
COMMAND = "import sys; from skillreason.cli import main; main(sys.argv[1:])"
STORED_AT_KILL = 9

pytestmark = pytest.mark.parametrize("kind", ["openai"], indirect=True)


def reply(prompt: str) -> str:
    """A model's answer to synthesis and review, different for every prompt."""
    mark = re.findall(r"[0-9a-f]{24}", prompt)[0]
    if prompt.rstrip().endswith("Review the request above."):
        return json.dumps({"keep": True, "issue_type": "good", "reason": "-"})
    return json.dumps({"queries": [f"request {i} of {mark} that has words enough to be kept" for i in (1, 2, 3)]})


@pytest.fixture
def overrides(endpoint: Any, kind: str, tmp_path: Path) -> list[str]:
    skills = list(load_sample_corpus())
    SkillCorpus(skills[:60]).to_jsonl(tmp_path / "library.jsonl")
    endpoint.answer = reply
    return [
        f"out={tmp_path / 'out'}",
        f"sources=[{tmp_path / 'library.jsonl'}]",
        "synthesis.max_skills=20",
        f"teachers.default.kind={kind}",
        "teachers.default.model=m",
        f"teachers.default.base_url={endpoint.base_url(kind)}",
        "teachers.default.concurrency=3",
        "teachers.default.backoff_s=0.01",
        "teachers.default.max_retries=1",
    ]


@pytest.fixture
def start(overrides: list[str]) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", COMMAND, "data", "build", "--until", "review", *overrides]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, **pipes, cwd=ROOT))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def stored(out: Path) -> int:
    file = out / ".teacher" / "answers.sqlite3"
    if not file.exists():
        return 0
    with sqlite3.connect(file, timeout=30) as database:
        known = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'answers'").fetchone()[0]
        return database.execute("SELECT count(*) FROM answers").fetchone()[0] if known else 0


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_killed_build_repeats_no_call_and_ends_as_if_nothing_had_happened(
    endpoint: Any, start: Callable[[], subprocess.Popen[str]], overrides: list[str], tmp_path: Path
) -> None:
    def slow(prompt: str) -> str:
        with endpoint.lock:
            if sum(endpoint.paid.values()) >= STORED_AT_KILL:
                endpoint.gate.clear()  # whatever comes later waits, and dies with its process
        return reply(prompt)

    endpoint.answer = slow
    first = start()
    # Answers that had left before the gate closed are stored too; then nothing moves any more.
    wait_until(lambda: stored(tmp_path / "out") >= max(STORED_AT_KILL, len(endpoint.paid)), first)
    time.sleep(0.3)
    wait_until(lambda: stored(tmp_path / "out") >= len(endpoint.paid), first)
    first.kill()
    first.wait()
    assert not (tmp_path / "out" / "synthesize").exists()
    kept, paid = stored(tmp_path / "out"), set(endpoint.paid)
    endpoint.answer = reply
    arrived = len(endpoint.requests)
    endpoint.gate.set()
    end = time.monotonic() + 30
    while sum(endpoint.paid.values()) < arrived and time.monotonic() < end:
        time.sleep(0.01)  # the dead process's requests are answered into the void; they are not the second run's
    endpoint.paid.clear()

    second = start()
    out, _ = second.communicate(timeout=240)
    assert second.returncode == 0, out
    synthesis = [prompt for prompt in endpoint.paid if not prompt.rstrip().endswith("Review the request above.")]
    assert not set(synthesis) & paid
    assert set(endpoint.paid.values()) == {1}
    assert len(synthesis) == 20 - kept
    made = [row for _, row in read_rows(tmp_path / "out" / "synthesize" / "requests.jsonl")]
    assert len(made) == 60
    assert {row["teacher"] for row in made} == {"openai:m"}
    usage = json.loads((tmp_path / "out" / "synthesize" / "manifest.json").read_text())["notes"]["usage"]
    assert (usage["calls"], usage["cached"]) == (20 - kept, kept)

    endpoint.paid.clear()
    third = start()
    out, _ = third.communicate(timeout=240)
    assert (third.returncode, dict(endpoint.paid)) == (0, {}), out


def test_an_endpoint_that_refuses_ends_the_build_with_a_message(
    endpoint: Any, overrides: list[str], fault: Any
) -> None:
    endpoint.faults.extend([fault.status(401)] * 50)
    config: PipelineConfig = load_pipeline_config(None, overrides)
    pipeline = Pipeline(TRAINING_STAGES, config, config.out)
    with pytest.raises(PipelineError, match=r"^teachers\.synthesis: "):
        pipeline.run(until=["synthesize"])
    assert not pipeline.folder("synthesize").exists()
