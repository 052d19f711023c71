"""``skillreason skill2query augment | training | groups | evaluate``, from a corpus to a trained retriever and its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data_pipeline import SkillCorpus, read_stage1, read_stage2, read_training_requests
from data_pipeline.corpus import Skill
from data_pipeline.rows import read_rows, write_rows
from data_pipeline.sample_library import load_sample_corpus
from skillreason.cli import app

PLANTS = ("tomato", "bean", "maize", "onion", "carrot", "leek", "pepper", "squash", "radish", "turnip", "kale", "chard")
JOBS = ("watering", "pruning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 24 skills, its pseudo-queries, and a bench of two requests."""
    folder = tmp_path_factory.mktemp("s2q")
    skills = [
        Skill(
            f"garden/{plant}-{job}",
            f"{plant}-{job}",
            f"Plans the {job} of {plant} beds.",
            f"# {plant}\n\n## Capabilities\n- Plan the {job} of every {plant} bed for the coming week\n- Count the {plant} "
            f"plants that the {job} has to reach\n",
        )
        for plant in PLANTS
        for job in JOBS
    ]
    SkillCorpus(skills).to_jsonl(folder / "corpus.jsonl")
    bench = [
        {"query_id": "q1", "query": "How do I count the leek plants for pruning?", "skill_id": "garden/leek-pruning"},
        {"query_id": "q2", "query": "kale watering", "skill_ids": ["garden/kale-watering", "garden/kale-pruning"]},
    ]
    write_rows(folder / "bench.jsonl", bench)
    run("skill2query", "generate", folder / "corpus.jsonl", "--out", folder / "queries.jsonl")
    return folder


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_augment_writes_a_corpus_that_evaluate_takes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "augmented.jsonl"
    printed = run(
        "skill2query",
        "augment",
        folder / "corpus.jsonl",
        "--queries",
        folder / "queries.jsonl",
        "--config",
        "name",
        "--per-skill",
        2,
        "--out",
        out,
    )
    assert printed == f"24 skills in {out}; 24 of them have pseudo-queries\n"
    documents = SkillCorpus.from_jsonl(out).documents()
    assert documents[0].startswith("tomato-watering\n")
    assert {document.count("\n") for document in documents} == {2}
    run(
        "evaluate",
        "--model",
        "bm25",
        "--corpus",
        out,
        "--bench",
        folder / "bench.jsonl",
        "--out",
        tmp_path / "out.json",
    )
    assert json.loads((tmp_path / "out.json").read_text())["metrics"]["recall@10"] == 1


def test_evaluate_writes_the_whole_table(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    printed = run(
        "skill2query", "evaluate", folder / "corpus.jsonl", "--bench", folder / "bench.jsonl", "--model", "bm25",
        "--queries", folder / "queries.jsonl", "--out", out,
    )  # fmt: skip
    written = json.loads((out / "comparison.json").read_text())
    assert [(row["config"], row["mode"]) for row in written["rows"]] == [
        (config, mode) for config in ("name", "name_description", "full") for mode in ("baseline", "offline", "online")
    ]
    assert all(set(row["metrics"]) == {"recall@1", "recall@10", "ndcg@1", "ndcg@10"} for row in written["rows"])
    assert written["settings"]["per_skill"] == 10
    # By hand: "leek-pruning" is the one name with both words of q1, and "kale" with "watering" the first of q2, of two targets.
    assert written["rows"][0]["metrics"]["recall@1"] == pytest.approx((1 + 0.5) / 2)
    table = (out / "comparison.md").read_text()
    assert "| bm25 | name | baseline | 75.0 |" in table
    assert table in printed
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_refuses_benches_of_one_name(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "bench.jsonl"
    other.write_bytes((folder / "bench.jsonl").read_bytes())
    with pytest.raises(ValueError, match="have one name"):
        run(
            "skill2query", "evaluate", folder / "corpus.jsonl", "--bench", folder / "bench.jsonl", "--bench", other,
            "--model", "bm25", "--queries", folder / "queries.jsonl", "--out", tmp_path / "out",
        )  # fmt: skip


def test_pseudo_queries_of_another_corpus_are_refused(folder: Path, tmp_path: Path) -> None:
    SkillCorpus([Skill("a/b", "b", "c", "d")]).to_jsonl(tmp_path / "other.jsonl")
    with pytest.raises(ValueError, match=r"none of its .* pseudo-queries is of one of the corpus's 1 skills"):
        run(
            "skill2query",
            "training",
            tmp_path / "other.jsonl",
            "--queries",
            folder / "queries.jsonl",
            "--out",
            tmp_path / "r.jsonl",
        )


def test_from_pseudo_queries_to_a_trained_retriever(tiny_folder: Path, tmp_path: Path) -> None:
    corpus, queries, requests = (tmp_path / f"{name}.jsonl" for name in ("corpus", "queries", "requests"))
    skills = load_sample_corpus()
    skills.to_jsonl(corpus)
    run("skill2query", "generate", corpus, "--out", queries)
    run("skill2query", "training", corpus, "--queries", queries, "--out", requests)
    made = read_training_requests(requests)
    assert 0.9 * len(skills) < len({row.skill_id for row in made}) == len(made) <= len(skills)
    run("records", "--corpus", corpus, "--requests", requests, "--document-format", "skill2query", "--out", tmp_path)
    records = read_stage1(tmp_path / "stage1.jsonl")
    assert len(records) > 0.8 * len(made)
    assert all(record.positive.startswith("Name: ") for record in records)
    assert read_stage2(tmp_path / "stage2.jsonl")
    run(
        "train", "stage1", "skill2query_tiny", f"model.path={tiny_folder}", f"data.train_file={tmp_path / 'stage1.jsonl'}",
        "run.name=s2q", f"run.root={tmp_path}", "data.train_batch_size=4", "trainer.total_steps=2", "trainer.save_freq=0",
        "data.max_length=400", "data.lm_max_length=400", "data.heldout_fraction=0", "tracking.wandb=disabled", "run.device=cpu",
    )  # fmt: skip
    export, groups = tmp_path / "s2q" / "export", tmp_path / "groups.jsonl"
    assert json.loads((export / "config.json").read_text())["document_format"] == "skill2query"
    run(
        "skill2query", "groups", corpus, "--requests", requests, "--model", export, "--out", groups, "--size", 5,
        "--cache-dir", tmp_path / "cache",
    )  # fmt: skip
    rows = [row for _, row in read_rows(groups)]
    assert [row["record_id"] for row in rows] == [row.record_id for row in made]
    assert all(len(row["candidates"]) == 5 for row in rows)
    assert all(sum(candidate["weight"] for candidate in row["candidates"]) == 1 for row in rows)


def test_pseudo_queries_of_skills_that_the_corpus_lacks_are_counted_aloud(folder: Path, tmp_path: Path) -> None:
    skills = SkillCorpus.from_jsonl(folder / "corpus.jsonl")
    SkillCorpus(skill for skill in skills if "leek" not in skill.skill_id).to_jsonl(tmp_path / "fewer.jsonl")
    of_leek = sum("leek" in row["skill_id"] for _, row in read_rows(folder / "queries.jsonl"))
    queries = ("--queries", folder / "queries.jsonl")
    printed = run("skill2query", "augment", tmp_path / "fewer.jsonl", *queries, "--out", tmp_path / "augmented.jsonl")
    assert (
        f"{of_leek} pseudo-queries left out: the corpus lacks their skills, such as 'garden/leek-watering'" in printed
    )
    assert "22 skills in" in printed
