"""Indexes of the sample library, and the HTTP application in this process."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from data_pipeline.sample_library import load_sample_corpus
from serving.backends import LocalBackend
from serving.engine import SearchEngine
from serving.http_app import build_http
from serving.index_build import build_index
from serving.settings import ServeSettings

LOCAL: dict[str, Any] = {"base_url": "http://localhost", "client": ("127.0.0.1", 50000)}
"""What a request from this machine looks like; TestClient's own host and address are another machine's."""


@pytest.fixture(scope="session")
def sample_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BM25 index of the sample library; read it, never write to it."""
    folder = tmp_path_factory.mktemp("serving") / "bm25"
    build_index(folder, load_sample_corpus(), "bm25")
    return folder


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """An untrained encoder as training exports it; read it, never write to it."""
    from models.backbone import Backbone
    from models.export import export_retriever

    return export_retriever(Backbone.load(tiny_folder), tmp_path_factory.mktemp("encoder") / "model", 64)


@pytest.fixture(scope="session")
def encoder_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedding cache of ``encoder_folder`` that tests share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def model_index(tmp_path_factory: pytest.TempPathFactory, encoder_folder: Path, encoder_cache: Path) -> Path:
    """An index of the sample library with the vectors of an untrained model; read it, never write to it."""
    folder = tmp_path_factory.mktemp("serving") / "tiny"
    build_index(folder, load_sample_corpus(), encoder_folder, fusion_weight=0.5, cache_dir=encoder_cache)
    return folder


@pytest.fixture
def own_index(sample_index: Path, tmp_path: Path) -> Path:
    """A copy of ``sample_index`` that a test may write to."""
    return Path(shutil.copytree(sample_index, tmp_path / "index"))


@contextlib.contextmanager
def client_of(app: FastAPI, **options: Any) -> Iterator[TestClient]:
    """A client on this machine; exceptions become the 500 that a user would see."""
    with TestClient(app, raise_server_exceptions=False, **(LOCAL | options)) as client:
        yield client


@pytest.fixture(scope="session")
def served(sample_index: Path, model_index: Path) -> Iterator[TestClient]:
    """Both indexes behind one application; ``default`` is the BM25 one."""
    settings = ServeSettings({"default": str(sample_index), "tiny": str(model_index)}, max_body_bytes=100_000)
    with client_of(build_http(settings, LocalBackend(SearchEngine(settings)))) as client:
        yield client


@pytest.fixture
def serve_with(sample_index: Path) -> Iterator[Callable[..., TestClient]]:
    """Start an application with settings of the test's own: ``serve_with(rate=1)``; also ``backend=`` and ``client=``."""
    with contextlib.ExitStack() as stack:

        def start(
            *, backend: Any = None, index: Path = sample_index, client: dict[str, Any] | None = None, **changed: Any
        ):
            settings = ServeSettings({"default": str(index)}, **changed)
            app = build_http(settings, backend or LocalBackend(SearchEngine(settings)))
            return stack.enter_context(client_of(app, **(client or {})))

        yield start
