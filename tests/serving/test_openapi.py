"""Requests that schemathesis makes from the OpenAPI document: what it allows is answered, the rest refused, all as documented."""

from __future__ import annotations

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from serving.auth import token_digest
from serving.backends import LocalBackend
from serving.engine import SearchEngine
from serving.http_app import build_http
from serving.settings import ServeSettings

TOKEN = "a-token-that-is-long-enough"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="session")
def document(sample_index: Path, model_index: Path):
    served = {"default": str(sample_index), "tiny": str(model_index)}
    options = ServeSettings(served, token_digests=(token_digest(TOKEN),), max_k=20, max_queries=5, max_query_chars=200)
    app = build_http(options, LocalBackend(SearchEngine(options)))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/search"),
        ("POST", "/search/batch"),
        ("GET", "/skills/{skill_id}"),
        ("GET", "/indexes"),
        ("POST", "/reload"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
    ],
)
def test_an_operation_keeps_to_its_document(document, method: str, path: str, mode: GenerationMode) -> None:
    operation = document[path][method]

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=HEADERS)

    try:
        check()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE  # an operation without parameters has nothing that could be wrong


def test_every_operation_is_among_the_tested_ones(document) -> None:
    assert sum(1 for _ in document.get_all_operations()) == 7
