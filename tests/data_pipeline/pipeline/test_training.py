"""From a small library to audited training records, with a teacher that is scripted where its answers matter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import SkillCorpus, read_stage1, read_stage2
from data_pipeline.pipeline import DEFAULT_TARGETS as TRAINING
from data_pipeline.pipeline import Pipeline, PipelineError
from data_pipeline.pipeline.asking import BudgetSpent
from data_pipeline.rows import RecordError, read_rows, write_rows
from data_pipeline.teacher import TeacherTask

Build = Callable[..., Pipeline]
Script = Callable[..., dict[str, Any]]


def test_without_any_model_a_library_becomes_audited_records(build: Build, tmp_path: Path) -> None:
    pipeline = build()
    pipeline.run(TRAINING)
    records = read_stage1(tmp_path / "out" / "records" / "stage1.jsonl", n_negatives=10)
    implicit = read_stage2(tmp_path / "out" / "records" / "stage2.jsonl", n_negatives=10)
    assert len(records) >= 20
    assert {r.category for r in records} == {"office", "home", "craft"}
    assert [r.original_query for r in implicit] == [
        r.query for r in records if r.record_id in {i.record_id for i in implicit}
    ]
    assert pipeline.manifest("audit")["counts"] == {
        "records": len(records) + len(implicit),
        "negative_positions": 10 * (len(records) + len(implicit)),
    }
    made_by = [row["teacher"] for _, row in read_rows(tmp_path / "out" / "records" / "provenance.jsonl")]
    assert set(made_by) == {"offline"}


def test_the_same_seed_gives_the_same_bytes(build: Build, tmp_path: Path) -> None:
    for out in ("a", "b"):
        build(out=out).run(TRAINING)
    for name in ("stage1.jsonl", "stage2.jsonl", "exclusions.json", "provenance.jsonl"):
        assert (tmp_path / "a" / "records" / name).read_bytes() == (tmp_path / "b" / "records" / name).read_bytes()


def test_a_larger_target_asks_only_for_the_rationales_that_are_new(build: Build, script: Script) -> None:
    build("select.target=6", "select.reserve=2").run(TRAINING)
    teacher = script({})["default"]
    ran = build("select.target=9", "select.reserve=2").run(TRAINING)
    assert ran == ["select", "annotate", "rewrite", "records", "audit", "isolation"]
    assert {task.split("/")[0] for task in teacher.asked} == {"rationale", "implicit_rewrite"}


def test_requests_that_name_their_skill_are_rejected_and_counted(build: Build, script: Script) -> None:
    def queries(task: TeacherTask) -> dict[str, Any]:
        name = task.inputs["skill"].name
        topic = name.split()[0]
        plain = f"our team has to hand in its {topic} on Friday and nobody has compared them with the plan yet"
        return {
            "queries": [plain, f"please run the {name.upper()} for us before the meeting on Friday", plain + " again"]
        }

    script({"query_synthesis": queries})
    pipeline = build()
    pipeline.run(until=["synthesize"])
    assert pipeline.manifest("synthesize")["rejected"] == {"names_its_skill": 21}
    assert pipeline.manifest("synthesize")["counts"] == {"requests": 42, "skills": 21}


def test_the_review_decides_what_is_kept_and_its_reasons_are_counted(
    build: Build, script: Script, tmp_path: Path
) -> None:
    def verdict(task: TeacherTask) -> dict[str, Any]:
        keep = not task.task_id.endswith("#1")
        return {"keep": keep, "issue_type": "good" if keep else "generic", "reason": "-"}

    script({"quality_review": verdict})
    pipeline = build()
    pipeline.run(until=["review"])
    kept = [row["record_id"] for _, row in read_rows(tmp_path / "out" / "review" / "reviewed.jsonl")]
    before = [row["record_id"] for _, row in read_rows(tmp_path / "out" / "deduplicate" / "kept.jsonl")]
    assert kept == [i for i in before if not i.endswith("#1")]
    assert pipeline.manifest("review")["rejected"] == {"generic": len(before) - len(kept)}


def test_short_requests_are_rejected_by_rule_and_never_repaired(build: Build, script: Script) -> None:
    long = "somebody has to compare what the customer sent with what was agreed before the end of the week"

    def queries(task: TeacherTask) -> dict[str, Any]:
        return {"queries": ["much too short", long, " ".join(["word"] * 111)]}

    script({"query_synthesis": queries})
    pipeline = build()
    pipeline.run(until=["validate"])
    assert pipeline.manifest("validate")["rejected"] == {"overlong_query": 21, "short_query": 21}


def test_a_spent_budget_stops_the_run_and_leaves_no_half_stage(build: Build, script: Script, tmp_path: Path) -> None:
    script({}, left_over=5)
    with pytest.raises(BudgetSpent, match=r"teachers.synthesis is spent: 5 of 21 tasks are answered and kept"):
        build().run(TRAINING)
    assert not (tmp_path / "out" / "synthesize").exists()
    script({})
    assert build().run(until=["synthesize"]) == ["synthesize"]


def test_own_requests_with_rationale_and_rewrite_need_no_teacher(
    build: Build, script: Script, library: Path, tmp_path: Path
) -> None:
    ids = SkillCorpus.from_jsonl(library).ids
    rows = [
        {
            "record_id": f"mine-{i}",
            "skill_id": skill_id,
            "query": f"my colleagues wait for number {i} and I do not know what we promised them about {skill_id.split('/')[1]}",
            "query_capability": f"The user needs skills for comparing promise {i} with delivery.",
            "implicit_query": f"my colleagues are waiting and nobody remembers what was promised in case {i}",
        }
        for i, skill_id in enumerate(ids)
    ]
    rows.append({**rows[0], "record_id": "lost", "skill_id": "no/such-skill"})
    write_rows(tmp_path / "own.jsonl", rows)
    teacher = script({})["default"]
    pipeline = build(f"synthesis.requests_file={tmp_path / 'own.jsonl'}", "synthesis.teacher=false")
    pipeline.run(TRAINING)
    assert {task.split("/")[0] for task in teacher.asked} == {"quality_review"}
    assert pipeline.manifest("synthesize")["rejected"] == {"unknown_skill": 1}
    records = read_stage1(tmp_path / "out" / "records" / "stage1.jsonl")
    assert all(r.query_capability.startswith("The user needs skills for comparing promise") for r in records)


def test_categories_may_be_the_teachers(build: Build, script: Script, tmp_path: Path) -> None:
    def choose(task: TeacherTask) -> dict[str, Any]:
        return {"category": "odd" if int(task.inputs["skill"].name.split()[-1]) % 2 else "even", "reason": "-"}

    script({"category": choose})
    build("categories.source=teacher", "categories.labels=[odd,even]").run(until=["categorize"])
    rows = [row for _, row in read_rows(tmp_path / "out" / "categorize" / "categories.jsonl")]
    assert [row["category"] for row in rows[:3]] == ["even", "odd", "even"]


def test_a_damaged_record_ends_the_audit_with_what_it_found(build: Build, tmp_path: Path) -> None:
    pipeline = build()
    pipeline.run(until=["records"])
    file = tmp_path / "out" / "records" / "stage1.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["negatives"][0] = "another text"
    manifest_file = tmp_path / "out" / "records" / "manifest.json"
    write_rows(file, rows)
    import hashlib

    manifest = json.loads(manifest_file.read_text())
    manifest["artifacts"]["stage1.jsonl"] = hashlib.sha256(file.read_bytes()).hexdigest()  # as if it had been made so
    manifest_file.write_text(json.dumps(manifest))
    with pytest.raises(PipelineError, match=r"'id_text_mismatches': 1"):
        pipeline.run(until=["audit"])


def test_isolation_lists_a_leaked_request(build: Build, tmp_path: Path) -> None:
    build().run(until=["records"])
    leaked = read_stage1(tmp_path / "out" / "records" / "stage1.jsonl")[0]
    bench = [
        {"query_id": "leaked", "query": leaked.query.upper() + "!!", "skill_id": leaked.positive_id},
        {"query_id": "fresh", "query": "which wine goes with mushrooms in autumn", "skill_id": leaked.positive_id},
    ]
    write_rows(tmp_path / "bench.jsonl", bench)
    pipeline = build(f"isolation.benchmarks.own={tmp_path / 'bench.jsonl'}")
    pipeline.run(until=["isolation"])
    assert pipeline.manifest("isolation")["counts"]["own_exact"] == 1
    pairs = [row for _, row in read_rows(tmp_path / "out" / "isolation" / "review.jsonl")]
    assert {row["query_id"] for row in pairs} == {"leaked"}


@pytest.mark.ray
def test_a_cluster_gives_the_same_bytes(build: Build, tmp_path: Path, ray_cluster: None) -> None:
    build(out="alone").run(until=["mine"])
    build("encoding.workers=2", out="cluster").run(until=["mine"])
    one, two = (tmp_path / out / "mine" / "negatives.jsonl" for out in ("alone", "cluster"))
    assert one.read_bytes() == two.read_bytes()


def test_a_hub_dataset_is_a_source_like_any_other(
    build: Build, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def load_dataset(name: str, split: str) -> list[dict[str, Any]]:
        asked.append((name, split))
        return [{**row, "id": row.pop("skill_id")} for _, row in read_rows(library)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    pipeline = build("sources=[hf:owner/skills:test]")
    assert pipeline.run(until=["categorize"]) == ["corpus", "embed", "categorize"]
    assert asked == [("owner/skills", "test")]
    assert pipeline.manifest("corpus")["counts"] == {"collected": 21, "skills": 21}
    assert build("sources=[hf:owner/skills:test]").run(until=["categorize"]) == []


def test_provenance_names_who_wrote_each_part(build: Build, script: Script, library: Path, tmp_path: Path) -> None:
    given = SkillCorpus.from_jsonl(library).ids[:6]
    rows = [
        {
            "record_id": f"mine-{i}",
            "skill_id": skill_id,
            "query": f"my colleagues wait for number {i} and nobody knows what was promised to them",
            "query_capability": "The user needs skills for comparing promises with delivery.",
        }
        for i, skill_id in enumerate(given)
    ]
    write_rows(tmp_path / "own.jsonl", rows)
    script({"quality_review": lambda task: {"keep": True, "issue_type": "good", "reason": "-"}})
    pipeline = build(
        f"synthesis.requests_file={tmp_path / 'own.jsonl'}", "duplicates.word_jaccard=1", "select.per_skill=9"
    )
    pipeline.run(until=["records"])
    made = {row["record_id"]: row for _, row in read_rows(pipeline.folder("records") / "provenance.jsonl")}
    own = [row for record_id, row in made.items() if record_id.startswith("mine-")]
    assert {(row["teacher"], row["rationale_teacher"], row["rewrite_teacher"]) for row in own} == {
        ("given", "given", "offline")
    }
    others = [row for record_id, row in made.items() if not record_id.startswith("mine-")]
    assert {(row["teacher"], row["rationale_teacher"]) for row in others} == {("offline", "offline")}


def test_every_artifact_has_the_same_bytes_in_every_run(build: Build, tmp_path: Path) -> None:
    pipeline = build()
    pipeline.run(TRAINING)
    assert build(out="again").run(TRAINING)
    names = [path.relative_to(tmp_path / "out") for path in sorted((tmp_path / "out").glob("[!.]*/*"))]
    assert len(names) > 30
    for name in names:
        if name.name != "manifest.json":
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    assert pipeline.run(TRAINING, force=["corpus"]) == ["corpus"]  # the same artifacts: nothing after it is stale


@pytest.mark.parametrize(
    ("key", "value"),
    [("record_id", ["a"]), ("record_id", " "), ("query", 5), ("query_capability", 7), ("implicit_query", {"a": 1})],
)
def test_a_given_request_whose_value_is_no_text_is_named(build: Build, tmp_path: Path, key: str, value: Any) -> None:
    row = {"record_id": "a", "skill_id": "office/charts-helper", "query": "sort my charts before Friday"}
    write_rows(tmp_path / "given.jsonl", [{**row, "record_id": "b"}, row | {key: value}])
    with pytest.raises(RecordError, match=rf"given.jsonl:2: {key} = .*expected text"):
        build(f"synthesis.requests_file={tmp_path / 'given.jsonl'}").run(until=["synthesize"])


def test_given_rationales_and_rewrites_pass_the_same_checks(build: Build, library: Path, tmp_path: Path) -> None:
    rationale = "The user needs skills for comparing several figures with a plan before a deadline."
    implicit = "We sit down with the landlord on Friday and nothing we have on paper seems to add up to what he says."
    skills = list(SkillCorpus.from_jsonl(library))[:5]
    texts = [
        (rationale, implicit),
        ("Needs figures compared.", implicit),
        (f"The user needs skills for using the {skills[2].name}.", implicit),
        (rationale, "too short"),
        (rationale, f"{implicit} Use the {skills[4].name}."),
    ]
    words = "ten plain words that somebody could well have written about matter number"
    write_rows(
        tmp_path / "given.jsonl",
        (
            {
                "record_id": f"g{i}",
                "skill_id": skill.skill_id,
                "query": f"{words} {i} {skill.description}",
                "query_capability": texts[i][0],
                "implicit_query": texts[i][1],
            }
            for i, skill in enumerate(skills)
        ),
    )
    pipeline = build(
        f"synthesis.requests_file={tmp_path / 'given.jsonl'}", "synthesis.teacher=false", "select.category_share=1"
    )
    pipeline.run(until=["records"])
    assert pipeline.manifest("select")["counts"]["selected"] == 5
    assert pipeline.manifest("annotate")["rejected"] == {"malformed_rationale": 1, "names_its_skill": 1}
    assert pipeline.manifest("rewrite")["rejected"] == {"names_its_skill": 1, "short_query": 1}
    assert [r.record_id for r in read_stage1(tmp_path / "out" / "records" / "stage1.jsonl")] == ["g0", "g3", "g4"]
    assert [r.record_id for r in read_stage2(tmp_path / "out" / "records" / "stage2.jsonl")] == ["g0"]


def test_two_categories_cannot_keep_within_the_papers_cap_and_are_taken_whole(
    build: Build, library: Path, tmp_path: Path
) -> None:
    skills = [skill for skill in SkillCorpus.from_jsonl(library) if not skill.skill_id.startswith("craft/")]
    SkillCorpus(skills).to_jsonl(library)
    pipeline = build("negatives.skill_neighbours=2", "negatives.query_neighbours=2")
    pipeline.run(until=["select"])
    notes = pipeline.manifest("select")["notes"]
    assert (notes["category_share"], notes["by_category"]) == (1.0, {"home": 14, "office": 14})
