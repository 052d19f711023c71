"""From a small library to audited training records, with a teacher that is scripted where its answers matter."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import Skill, SkillCorpus, read_stage1, read_stage2
from data_pipeline.pipeline import Pipeline, PipelineConfig, PipelineError, load_pipeline_config
from data_pipeline.pipeline import asking as asking_module
from data_pipeline.pipeline.asking import BudgetSpent
from data_pipeline.pipeline.training import TRAINING_STAGES
from data_pipeline.rows import read_rows, write_rows
from data_pipeline.teacher import OfflineTeacher, TeacherResult, TeacherTask, Usage

TOPICS = [
    "charts",
    "tables",
    "budgets",
    "invoices",
    "contracts",
    "recipes",
    "seating",
    "routes",
    "lessons",
    "minutes",
    "captions",
]
TOPICS += [
    "backups",
    "indexes",
    "forms",
    "menus",
    "gardens",
    "paintings",
    "bridges",
    "engines",
    "telescopes",
    "violins",
]
SYLLABLES = [
    "ka",
    "lo",
    "mi",
    "ter",
    "sun",
    "pra",
    "vel",
    "do",
    "gri",
    "nu",
    "bas",
    "fen",
    "ol",
    "ri",
    "tam",
    "zu",
    "hes",
    "wo",
]


def skill(number: int, category: str) -> Skill:
    """A skill in words of its own, so that no two are near copies."""
    words = random.Random(number)
    made = ["".join(words.choices(SYLLABLES, k=3)) for _ in range(40)]
    topic = TOPICS[number]
    sentence = " ".join(made[:12])
    body = (
        f"# {topic}\n\n## When to use\n- check the {topic} of a customer against {sentence}\n"
        f"- repair broken {' '.join(made[12:20])} before a deadline\n\n## Steps\n1. Collect {' '.join(made[20:30])}.\n"
        f"2. Compare {' '.join(made[30:])} with the {topic}.\n"
    )
    description = f"Handle {topic} that hold {' '.join(made[:4])}."
    return Skill(f"{category}/{topic}-helper", f"{topic} helper {number}", description, body, {})


@pytest.fixture
def library(tmp_path: Path) -> Path:
    corpus = SkillCorpus([skill(i, ("office", "home", "craft")[i % 3]) for i in range(21)])
    corpus.to_jsonl(tmp_path / "library.jsonl")
    return tmp_path / "library.jsonl"


def build(library: Path, tmp_path: Path, *overrides: str, out: str = "out") -> Pipeline:
    config: PipelineConfig = load_pipeline_config(None, [f"out={tmp_path / out}", f"sources=[{library}]", *overrides])
    return Pipeline(TRAINING_STAGES, config, config.out)


class Scripted(OfflineTeacher):
    """The offline teacher, but for answers that a test gives by task kind."""

    def __init__(self, answers: dict[str, Any], left_over: int | None = None):
        super().__init__()
        self.answers = answers
        self.left_over = left_over
        self.asked: list[str] = []

    def run(self, tasks: Iterable[TeacherTask], progress: bool = False) -> Iterator[TeacherResult]:
        for number, task in enumerate(tasks):
            self.asked.append(task.task_id)
            if self.left_over is not None and number >= self.left_over:
                yield TeacherResult(task.task_id, task.kind, "not_asked", self.name, reason="budget")
            elif task.kind in self.answers:
                value = self.answers[task.kind](task)
                yield TeacherResult(task.task_id, task.kind, "ok", self.name, value)
            else:
                yield super().complete(task)

    @property
    def usage(self) -> Usage:
        return Usage(calls=len(self.asked))


def use(monkeypatch: pytest.MonkeyPatch, teacher: Scripted) -> Scripted:
    monkeypatch.setattr(asking_module, "open_teacher", lambda config, folder, prefix: teacher)
    return teacher


def test_without_any_model_a_library_becomes_audited_records(library: Path, tmp_path: Path) -> None:
    pipeline = build(library, tmp_path)
    pipeline.run()
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


def test_the_same_seed_gives_the_same_bytes(library: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        build(library, tmp_path, out=out).run()
    for name in ("stage1.jsonl", "stage2.jsonl", "exclusions.json", "provenance.jsonl"):
        assert (tmp_path / "a" / "records" / name).read_bytes() == (tmp_path / "b" / "records" / name).read_bytes()


def test_a_larger_target_asks_only_for_the_rationales_that_are_new(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(library, tmp_path, "select.target=6", "select.reserve=2").run()
    teacher = use(monkeypatch, Scripted({}))
    ran = build(library, tmp_path, "select.target=9", "select.reserve=2").run()
    assert ran == ["select", "annotate", "rewrite", "records", "audit", "isolation"]
    assert {task.split("/")[0] for task in teacher.asked} == {"rationale", "implicit_rewrite"}


def test_requests_that_name_their_skill_are_rejected_and_counted(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def queries(task: TeacherTask) -> dict[str, Any]:
        name = task.inputs["skill"].name
        topic = name.split()[0]
        plain = f"our team has to hand in its {topic} on Friday and nobody has compared them with the plan yet"
        return {
            "queries": [plain, f"please run the {name.upper()} for us before the meeting on Friday", plain + " again"]
        }

    use(monkeypatch, Scripted({"query_synthesis": queries}))
    pipeline = build(library, tmp_path)
    pipeline.run(until=["synthesize"])
    assert pipeline.manifest("synthesize")["rejected"] == {"names_its_skill": 21}
    assert pipeline.manifest("synthesize")["counts"] == {"requests": 42, "skills": 21}


def test_the_review_decides_what_is_kept_and_its_reasons_are_counted(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(task: TeacherTask) -> dict[str, Any]:
        keep = not task.task_id.endswith("#1")
        return {"keep": keep, "issue_type": "good" if keep else "generic", "reason": "-"}

    use(monkeypatch, Scripted({"quality_review": verdict}))
    pipeline = build(library, tmp_path)
    pipeline.run(until=["review"])
    kept = [row["record_id"] for _, row in read_rows(tmp_path / "out" / "review" / "reviewed.jsonl")]
    before = [row["record_id"] for _, row in read_rows(tmp_path / "out" / "deduplicate" / "kept.jsonl")]
    assert kept == [i for i in before if not i.endswith("#1")]
    assert pipeline.manifest("review")["rejected"] == {"generic": len(before) - len(kept)}


def test_short_requests_are_rejected_by_rule_and_never_repaired(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "somebody has to compare what the customer sent with what was agreed before the end of the week"

    def queries(task: TeacherTask) -> dict[str, Any]:
        return {"queries": ["much too short", long, " ".join(["word"] * 111)]}

    use(monkeypatch, Scripted({"query_synthesis": queries}))
    pipeline = build(library, tmp_path)
    pipeline.run(until=["validate"])
    assert pipeline.manifest("validate")["rejected"] == {"overlong_query": 21, "short_query": 21}


def test_a_spent_budget_stops_the_run_and_leaves_no_half_stage(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Scripted({}, left_over=5))
    with pytest.raises(BudgetSpent, match=r"teachers.synthesis is spent: 5 of 21 tasks are answered and kept"):
        build(library, tmp_path).run()
    assert not (tmp_path / "out" / "synthesize").exists()
    use(monkeypatch, Scripted({}))
    assert build(library, tmp_path).run(until=["synthesize"]) == ["synthesize"]


def test_own_requests_with_rationale_and_rewrite_need_no_teacher(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    teacher = use(monkeypatch, Scripted({}))
    pipeline = build(library, tmp_path, f"synthesis.requests_file={tmp_path / 'own.jsonl'}", "synthesis.teacher=false")
    pipeline.run()
    assert {task.split("/")[0] for task in teacher.asked} == {"quality_review"}
    assert pipeline.manifest("synthesize")["rejected"] == {"unknown_skill": 1}
    records = read_stage1(tmp_path / "out" / "records" / "stage1.jsonl")
    assert all(r.query_capability.startswith("The user needs skills for comparing promise") for r in records)


def test_categories_may_be_the_teachers(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(task: TeacherTask) -> dict[str, Any]:
        return {"category": "odd" if int(task.inputs["skill"].name.split()[-1]) % 2 else "even", "reason": "-"}

    use(monkeypatch, Scripted({"category": choose}))
    build(library, tmp_path, "categories.source=teacher", "categories.labels=[odd,even]").run(until=["categorize"])
    rows = [row for _, row in read_rows(tmp_path / "out" / "categorize" / "categories.jsonl")]
    assert [row["category"] for row in rows[:3]] == ["even", "odd", "even"]


def test_a_damaged_record_ends_the_audit_with_what_it_found(library: Path, tmp_path: Path) -> None:
    pipeline = build(library, tmp_path)
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


def test_isolation_lists_a_leaked_request(library: Path, tmp_path: Path) -> None:
    build(library, tmp_path).run(until=["records"])
    leaked = read_stage1(tmp_path / "out" / "records" / "stage1.jsonl")[0]
    bench = [
        {"query_id": "leaked", "query": leaked.query.upper() + "!!", "skill_id": leaked.positive_id},
        {"query_id": "fresh", "query": "which wine goes with mushrooms in autumn", "skill_id": leaked.positive_id},
    ]
    write_rows(tmp_path / "bench.jsonl", bench)
    pipeline = build(library, tmp_path, f"isolation.benchmarks.own={tmp_path / 'bench.jsonl'}")
    pipeline.run(until=["isolation"])
    assert pipeline.manifest("isolation")["counts"]["own_exact"] == 1
    pairs = [row for _, row in read_rows(tmp_path / "out" / "isolation" / "review.jsonl")]
    assert {row["query_id"] for row in pairs} == {"leaked"}


@pytest.mark.ray
def test_a_cluster_gives_the_same_bytes(library: Path, tmp_path: Path, ray_cluster: None) -> None:
    build(library, tmp_path, out="alone").run(until=["mine"])
    build(library, tmp_path, "encoding.workers=2", out="cluster").run(until=["mine"])
    one, two = (tmp_path / out / "mine" / "negatives.jsonl" for out in ("alone", "cluster"))
    assert one.read_bytes() == two.read_bytes()
