"""Rationales of requests: written by a policy, asked of a teacher, read from a file, and kept for the next run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.records import BenchQuery
from data_pipeline.teacher import TeacherConfig
from evaluation.rationale_writers import causal_lm_of
from evaluation.rationales import Augment, collect_rationales

QUERIES = [BenchQuery("q1", "draw bar charts", {"a": 1}), BenchQuery("q2", "plan a budget", {"b": 1})]
SELF = Augment("self", max_tokens=6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A run's export as far as writing is concerned: an encoder's folder with ``causal_lm/`` in it."""
    folder = tmp_path_factory.mktemp("run") / "export"
    folder.mkdir()
    (folder / "modules.json").write_text("[]")
    shutil.copytree(tiny_folder, folder / "causal_lm")
    return folder


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_greedy_rationales_are_those_of_transformers_generate(model: Path, tmp_path: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from models.views import rationale_prompt

    found = collect_rationales(SELF, QUERIES, model, tmp_path / "r.jsonl")
    lm: Any = AutoModelForCausalLM.from_pretrained(model / "causal_lm").eval()
    tokenizer = AutoTokenizer.from_pretrained(model / "causal_lm")
    for query in QUERIES:
        prompt = rationale_prompt(query.query, lm.config.rationale_prompt).text
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        out = lm.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
        out = out[0, ids.shape[1] :]
        assert found.by_request[query.query] == [tokenizer.decode(out, skip_special_tokens=True).strip()]
    assert found.info["requests"] == 2
    assert found.info["reused"] == 0


def test_a_second_run_writes_only_what_is_missing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "r.jsonl"
    first = collect_rationales(SELF, QUERIES[:1], model, path)
    (row,) = rows_of(path)
    assert (row["query_id"], row["query"], row["sample"]) == ("q1", "draw bar charts", 0)
    assert row["seconds"] > 0
    asked = []
    from evaluation import rationales

    original = rationales.from_policy
    monkeypatch.setattr(
        rationales, "from_policy", lambda lm, queries, *rest: asked.extend(queries) or original(lm, queries, *rest)
    )
    second = collect_rationales(SELF, QUERIES, model, path)
    assert [query.query_id for query in asked] == ["q2"]
    assert second.by_request["draw bar charts"] == first.by_request["draw bar charts"]
    assert second.info["reused"] == 1
    # what writing took, in the earlier run too
    assert second.info["seconds"] == pytest.approx(sum(row["seconds"] for row in rows_of(path)), abs=1e-3)


def test_rationales_of_other_settings_are_not_reused(model: Path, tmp_path: Path):
    path = tmp_path / "r.jsonl"
    collect_rationales(SELF, QUERIES, model, path)
    sampled = Augment("self", max_tokens=6, samples=3, temperature=1.0)
    found = collect_rationales(sampled, QUERIES, model, path)
    assert found.info["reused"] == 0
    assert [len(texts) for texts in found.by_request.values()] == [3, 3]
    assert len(rows_of(path)) == 6
    assert len({row["rationale"] for row in rows_of(path)}) > 2  # drawn, not repeated


def test_samples_depend_on_request_and_seed_alone(model: Path):
    sampled = Augment("self", max_tokens=6, samples=2, temperature=1.0)
    both, alone = collect_rationales(sampled, QUERIES, model), collect_rationales(sampled, QUERIES[1:], model)
    assert both.by_request["plan a budget"] == alone.by_request["plan a budget"]


def test_a_file_gives_rationales_by_query_id_several_where_it_has_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "given.jsonl"
    rows = [("q2", "one"), ("q2", "two"), ("other", "three")]
    file.write_text("".join(json.dumps({"query_id": i, "rationale": r}) + "\n" for i, r in rows))
    found = collect_rationales(Augment("file", file=str(file)), QUERIES, "bm25")
    assert found.by_request == {"plan a budget": ["one", "two"]}
    assert (found.info["requests"], found.info["without"], found.info["seconds"]) == (1, 1, 0)
    assert "1 rows are about other requests" in caplog.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query_id": "q9", "rationale": "x"}', "none of its 1 rows is about a request of this benchmark"),
        ('{"query_id": "q1", "text": "x"}', "jsonl:1: expected a text under query_id and one under rationale"),
        ("not json", "not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_row(tmp_path: Path, line: str, message: str):
    file = tmp_path / "given.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        collect_rationales(Augment("file", file=str(file)), QUERIES, "bm25")


def test_a_teacher_is_asked_without_the_target_and_its_failures_are_counted(tmp_path: Path, monkeypatch):
    from data_pipeline.pipeline import asking
    from data_pipeline.teacher import TeacherResult, Usage

    prompts = []

    class Scripted:
        name, usage = "openai:big", Usage()

        def run(self, tasks, progress=False):
            for task in tasks:
                prompts.append(task.prompt)
                ok = "charts" in task.prompt
                value = {"query_capability": "The user needs skills for charts."} if ok else None
                yield TeacherResult(task.task_id, task.kind, "ok" if ok else "failed", self.name, value, "refused")

    monkeypatch.setattr(asking, "open_teacher", lambda *arguments: Scripted())
    augment = Augment("teacher", teacher=TeacherConfig(kind="openai", model="big"))
    found = collect_rationales(augment, QUERIES, "bm25", tmp_path / "r.jsonl")
    assert found.by_request == {"draw bar charts": ["The user needs skills for charts."]}
    assert (found.info["writer"], found.info["without"]) == ("teacher:openai:big", 1)
    assert all("known skill" not in prompt for prompt in prompts)
    prompts.clear()
    again = collect_rationales(augment, QUERIES, "bm25", tmp_path / "r.jsonl")
    assert len(prompts) == 1  # the one that failed is asked again, which the teacher's own cache may answer
    assert again.info["reused"] == 1


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (Augment("oracle"), "augmentation is 'oracle'; expected one of self, teacher, file"),
        (Augment("teacher"), "offline teacher writes rationales from the target skill"),
        (Augment("file"), "--rationales FILE"),
        (Augment("self", samples=3), "samples is 3 at temperature 0, where all are equal"),
        (Augment("self", temperature=-1), "temperature is -1"),
    ],
)
def test_what_cannot_work_is_refused(augment: Augment, message: str):
    with pytest.raises(ValueError, match=message):
        collect_rationales(augment, QUERIES, "bm25")


def test_the_writer_is_the_lm_beside_the_encoder_or_the_one_that_is_given(
    model: Path, tiny_folder: Path, tmp_path: Path
):
    assert causal_lm_of(model) == str(model / "causal_lm")
    assert causal_lm_of(f"hybrid:{model}") == str(model / "causal_lm")
    assert causal_lm_of("bm25", str(model.parent)) == str(model / "causal_lm")
    assert causal_lm_of("bm25", str(tiny_folder)) == str(tiny_folder)
    with pytest.raises(ValueError, match=r"bm25 has no language model.*--augment-model"):
        causal_lm_of("bm25")
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(ValueError, match=r"is no causal LM itself \(BertModel\)"):
        causal_lm_of(tmp_path)
