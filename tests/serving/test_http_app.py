"""The HTTP interface: what it answers, and that whatever is wrong with a request gets the one shape of errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from data_pipeline.sample_library import load_sample_corpus
from serving import SkillSearcher

JSON = {"content-type": "application/json"}


def error_of(response) -> dict:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "field", "similar", "details"}
    assert "Traceback" not in response.text
    return body["error"]


def test_a_search_gives_what_the_searcher_gives(served: TestClient, sample_index: Path) -> None:
    query = "which columns of this table are unreliable?"
    searcher = SkillSearcher.open(sample_index)
    body = served.post("/search", json={"query": query, "k": 3}).json()
    assert (body["index"], body["version"]) == ("default", searcher.version)
    expected = searcher.search(query, 3)
    assert [(hit["skill_id"], hit["score"]) for hit in body["hits"]] == [(hit.skill_id, hit.score) for hit in expected]
    assert set(body["hits"][0]) == {"skill_id", "name", "description", "domain", "score", "scores"}


def test_a_batch_has_a_ranking_for_each_query_in_order(served: TestClient) -> None:
    queries = ["merge two PDF files", "plan a database migration"]
    body = served.post("/search/batch", json={"queries": queries, "k": 2, "index": "tiny", "hybrid": True}).json()
    singly = [
        served.post("/search", json={"query": query, "k": 2, "index": "tiny", "hybrid": True}).json()
        for query in queries
    ]
    assert [[hit["skill_id"] for hit in row] for row in body["results"]] == [
        [hit["skill_id"] for hit in one["hits"]] for one in singly
    ]
    assert set(body["results"][0][0]["scores"]) >= {"fused"}


def test_a_domain_narrows_the_search(served: TestClient) -> None:
    domain = load_sample_corpus()[0].skill_id.partition("/")[0]
    hits = served.post("/search", json={"query": "report", "k": 50, "domain": domain}).json()["hits"]
    assert {hit["domain"] for hit in hits} == {domain}


def test_a_skill_whose_id_has_slashes_is_found_whole(served: TestClient) -> None:
    skill = load_sample_corpus()[0]
    assert "/" in skill.skill_id
    body = served.get(f"/skills/{skill.skill_id}", params={"index": "tiny"}).json()
    assert (body["skill_id"], body["body"], body["index"]) == (skill.skill_id, skill.body, "tiny")
    assert served.get("/skills/" + skill.skill_id.replace("/", "%2F")).json()["body"] == skill.body


def test_indexes_are_described(served: TestClient) -> None:
    default, tiny = served.get("/indexes").json()["indexes"]
    assert (default["name"], default["default"], default["model"], default["kind"]) == ("default", True, None, "bm25")
    assert (tiny["name"], tiny["default"], tiny["kind"]) == ("tiny", False, "flat")
    assert sum(default["domains"].values()) == default["n_skills"] == len(load_sample_corpus())


def test_a_misspelt_id_gets_404_with_the_close_ones(served: TestClient) -> None:
    skill_id = load_sample_corpus().ids[0]
    response = served.get(f"/skills/{skill_id}x")
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "unknown_skill"
    assert error["similar"][0] == skill_id


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "a%00b/../c",
        "a%0Ab",
        "x" * 5000,
        "%ff%fe",
        "%F0%9F%98%80",
        "//etc/passwd",
        "",
    ],
)
def test_path_tricks_are_ids_that_do_not_exist(served: TestClient, path: str) -> None:
    response = served.get(f"/skills/{path}")
    assert response.status_code == 404
    assert "root:" not in response.text
    assert len(error_of(response)["message"]) < 300


@pytest.mark.parametrize(
    "body, status, field",
    [
        (b'{"query": "x"', 400, None),
        (b"", 422, "body"),
        (b"\xff\xfe\x00", 400, None),
        (b"[" * 50_000, 400, None),
        (b'["query"]', 422, "body"),
        (b"null", 422, "body"),
        (b'{"k": 3}', 422, "query"),
        (b'{"query": 3}', 422, "query"),
        (b'{"query": ""}', 422, "query"),
        (b'{"query": " \\n\\t "}', 422, "query"),
        (b'{"query": "\\ud800"}', 422, "query"),
        (b'{"query": "x", "k": 0}', 422, "k"),
        (b'{"query": "x", "k": 101}', 422, "k"),
        (b'{"query": "x", "k": "3"}', 422, "k"),
        (b'{"query": "x", "k": 3.5}', 422, "k"),
        (b'{"query": "x", "k": NaN}', 422, "k"),
        (b'{"query": "x", "k": 1e400}', 422, "k"),
        (b'{"query": "x", "k": ' + b"9" * 5000 + b"}", 400, None),
        (b'{"query": "x", "hybrid": "yes"}', 422, "hybrid"),
        (b'{"query": "x", "rerank_depth": 101}', 422, "rerank_depth"),
        (b'{"query": "x", "colour": "red"}', 422, "colour"),
        (json.dumps({"query": "x" * 8193}).encode(), 422, "query"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
def test_a_wrong_body_is_named_by_field(served: TestClient, body: bytes, status: int, field: str | None) -> None:
    response = served.post("/search", content=body, headers=JSON)
    assert response.status_code == status
    assert error_of(response)["field"] == field


def test_several_wrong_fields_are_all_named(served: TestClient) -> None:
    error = error_of(served.post("/search", json={"query": "x", "k": 0, "domain": "", "nope": 1}))
    assert [entry["field"] for entry in error["details"]] == ["k", "domain", "nope"]


def test_a_body_that_is_not_said_to_be_json_is_refused(served: TestClient) -> None:
    # A page elsewhere may send text/plain without asking first: it must not work.
    response = served.post("/search", content=b'{"query": "x"}', headers={"content-type": "text/plain"})
    assert response.status_code == 422
    assert "application/json" in error_of(response)["message"]


def test_too_many_queries_are_refused_with_the_limit(served: TestClient) -> None:
    response = served.post("/search/batch", json={"queries": ["x"] * 129})
    assert response.status_code == 422
    assert "128" in error_of(response)["message"]


@pytest.mark.parametrize(
    "query", ["🙂", "‮abc", "a\u0000b", "ﷺ" * 100, "é" * 8192, "\\u0000", "'; drop table skills; --", "‍"]
)
@pytest.mark.parametrize("index", ["default", "tiny"])
def test_odd_text_is_searched_like_any_other(served: TestClient, query: str, index: str) -> None:
    response = served.post("/search", json={"query": query, "k": 2, "index": index})
    assert response.status_code == 200
    assert len(response.json()["hits"]) == 2


@pytest.mark.parametrize(
    "options, status, code",
    [
        ({"index": "defalt"}, 404, "unknown_index"),
        ({"domain": "no-such-domain"}, 404, "unknown_domain"),
        ({"rerank": True}, 409, "no_reranker"),
        ({"hybrid": True}, 409, "refused_by_index"),
    ],
)
def test_what_the_index_lacks_is_said(served: TestClient, options: dict, status: int, code: str) -> None:
    response = served.post("/search", json={"query": "x", **options})
    assert response.status_code == status
    assert error_of(response)["code"] == code


def test_an_unknown_path_and_a_wrong_method_have_the_shape_too(served: TestClient) -> None:
    assert error_of(served.get("/searches"))["code"] == "unknown_path"
    wrong = served.get("/search")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert "POST" in error_of(wrong)["message"]


def test_a_defect_shows_no_detail(serve_with) -> None:
    class Broken:
        async def search(self, jobs):
            raise KeyError("/secret/path")

        async def status(self):
            return []

    response = serve_with(backend=Broken()).post("/search", json={"query": "x"})
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal"
    assert "secret" not in response.text


def test_the_page_has_security_headers_and_the_api_is_not_cached(served: TestClient) -> None:
    headers = served.post("/search", json={"query": "x"}).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (
        "access-control-allow-origin" not in served.get("/healthz", headers={"origin": "https://other.example"}).headers
    )


def test_the_page_is_served_at_the_root_with_its_files(served: TestClient) -> None:
    page = served.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src" not in page.headers["content-security-policy"]  # default-src 'self': no inline scripts
    files = re.findall(r'(?:href|src)="([^":]+\.(?:js|css))"', page.text)
    assert files
    assert [served.get(f"/{name}").status_code for name in files] == [200] * len(files)
    assert served.get("/../http_app.py").status_code == 404
    assert served.get("/%2e%2e/settings.py").status_code == 404


def test_an_allowed_origin_may_call(serve_with) -> None:
    client = serve_with(cors_origins=("https://tools.example",), token_digests=("0" * 64,))
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    answer = client.options("/search", headers={"origin": "https://tools.example", **asked})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://tools.example")
    refused = client.options("/search", headers={"origin": "https://other.example", **asked})
    assert "access-control-allow-origin" not in refused.headers


def test_metrics_count_requests_by_route_and_status(serve_with) -> None:
    client = serve_with()
    for body in ({"query": "x"}, {"query": "y"}, {"query": ""}):
        client.post("/search", json=body)
    client.get("/skills/nope/1")
    text = client.get("/metrics").text
    assert 'skillreason_requests_total{method="POST",route="/search",status="200"} 2.0' in text
    assert 'skillreason_requests_total{method="POST",route="/search",status="422"} 1.0' in text
    assert 'skillreason_requests_total{method="GET",route="/skills/{skill_id:path}",status="404"} 1.0' in text
    assert 'skillreason_errors_total{code="unknown_skill"} 1.0' in text
    assert 'skillreason_phase_seconds_count{phase="queue"} 2.0' in text
    assert "skillreason_batch_queries_sum 2.0" in text
    assert f'skillreason_index_skills{{index="default",replica="local"}} {len(load_sample_corpus())}.0' in text


def test_health_says_ready_with_versions_then_draining(serve_with, sample_index: Path) -> None:
    client = serve_with()
    ready = client.get("/healthz")
    assert ready.status_code == 200
    assert ready.json()["replicas"] == [
        {"replica": "local", "versions": {"default": SkillSearcher.open(sample_index).version}}
    ]
    client.app.state.service.draining = True  # type: ignore[attr-defined]
    assert client.get("/healthz").status_code == 503
    assert client.get("/healthz").json()["status"] == "draining"
    refused = client.post("/search", json={"query": "x"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_health_is_unavailable_where_no_replica_answers(serve_with) -> None:
    class Gone:
        async def search(self, jobs):
            raise ConnectionError

        async def status(self):
            raise ConnectionError

    client = serve_with(backend=Gone())
    assert client.get("/healthz").status_code == 503
    assert client.get("/healthz").json()["status"] == "unavailable"
    assert client.get("/indexes").status_code == 503
