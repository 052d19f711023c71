"""Searches of an index: those of ``skillreason search``, exact within a domain, from many threads and across versions."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from evaluation.search import search
from models.encoder import load_encoder
from retrieval import BM25Index, fuse
from retrieval.ranking import Ranking
from serving import SearchHit, SkillNotFoundError, SkillSearcher, build_index
from serving.index import ModelMismatchError, open_index

REQUESTS = (
    "our checkout test fails now and then",
    "which rows of these two tables are the same customer",
    "make the subtitles fit the speech again",
)


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    load_sample_corpus().to_jsonl(path)
    return path


@pytest.fixture(scope="module")
def dense(model_index: Path) -> SkillSearcher:
    return SkillSearcher.open(model_index)


@pytest.fixture(scope="module")
def lexical(sample_index: Path) -> SkillSearcher:
    return SkillSearcher.open(sample_index)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    from models.reranker import Reranker, export_reranker
    from models.reranker_format import RerankerFormat

    form = RerankerFormat(yes="y", no="n", body_chars=20, max_length=600)
    return export_reranker(Reranker.load(tiny_folder, form=form), form, tmp_path_factory.mktemp("reranker") / "export")


def ids(hits: Sequence[SearchHit]) -> list[str]:
    return [hit.skill_id for hit in hits]


# -- the same as skillreason search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_results_are_those_of_evaluation_search(dense, encoder_folder, encoder_cache, corpus_file, hybrid, k):
    for request in REQUESTS:
        expected = search(encoder_folder, corpus_file, request, k, hybrid, encoder_cache, fusion_weight=0.5)
        found = dense.search(request, k, hybrid=hybrid)
        assert [(hit.skill_id, hit.score) for hit in found] == [(hit.skill_id, hit.score) for hit in expected]


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_results_of_bm25_are_those_of_evaluation_search(lexical, corpus_file, k):
    for request in REQUESTS:
        expected = search("bm25", corpus_file, request, k)
        found = lexical.search(request, k)
        assert [(hit.skill_id, hit.score) for hit in found] == [(hit.skill_id, hit.score) for hit in expected]


@pytest.mark.parametrize(("k", "depth"), [(3, 20), (20, 5), (8, 8)])
def test_reranked_results_are_those_of_evaluation_search(
    model_index, reranker, encoder_folder, encoder_cache, corpus_file, k, depth
):
    searcher = SkillSearcher.open(model_index, reranker=reranker)
    options = {"fusion_weight": 0.5, "rerank": reranker, "rerank_depth": depth}
    expected = search(encoder_folder, corpus_file, REQUESTS[0], k, True, encoder_cache, **options)
    found = searcher.search(REQUESTS[0], k, hybrid=True, rerank=True, rerank_depth=depth)
    assert ids(found) == [hit.skill_id for hit in expected]
    np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=1e-5)
    assert [hit.skill_id for hit in found if "rerank" in hit.scores] == ids(found)[: min(k, depth)]


def test_a_hit_carries_the_skill_and_its_domain(lexical):
    hit = lexical.search(REQUESTS[0], 1)[0]
    skill = load_sample_corpus().get(hit.skill_id)
    assert (hit.name, hit.description, hit.domain) == (skill.name, skill.description, hit.skill_id.split("/")[0])


# -- scores by retriever --------------------------------------------------------------------------------------------------


def test_scores_of_a_hybrid_are_those_of_its_retrievers(dense, encoder_folder):
    corpus = load_sample_corpus()
    cosines = load_encoder(encoder_folder).encode_documents(corpus.documents()) @ dense.encode([REQUESTS[0]])[0]
    lexical = BM25Index(corpus.ids, corpus.documents()).scores(REQUESTS[0])
    for hit in dense.search(REQUESTS[0], 10, hybrid=True):
        row = corpus.position(hit.skill_id)
        assert hit.scores["dense"] == pytest.approx(cosines[row], abs=1e-5)
        assert hit.scores.get("bm25", 0.0) == pytest.approx(lexical[row])
        assert hit.score == hit.scores["fused"]


def test_a_search_by_one_retriever_has_its_score_alone(dense, lexical):
    assert {tuple(hit.scores) for hit in dense.search(REQUESTS[0])} == {("dense",)}
    assert {tuple(hit.scores) for hit in lexical.search(REQUESTS[0])} == {("bm25",)}


def test_a_batch_finds_what_single_requests_find(dense):
    batch = dense.search_batch(REQUESTS, 5, hybrid=True)
    assert [ids(hits) for hits in batch] == [ids(dense.search(request, 5, hybrid=True)) for request in REQUESTS]
    assert dense.search_batch([], 5) == []


def test_given_embeddings_are_not_computed_again(dense, monkeypatch):
    expected = dense.search_batch(REQUESTS, 5)
    embeddings = dense.encode(REQUESTS)
    monkeypatch.setattr(dense, "_encode", None)
    timings: dict[str, float] = {}
    assert dense.search_batch(REQUESTS, 5, embeddings=embeddings, timings=timings) == expected
    assert list(timings) == ["search"]
    with pytest.raises(ValueError, match="3 embeddings for 1 requests"):
        dense.search_batch(REQUESTS[:1], 5, embeddings=embeddings)


# -- domains --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_within_a_domain_the_ranking_is_that_of_its_skills_alone(kind, encoder_folder, encoder_cache, tmp_path):
    build_index(
        tmp_path / "index", load_sample_corpus(), encoder_folder, kind=kind, fusion_weight=0.4, cache_dir=encoder_cache
    )
    searcher = SkillSearcher.open(tmp_path / "index")
    corpus = load_sample_corpus()
    mine = [i for i, skill_id in enumerate(corpus.ids) if skill_id.startswith("media/")]
    encoder = load_encoder(encoder_folder)
    documents = encoder.encode_documents(corpus.documents()).astype(np.float64)
    index = BM25Index(corpus.ids, corpus.documents())
    for request in REQUESTS:
        query = encoder.encode_queries([request])[0]
        cosines = documents[mine] @ query.astype(np.float64)
        dense = [corpus.ids[mine[i]] for i in np.argsort(-cosines, kind="stable")]
        scores = index.scores(request)[mine]
        lexical = [corpus.ids[mine[i]] for i in np.argsort(-scores, kind="stable") if scores[i] > 0]
        fused = fuse(Ranking([dense], np.zeros((1, 0))), Ranking([lexical], np.zeros((1, 0))), 0.4, 50).ids[0]
        assert ids(searcher.search(request, 50, domain="media")) == dense
        assert ids(searcher.search(request, 5, domain="media")) == dense[:5]
        assert ids(searcher.search(request, 50, domain="media", hybrid=True)) == fused


def test_bm25_within_a_domain_ranks_all_of_its_skills(lexical):
    whole = ids(lexical.search(REQUESTS[1], 1000))
    assert ids(lexical.search(REQUESTS[1], 1000, domain="finance")) == [s for s in whole if s.startswith("finance/")]


def test_a_domain_that_no_skill_has_is_refused_with_those_there_are(lexical):
    with pytest.raises(ValueError, match="no skill of domain 'cooking'; expected one of: ai-ml, data-analytics, "):
        lexical.search("bread", domain="cooking")


# -- skills by id ---------------------------------------------------------------------------------------------------------


def test_a_skill_is_given_whole(lexical):
    assert lexical.skill("finance/dcf-equity-valuation") == load_sample_corpus().get("finance/dcf-equity-valuation")


def test_a_misspelt_id_is_told_those_that_it_may_have_meant(lexical):
    with pytest.raises(
        SkillNotFoundError, match=r"^no skill 'finance/dcf-equity-valuaton' among the 114 skills"
    ) as caught:
        lexical.skill("finance/dcf-equity-valuaton")
    assert caught.value.close[0] == "finance/dcf-equity-valuation"
    with pytest.raises(SkillNotFoundError, match=r"skills of this index$"):
        lexical.skill("zzz")


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": " \n"}, "the request is empty"),
        ({"query": "x", "k": 0}, "k is 0"),
        ({"query": "x", "hybrid": True}, "this index was built with bm25 alone"),
        ({"query": "x", "rerank": True}, "no reranker is open"),
    ],
)
def test_impossible_searches_are_refused(lexical, arguments, message):
    with pytest.raises(ValueError, match=message):
        lexical.search(**arguments)


def test_an_empty_request_of_a_batch_is_named(lexical):
    with pytest.raises(ValueError, match="request 1 of 2 is empty"):
        lexical.search_batch(["a", ""])
    with pytest.raises(ValueError, match="takes a list of requests"):
        lexical.search_batch("a")


def test_a_hybrid_without_a_weight_is_refused(encoder_folder, encoder_cache, tmp_path):
    build_index(tmp_path / "index", load_sample_corpus(), encoder_folder, cache_dir=encoder_cache)
    with pytest.raises(ValueError, match="weight of the hybrid is unknown"):
        SkillSearcher.open(tmp_path / "index").search("x", hybrid=True)
    opened = SkillSearcher.open(tmp_path / "index", fusion_weight=1.0)
    assert opened.info.fusion_weight == 1.0
    assert ids(opened.search("x", hybrid=True)) == ids(opened.search("x"))


def test_a_rerank_depth_below_one_is_refused(model_index, reranker):
    with pytest.raises(ValueError, match="rerank depth is 0"):
        SkillSearcher.open(model_index, reranker=reranker).search("x", rerank=True, rerank_depth=0)


@pytest.mark.parametrize("request_text", ["\ud800 half a pair", "\x00 null", "\u202e\u0301 \U0001f9ea", "x" * 100_000])
def test_odd_requests_are_answered(dense, request_text):
    assert len(dense.search(request_text, 5, hybrid=True)) == 5


# -- opening and reopening ------------------------------------------------------------------------------------------------


def test_the_recorded_reranker_is_opened_with_the_index(encoder_folder, encoder_cache, reranker, tmp_path):
    corpus = load_sample_corpus()
    build_index(tmp_path / "index", corpus, encoder_folder, reranker=reranker, cache_dir=encoder_cache)
    assert "rerank" in SkillSearcher.open(tmp_path / "index").search("x", rerank=True)[0].scores
    without = SkillSearcher.open(tmp_path / "index", load_reranker=False)
    assert not without.info.has_reranker
    with pytest.raises(ValueError, match="no reranker is open"):
        without.search("x", rerank=True)


def test_a_moved_model_is_given_by_its_new_place(encoder_folder, encoder_cache, tmp_path):
    model = shutil.copytree(encoder_folder, tmp_path / "model")
    build_index(tmp_path / "index", load_sample_corpus(), model, cache_dir=encoder_cache)
    Path(model).rename(tmp_path / "moved")
    with pytest.raises(ModelMismatchError, match="cannot be found"):
        SkillSearcher.open(tmp_path / "index")
    assert SkillSearcher.open(tmp_path / "index", model=tmp_path / "moved").search("x")


def small(*names: str) -> SkillCorpus:
    return SkillCorpus(Skill(name, name, f"about {name}", "") for name in names)


def test_a_newer_version_is_opened_when_asked_for(tmp_path):
    build_index(tmp_path / "index", small("apple"), "bm25")
    searcher = SkillSearcher.open(tmp_path / "index")
    first = searcher.version
    assert searcher.reload() is False
    pinned = searcher.pinned()
    second = build_index(tmp_path / "index", small("apple", "pear"), "bm25").info.version
    assert ids(searcher.search("pear apple")) == ["apple"]
    assert searcher.reload() is True
    assert (first, searcher.version) == (pinned.version, second)
    assert ids(searcher.search("pear", 1)) == ["pear"]
    assert ids(pinned.search("pear")) == ["apple"]


def test_a_newer_version_that_cannot_be_opened_leaves_the_old_one(tmp_path):
    build_index(tmp_path / "index", small("apple"), "bm25")
    searcher = SkillSearcher.open(tmp_path / "index")
    newer = build_index(tmp_path / "index", small("pear"), "bm25").info.version
    (tmp_path / "index" / "versions" / newer / "skills.jsonl").write_text("{}")
    with pytest.raises(ValueError, match=r"skills\.jsonl"):
        searcher.reload()
    assert ids(searcher.search("apple")) == ["apple"]


def test_reloading_takes_another_model_where_the_version_has_one(encoder_folder, encoder_cache, tmp_path):
    build_index(tmp_path / "index", small("apple", "pear"), "bm25")
    searcher = SkillSearcher.open(tmp_path / "index")
    build_index(tmp_path / "index", small("apple", "pear"), encoder_folder, cache_dir=encoder_cache)
    assert searcher.reload() is True
    assert set(searcher.search("apple")[0].scores) == {"dense"}


def test_threads_find_what_one_thread_finds(dense):
    requests = [f"{request} {i}" for request in REQUESTS for i in range(8)]
    expected = [dense.search(request, 5, hybrid=True) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda request: dense.search(request, 5, hybrid=True), requests))
    assert found == expected


def test_readers_see_whole_versions_while_a_writer_works(tmp_path):
    def numbered(n: int) -> SkillCorpus:
        return SkillCorpus(Skill(f"v{n}/s{i}", "word", f"word of version {n}", "") for i in range(20))

    build_index(tmp_path / "index", numbered(0), "bm25", keep=2)
    searcher = SkillSearcher.open(tmp_path / "index")
    finished = threading.Event()
    seen: set[str] = set()

    def read(number: int) -> None:
        while not finished.is_set():
            if number == 0:
                searcher.reload()
            if number == 1:  # a process that starts just now
                domains = {skill.skill_id.split("/")[0] for skill in open_index(tmp_path / "index").skills}
            else:
                domains = {hit.domain or "" for hit in searcher.search("word", 20)}
            assert len(domains) == 1
            seen.update(domains)

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, number) for number in range(4)]
        for n in range(1, 11):
            build_index(tmp_path / "index", numbered(n), "bm25", keep=2)
        finished.set()
        for reader in readers:
            reader.result()
    assert len(seen) > 2
