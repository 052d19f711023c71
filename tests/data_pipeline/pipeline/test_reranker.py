"""The reranker's stages on hand-made inputs: tasks, caps, forbidden negatives, audited labels and candidate groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline import ExclusionGraph, Skill, SkillCorpus, Stage1Record, write_records
from data_pipeline.exclusions import ExclusionEdge
from data_pipeline.pipeline import Pipeline, PipelineError, StageContext, StageReport, load_pipeline_config
from data_pipeline.pipeline import reranker as groups_module
from data_pipeline.pipeline import reranker_tasks as tasks_module
from data_pipeline.pipeline.reranker import build_groups
from data_pipeline.pipeline.reranker_tasks import (
    audit_targets,
    check_tasks,
    mine_task_negatives,
    select_tasks,
    write_tasks,
)
from data_pipeline.rows import read_rows, write_rows

Build = Callable[..., Pipeline]
Script = Callable[..., dict[str, Any]]


def words(prefix: str, count: int) -> str:
    return " ".join(f"{prefix}{i}" for i in range(count))


def own_skill(number: int, **changes: str) -> Skill:
    """A skill that shares nothing with another number's; id and name can be changed."""
    given = {
        "skill_id": f"c{number % 3}/k{number}",
        "name": f"name{number}",
        "body": words(f"b{number}w", 30),
        **changes,
    }
    return Skill(given["skill_id"], given["name"], "", given["body"])


class Workbench:
    """A stage's inputs, written by hand, and a context that reads them."""

    def __init__(self, folder: Path, skills: Sequence[Skill]) -> None:
        self.folder, self.skills = folder, list(skills)
        self.put("corpus", "corpus.jsonl.gz", [])
        SkillCorpus(self.skills).to_jsonl(folder / "corpus" / "corpus.jsonl.gz")
        self.put("categorize", "categories.jsonl", [{"skill_id": i, "category": i.split("/")[0]} for i in self.ids])
        self.ties()
        self.embeddings(np.eye(len(self.skills), dtype=np.float32))

    @property
    def ids(self) -> list[str]:
        return [skill.skill_id for skill in self.skills]

    def put(self, stage: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        (self.folder / stage).mkdir(exist_ok=True)
        write_rows(self.folder / stage / name, rows)

    def ties(self, *pairs: tuple[str, str]) -> None:
        (self.folder / "exclude").mkdir(exist_ok=True)
        edges = tuple(ExclusionEdge(a, b, "copy", 0.9, 0.9) for a, b in pairs)
        ExclusionGraph(edges, {}).write(self.folder / "exclude" / "exclusions.json")
        everybody = [[j for j in range(len(self.skills)) if j != i] for i in range(len(self.skills))]
        np.save(self.folder / "exclude" / "neighbours.npy", np.array(everybody, dtype=np.int32))

    def embeddings(self, matrix: np.ndarray) -> None:
        (self.folder / "embed").mkdir(exist_ok=True)
        np.save(self.folder / "embed" / "embeddings.npy", matrix)

    def run(
        self, stage: Callable[[StageContext], StageReport], *overrides: str
    ) -> tuple[StageReport, list[dict[str, Any]]]:
        """What the stage reports, and the rows it wrote."""
        config = load_pipeline_config(None, [f"out={self.folder}", "sources=[none]", *overrides])
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        for old in out.iterdir():
            old.unlink()
        inputs = {path.name: path for path in self.folder.iterdir()}
        report = stage(StageContext(config, inputs, out, self.folder))
        (written,) = (path for path in out.iterdir() if path.suffix == ".jsonl")
        return report, [row for _, row in read_rows(written)]


@pytest.fixture
def bench(tmp_path: Path) -> Callable[[Sequence[Skill]], Workbench]:
    def make(skills: Sequence[Skill]) -> Workbench:
        (tmp_path / "work").mkdir()
        return Workbench(tmp_path / "work", skills)

    return make


@pytest.fixture
def seed_ranking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], list[str]]], None]:
    """What the seed retriever returns for a request."""

    def install(ranker: Callable[[str], list[str]]) -> None:
        monkeypatch.setattr(
            tasks_module, "_seed_ranking", lambda context, corpus, queries, k: [ranker(q)[:k] for q in queries]
        )

    return install


def task(number: int, targets: Sequence[str], query: str = "", **more: Any) -> dict[str, Any]:
    query = query or f"please look after all of these {words(f'q{number}w', 8)}"
    row = {"record_id": f"multi/{number:06d}", "skill_ids": list(targets), "query": query, "teacher": "offline"}
    return {**row, "query_capability": "The user needs skills for this.", "needs": [], **more}


# -- tasks ---------------------------------------------------------------------------------------------------------------


def test_target_sets_are_different_untied_and_of_two_to_five(bench: Any, script: Script) -> None:
    work = bench([own_skill(i) for i in range(8)])
    work.ties(("c0/k0", "c1/k1"), ("c0/k0", "c2/k2"))
    script({"multi_skill_task": lambda t: {"query": "x", "needs": [], "query_capability": "y"}})
    _, rows = work.run(write_tasks, "reranker.tasks=40")
    sets = [frozenset(row["skill_ids"]) for row in rows]
    assert len(rows) == len(set(sets)) == 40
    assert {len(ids) for ids in sets} == {2, 3, 4, 5}
    assert not [ids for ids in sets if "c0/k0" in ids and ids & {"c1/k1", "c2/k2"}]
    assert len({row["record_id"] for row in rows}) == 40
    assert work.run(write_tasks, "reranker.tasks=40")[1] == rows


def test_a_library_without_so_many_sets_gives_what_it_has(bench: Any, script: Script) -> None:
    work = bench([own_skill(i) for i in range(3)])
    script({"multi_skill_task": lambda t: {"query": "x", "needs": [], "query_capability": "y"}})
    report, rows = work.run(write_tasks, "reranker.tasks=50")
    assert {frozenset(row["skill_ids"]) for row in rows} <= {
        frozenset(ids) for ids in (work.ids, work.ids[:2], work.ids[1:], [work.ids[0], work.ids[2]])
    }
    assert report.counts == {"target_sets": len(rows), "tasks": len(rows)}


def test_no_tasks_are_asked_for_by_default(bench: Any, script: Script) -> None:
    teacher = script({})["default"]
    assert bench([own_skill(i) for i in range(3)]).run(write_tasks)[1] == []
    assert teacher.asked == []


def test_every_structural_check_has_its_count(bench: Any, seed_ranking: Any) -> None:
    work = bench([*(own_skill(i) for i in range(4)), own_skill(4, name="frost alert")])
    good = task(0, work.ids[:2])
    work.put(
        "tasks",
        "tasks.jsonl",
        [
            good,
            task(1, work.ids[:2], good["query"].upper() + "!"),
            task(2, work.ids[:2], "too short"),
            task(3, [work.ids[0], work.ids[0]]),
            task(4, [work.ids[0], "no/such"]),
            task(5, [work.ids[0], work.ids[4]], f"ask the Frost-Alert about {words('q', 8)}"),
            task(6, [work.ids[2], work.ids[3]]),
        ],
    )
    seed_ranking(lambda query: [work.ids[1], work.ids[4]])
    report, rows = work.run(check_tasks)
    assert report.rejected == {
        "exact_duplicate": 1,
        "short_query": 1,
        "unusable_targets": 2,
        "names_its_skill": 1,
        "no_target_retrieved": 1,
    }
    assert [(row["record_id"], row["reached"]) for row in rows] == [("multi/000000", [work.ids[1]])]


def test_the_score_is_specificity_plus_coverage_plus_alignment() -> None:
    skills = SkillCorpus([Skill("a/x", "tomato frost", "", "-"), Skill("a/y", "rain gauge", "", "-")])
    row = {"query": "tomato frost rain valley meadow orchard", "skill_ids": ["a/x", "a/y"], "reached": ["a/y"]}
    # 6 of 30 content words; one of two targets; overlaps 2/6 and 1/6
    assert tasks_module.task_score(row, skills) == pytest.approx(6 / 30 + 1 / 2 + (2 / 6 + 1 / 6) / 2)


def test_caps_on_skills_count_every_target_and_the_best_come_first(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = bench([own_skill(i) for i in range(6)])
    ids = work.ids
    scores = {"multi/000000": 1.0, "multi/000001": 3.0, "multi/000002": 2.0, "multi/000003": 0.5}
    monkeypatch.setattr(tasks_module, "task_score", lambda row, corpus: scores[row["record_id"]])
    rows = [task(0, [ids[1], ids[5]]), task(1, [ids[0], ids[5]]), task(2, [ids[2], ids[5]]), task(3, [ids[3], ids[4]])]
    work.put("task_checks", "tasks.jsonl", [{**row, "reached": row["skill_ids"]} for row in rows])
    report, kept = work.run(select_tasks, "reranker.per_skill=2", "reranker.category_share=1")
    assert [row["record_id"] for row in kept] == [
        "multi/000001",
        "multi/000002",
        "multi/000003",
    ]  # k5 is full for the first
    assert report.rejected == {"skill_full": 1, "not_selected": 0}


def test_the_cap_on_categories_leaves_room_for_the_others(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = bench([own_skill(i) for i in range(12)])
    monkeypatch.setattr(tasks_module, "task_score", lambda row, corpus: -float(row["record_id"][-2:]))
    starts = [0, 3, 6, 9, 1, 4, 2, 5]  # four tasks of category c0, two of c1, two of c2
    rows = [{**task(n, [work.ids[s], work.ids[(s + 1) % 12]]), "reached": [work.ids[s]]} for n, s in enumerate(starts)]
    work.put("task_checks", "tasks.jsonl", rows)
    _, kept = work.run(select_tasks, "reranker.select=5", "reranker.category_share=0.4")
    found = [row["skill_ids"][0].split("/")[0] for row in kept]
    assert {name: found.count(name) for name in set(found)} == {"c0": 2, "c1": 2, "c2": 1}  # at most 0.4 of 5


def test_no_negative_is_a_target_tied_to_one_or_close_to_one(bench: Any, seed_ranking: Any) -> None:
    work = bench([own_skill(i) for i in range(30)])
    ids = work.ids
    work.ties((ids[0], ids[3]), (ids[1], ids[4]))
    vectors = np.eye(30, dtype=np.float32)
    vectors[7] = 0.9 * vectors[1] + np.sqrt(1 - 0.81) * vectors[7]  # cosine 0.90 to the second target
    vectors[8] = 0.8 * vectors[1] + 0.6 * vectors[8]
    work.embeddings(vectors)
    work.put("task_select", "tasks.jsonl", [task(0, ids[:2])])
    seed_ranking(lambda query: ids)
    report, (row,) = work.run(mine_task_negatives)
    assert row["negative_ids"][:8] == [ids[i] for i in (2, 5, 6, 8, 9, 10, 11, 12)]
    assert row["sources"] == ["query_neighbours"] * 8 + ["same_category", "cross_category"]
    assert row["negative_ids"][8].startswith("c0/")  # of the first target
    assert not row["negative_ids"][9].startswith("c0/")
    assert not {ids[i] for i in (0, 1, 3, 4, 7)} & set(row["negative_ids"])
    assert report.notes["negatives_by_source"] == {"query_neighbours": 8, "same_category": 1, "cross_category": 1}


def test_a_task_whose_negatives_run_out_is_dropped_and_the_next_is_not_touched_by_it(
    bench: Any, seed_ranking: Any
) -> None:
    work = bench([own_skill(i) for i in range(14)])
    ids = work.ids
    work.put("task_select", "tasks.jsonl", [task(0, ids[:2]), task(1, ids[2:4])])
    seed_ranking(lambda query: ids[:6] if "q0w" in query else ids)
    report, rows = work.run(mine_task_negatives)
    assert report.rejected == {"unfilled_query_neighbours": 1}
    assert rows[0]["negative_ids"][:2] == ids[:2]  # the first task's targets are no targets of the second


def test_only_strong_positives_make_targets(bench: Any, script: Script) -> None:
    work = bench([own_skill(i) for i in range(4)])
    ids = work.ids
    labels = {ids[0]: "strong_positive", ids[1]: "auxiliary_positive", ids[2]: "weak_generic"}

    def label(given: Any) -> dict[str, Any] | None:
        name = labels.get(given.inputs["candidate"].skill_id)
        return {"label": name, "reason": "-"} if name else None

    script({"relevance_audit": label})
    work.put("task_negatives", "tasks.jsonl", [task(0, ids[:2]), task(1, [ids[1], ids[2]]), task(2, [ids[0], ids[3]])])
    report, rows = work.run(audit_targets)
    assert [(row["record_id"], row["positives"]) for row in rows] == [
        ("multi/000000", {ids[0]: 1.0}),
        ("multi/000002", {ids[0]: 1.0}),  # nobody could judge its other target: it is no positive
    ]
    assert rows[0]["labels"] == {ids[0]: "strong_positive", ids[1]: "auxiliary_positive"}
    assert report.rejected == {"no_strong_positive": 1}
    assert report.counts["positive_relations"] == 2
    assert report.notes["unanswered_relations"] == {"teacher_invalid_json": 1}


# -- groups --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def retrieve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A retriever that returns these positions for every request; documents are unit vectors of their own but for ``near``."""

    def install(order: Sequence[int], near: Mapping[int, tuple[int, float]] | None = None) -> None:
        class Encoder:
            name = "hand-made"

            def __init__(self, config: Any, corpus: SkillCorpus, seed: int, progress: bool) -> None:
                assert config.encoder == "the-retriever"
                self.size = len(corpus)

            def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
                vectors = np.eye(self.size, self.size + 8, dtype=np.float32)
                for number, (row, (other, cosine)) in enumerate((near or {}).items()):
                    vectors[row] = cosine * vectors[other]
                    vectors[row, self.size + number] = np.sqrt(1 - cosine**2)
                return vectors

            def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
                documents = self.encode_documents(texts)
                # solved for, so that the inner products fall by rank whatever the documents' vectors are
                wanted = np.zeros(self.size)
                wanted[list(order)] = np.linspace(1, 0.5, len(order))
                solved = np.linalg.lstsq(documents, wanted, rcond=None)[0]
                return np.tile(solved.astype(np.float32), (len(texts), 1))

        monkeypatch.setattr(groups_module, "PipelineEncoder", Encoder)

    return install


def single(work: Workbench, *positives: str) -> None:
    """Stage-I records of one target each."""
    records = [
        Stage1Record(
            f"r{i}", f"request number {i}", "The user needs skills for it.", s, "text", ("no/one",), ("t",), "c"
        )
        for i, s in enumerate(positives)
    ]
    work.put("records", "provenance.jsonl", [{"record_id": r.record_id, "teacher": "offline"} for r in records])
    write_records(work.folder / "records" / "stage1.jsonl", records)
    work.put("task_audit", "tasks.jsonl", [])


RETRIEVER = "reranker.retriever=the-retriever"


def test_a_group_is_the_retrievers_list_in_its_order_with_no_target_put_in(bench: Any, retrieve: Any) -> None:
    work = bench([own_skill(i) for i in range(30)])
    ids = work.ids
    single(work, ids[9])
    audited = {
        "positives": {ids[4]: 1.0, ids[29]: 1.0},
        "labels": {ids[4]: "strong_positive", ids[29]: "strong_positive"},
    }
    work.put("task_audit", "tasks.jsonl", [task(7, [ids[4], ids[29]], **audited)])
    retrieve(range(19, -1, -1))
    report, (one, several) = work.run(build_groups, RETRIEVER)
    assert [c["skill_id"] for c in one["candidates"]] == ids[19::-1]
    assert {c["skill_id"]: c["weight"] for c in one["candidates"] if c["weight"]} == {ids[9]: 1.0}
    assert [c["skill_id"] for c in several["candidates"]] == ids[19::-1]  # 29 is a target and was not retrieved
    assert {c["skill_id"] for c in several["candidates"] if c["weight"]} == {ids[4]}
    assert (one["source"], several["source"], several["teacher"]) == ("single", "multi", "offline")
    assert report.counts == {"groups": 2, "single": 1, "multi": 1}
    assert report.notes["target_in_depth"] == 1.0


def test_a_request_whose_target_is_not_retrieved_has_no_group(bench: Any, retrieve: Any) -> None:
    work = bench([own_skill(i) for i in range(30)])
    single(work, work.ids[0], work.ids[25])
    retrieve(range(20))
    report, rows = work.run(build_groups, RETRIEVER)
    assert [row["record_id"] for row in rows] == ["r0"]
    assert report.rejected == {"no_target_retrieved": 1}
    assert report.notes["target_in_depth"] == 0.5


@pytest.mark.parametrize(("depth", "kept"), [(9, 1), (8, 0)])
def test_a_group_needs_eight_negatives(bench: Any, retrieve: Any, depth: int, kept: int) -> None:
    work = bench([own_skill(i) for i in range(30)])
    single(work, work.ids[0])
    retrieve(range(20))
    if kept:
        assert len(work.run(build_groups, RETRIEVER, f"reranker.depth={depth}")[1]) == 1
    else:
        with pytest.raises(
            PipelineError, match=r"no candidate group is left of 1 queries; reasons: {'few_negatives': 1}"
        ):
            work.run(build_groups, RETRIEVER, f"reranker.depth={depth}")


def alike(name: str) -> Skill:
    """A skill that overlaps with skill 0 in one way."""
    target = own_skill(0)
    if name == "same_name":
        return own_skill(5, name="NAME0!")
    if name == "same_id":
        return own_skill(5, skill_id="c0/K0/")
    if name == "same_text":
        return own_skill(5, body=f"{words('b0w', 25)} {words('b5w', 5)}")
    if name == "contained":
        return own_skill(5, body=f"{words('b5w', 90)} {target.body}")
    return own_skill(5)


@pytest.mark.parametrize("reason", ["same_name", "same_id", "same_text", "contained", "near_vector"])
@pytest.mark.parametrize("retrieved", [True, False])
def test_a_negative_that_overlaps_a_target_is_taken_out(
    bench: Any, retrieve: Any, reason: str, retrieved: bool
) -> None:
    skills = [own_skill(i) for i in range(30)]
    skills[5] = alike(reason)
    work = bench(skills)
    ids = work.ids
    single(work, ids[1])
    audited = {"positives": {ids[0]: 1.0, ids[1]: 1.0}, "labels": {}}
    work.put("task_audit", "tasks.jsonl", [task(0, ids[:2], **audited)])
    near = {5: (0, 0.86)} if reason == "near_vector" else {5: (0, 0.84)}
    retrieve(range(20) if retrieved else range(1, 21), near)  # a target that was not retrieved counts as well
    report, (other, group) = work.run(build_groups, RETRIEVER)
    assert ids[5] in [c["skill_id"] for c in other["candidates"]]  # of another target it is a negative like any other
    assert ids[5] not in [c["skill_id"] for c in group["candidates"]]
    assert len(group["candidates"]) == 19
    assert report.notes["negatives_removed"] == {reason: 1}


def test_targets_that_overlap_each_other_both_stay(bench: Any, retrieve: Any) -> None:
    skills = [own_skill(i) for i in range(30)]
    skills[5] = alike("same_text")
    work = bench(skills)
    single(work, work.ids[20])
    audited = {"positives": {work.ids[0]: 1.0, work.ids[5]: 1.0}, "labels": {}}
    work.put("task_audit", "tasks.jsonl", [task(0, [work.ids[0], work.ids[5]], **audited)])
    retrieve(range(20))
    _, (group,) = work.run(build_groups, RETRIEVER)
    assert sum(c["weight"] for c in group["candidates"]) == 2.0


def test_a_relation_audited_as_half_useful_is_neither_positive_nor_negative(bench: Any, retrieve: Any) -> None:
    work = bench([own_skill(i) for i in range(30)])
    ids = work.ids
    single(work, ids[20])
    labels = dict(
        zip(ids[:4], ("strong_positive", "auxiliary_positive", "borderline_positive", "weak_generic"), strict=True)
    )
    work.put("task_audit", "tasks.jsonl", [task(0, ids[:4], positives={ids[0]: 1.0}, labels=labels)])
    retrieve(range(20))
    report, (group,) = work.run(build_groups, RETRIEVER)
    weights = {c["skill_id"]: c["weight"] for c in group["candidates"]}
    assert (weights[ids[0]], weights[ids[3]]) == (1.0, 0.0)
    assert not {ids[1], ids[2]} & set(weights)
    assert report.notes["negatives_removed"] == {"audited_as_unclear": 2}


def test_groups_need_a_retriever(bench: Any) -> None:
    work = bench([own_skill(i) for i in range(3)])
    single(work, work.ids[0])
    with pytest.raises(PipelineError, match=r"reranker\.retriever is empty; expected the exported Stage-II retriever"):
        work.run(build_groups)


def test_the_whole_way_is_the_same_bytes_each_time(build: Build) -> None:
    first, second = build("reranker.tasks=12", out="a"), build("reranker.tasks=12", out="b")
    for pipeline in (first, second):
        pipeline.run(until=["task_audit"])
    files = [pipeline.folder("task_audit") / "tasks.jsonl" for pipeline in (first, second)]
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = [row for _, row in read_rows(files[0])]
    assert rows
    assert all(row["teacher"] == "offline" and len(row["negative_ids"]) == 10 for row in rows)
