"""The engine of a replica: shared encoding, versions under load, and what a broken new version does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from data_pipeline.sample_library import load_sample_corpus
from serving import SkillSearcher
from serving.engine import JobResult, SearchEngine, SearchJob
from serving.index_build import build_index
from serving.problems import Problem
from serving.settings import ServeSettings

QUERIES = ["merge two PDF files", "plan a database migration", "check a contract"]


class CountingSearcher(SkillSearcher):
    """Remembers what went through the encoder together."""

    passes: list[list[str]]

    def encode(self, queries: Sequence[str]):
        self.passes.append(list(queries))
        return super().encode(queries)


def test_jobs_with_different_options_share_one_encoder_pass_and_get_their_own_answers(model_index: Path) -> None:
    passes: list[list[str]] = []

    def open_counting(folder: str) -> SkillSearcher:
        searcher = CountingSearcher.open(folder)
        searcher.passes = passes  # type: ignore[attr-defined]
        return searcher

    engine = SearchEngine(ServeSettings({"tiny": str(model_index)}), open_searcher=open_counting)
    domain = load_sample_corpus()[0].skill_id.partition("/")[0]
    jobs = [
        SearchJob("tiny", (QUERIES[0],), k=3),
        SearchJob("tiny", (QUERIES[1], QUERIES[0]), k=5, hybrid=True),
        SearchJob("tiny", (QUERIES[2],), k=3),
        SearchJob("tiny", (QUERIES[2],), k=2, domain=domain),
    ]
    outcome = engine.search(jobs)
    assert passes == [QUERIES]
    plain = SkillSearcher.open(model_index)
    for job, result in zip(jobs, outcome.results, strict=True):
        expected = plain.search_batch(job.queries, job.k, hybrid=job.hybrid, domain=job.domain)
        assert isinstance(result, JobResult)
        assert [[hit["skill_id"] for hit in row] for row in result.rankings] == [
            [hit.skill_id for hit in row] for row in expected
        ]
    assert set(outcome.phases) == {"encode", "search"}


def test_one_refused_job_does_not_touch_the_others(sample_index: Path) -> None:
    engine = SearchEngine(ServeSettings({"default": str(sample_index)}))
    good, unknown, refused = engine.search(
        [SearchJob("default", ("x",)), SearchJob("other", ("x",)), SearchJob("default", ("x",), hybrid=True)]
    ).results
    assert isinstance(good, JobResult)
    assert isinstance(unknown, Problem)
    assert (unknown.status, unknown.field) == (404, "index")
    assert isinstance(refused, Problem)
    assert refused.status == 409


def test_a_broken_index_is_named_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"index 'mine' \\({tmp_path}\\)"):
        SearchEngine(ServeSettings({"mine": str(tmp_path)}))


def test_a_new_version_is_opened_and_counted(own_index: Path) -> None:
    engine = SearchEngine(ServeSettings({"default": str(own_index)}))
    before = engine.status().indexes["default"]
    engine.reload()
    assert engine.status().indexes["default"] == before
    built = build_index(own_index, list_of_skills(5), "bm25")
    engine.reload()
    after = engine.status().indexes["default"]
    assert (after.version, after.info["n_skills"], after.reloads) == (built.info.version, 5, 1)


def test_a_damaged_new_version_leaves_the_old_one_serving_and_is_counted_once(own_index: Path) -> None:
    engine = SearchEngine(ServeSettings({"default": str(own_index)}))
    before = engine.status().indexes["default"].version
    built = build_index(own_index, list_of_skills(5), "bm25")
    skills = own_index / "versions" / built.info.version / "skills.jsonl"
    skills.write_bytes(skills.read_bytes()[:-10])
    engine.reload()
    engine.reload()
    status = engine.status().indexes["default"]
    assert (status.version, status.failed_reloads, status.reloads) == (before, 1, 0)
    assert "skills.jsonl" in str(status.error)
    assert isinstance(engine.search([SearchJob("default", ("x",))]).results[0], JobResult)
    mended = build_index(own_index, list_of_skills(6), "bm25")
    engine.reload()
    assert (engine.status().indexes["default"].version, engine.status().indexes["default"].error) == (
        mended.info.version,
        None,
    )


def test_the_watcher_opens_a_new_version_by_itself(own_index: Path) -> None:
    engine = SearchEngine(ServeSettings({"default": str(own_index)}))
    engine.watch(0.02)
    try:
        built = build_index(own_index, list_of_skills(5), "bm25")
        for _ in range(500):
            if engine.status().indexes["default"].version == built.info.version:
                break
            threading.Event().wait(0.01)
        assert engine.status().indexes["default"].version == built.info.version
    finally:
        engine.close()


def test_a_reload_over_http_says_what_was_opened_and_what_could_not_be(
    serve_with: Callable[..., TestClient], own_index: Path
) -> None:
    client = serve_with(index=own_index)
    assert [one["reloaded"] for one in client.post("/reload").json()["outcomes"]] == [False]
    built = build_index(own_index, list_of_skills(5), "bm25")
    outcome = client.post("/reload").json()["outcomes"][0]
    assert (outcome["version"], outcome["reloaded"]) == (built.info.version, True)
    (own_index / "current").write_text("nonsense\n")
    response = client.post("/reload")
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "reload_failed"
    assert client.post("/search", json={"query": "x"}).json()["version"] == built.info.version


def test_searches_during_reloads_all_succeed_and_each_comes_from_the_version_it_names(
    serve_with: Callable[..., TestClient], own_index: Path
) -> None:
    client = serve_with(index=own_index)
    skills_of = {client.get("/indexes").json()["indexes"][0]["version"]: len(load_sample_corpus())}
    seen: dict[str, set[int]] = {}
    failures: list[str] = []
    done = threading.Event()

    def search() -> None:
        while not done.is_set():
            response = client.post("/search", json={"query": "report", "k": 100})
            if response.status_code != 200:
                failures.append(response.text)
                return
            body = response.json()
            seen.setdefault(body["version"], set()).add(len(body["hits"]))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for size in (5, 9, 7, 11):
        skills_of[build_index(own_index, list_of_skills(size), "bm25").info.version] = size
        assert client.post("/reload").status_code == 200
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(seen) > 1
    assert all(sizes == {min(100, skills_of[version])} for version, sizes in seen.items())


def list_of_skills(number: int):
    from data_pipeline import SkillCorpus

    return SkillCorpus(load_sample_corpus()[:number])
