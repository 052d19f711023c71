"""Building: nothing encoded twice, nothing half-written, every wrong file and setting named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import serving.index_vectors as index_vectors
from data_pipeline.corpus import Skill, SkillCorpus
from models.encoder import SentenceTransformerEncoder, load_encoder
from retrieval import BM25Index, EmbeddingCache, write_fusion_weight
from serving.index import ModelMismatchError, load_model, open_index, read_info, skill_domain
from serving.index_build import build_index
from serving.index_verify import verify_index
from serving.versions import IndexBusyError, IndexCorruptError, current_version, list_versions, writing

ROOT = Path(__file__).resolve().parents[2]


def library(count: int = 30) -> SkillCorpus:
    return SkillCorpus(
        Skill(f"d{i % 3}/s{i}", f"skill {i}", f"Fill PDF form number {i}.", f"Read table {i} and draw. " * 3)
        for i in range(count)
    )


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The documents that the encoder was given since the test began."""
    seen: list[str] = []
    plain = SentenceTransformerEncoder.encode_documents

    def counting(self, documents, *args, **kwargs):
        seen.extend(documents)
        return plain(self, documents, *args, **kwargs)

    monkeypatch.setattr(SentenceTransformerEncoder, "encode_documents", counting)
    return seen


def test_an_index_holds_the_skills_and_the_models_vectors(encoder_folder, tmp_path):
    corpus = library()
    corpus.to_jsonl(tmp_path / "corpus.jsonl")
    built = build_index(tmp_path / "index", tmp_path / "corpus.jsonl", encoder_folder, cache_dir=tmp_path / "cache")
    index = open_index(tmp_path / "index")
    encoder = load_encoder(encoder_folder)
    assert list(index.skills) == list(corpus)
    assert index.dense is not None
    np.testing.assert_allclose(index.dense.embeddings, encoder.encode_documents(corpus.documents()), atol=1e-5)
    assert index.info == built.info
    assert (built.info.n_skills, built.info.kind, built.info.dimension) == (30, "flat", 32)
    assert built.info.domains == {"d0": 10, "d1": 10, "d2": 10}
    assert (built.info.model, built.info.fingerprint) == (str(encoder_folder), encoder.fingerprint)
    assert built.info.source == [str(tmp_path / "corpus.jsonl")]


def test_a_second_build_encodes_nothing(encoder_folder, tmp_path, encoded):
    build_index(tmp_path / "index", library(), encoder_folder, cache_dir=tmp_path / "cache")
    encoded.clear()
    built = build_index(tmp_path / "other", library(), encoder_folder, cache_dir=tmp_path / "cache")
    assert encoded == []
    assert (built.encoded, built.reused) == (0, 30)


def test_without_the_cache_the_version_before_is_where_vectors_come_from(encoder_folder, tmp_path, encoded):
    build_index(tmp_path / "index", library(), encoder_folder, cache_dir=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    encoded.clear()
    build_index(tmp_path / "index", library(32), encoder_folder, cache_dir=tmp_path / "cache")
    assert sorted(encoded) == sorted(library(32).documents()[30:])


def test_vectors_of_another_model_are_not_taken_over(encoder_folder, tmp_path, encoded):
    build_index(tmp_path / "index", library(), encoder_folder, cache_dir=tmp_path / "cache")
    encoded.clear()
    build_index(tmp_path / "index", library(), encoder_folder, max_length=16, cache_dir=tmp_path / "cache")
    assert len(encoded) == 30


def test_options_of_the_model_are_those_of_whoever_opens_it(encoder_folder, tmp_path):
    built = build_index(
        tmp_path / "index",
        library(3),
        encoder_folder,
        max_length=16,
        query_prompt="ask: ",
        cache_dir=tmp_path / "cache",
    )
    assert load_model(built.info).max_length == 16
    assert load_model(built.info).prompts.query == "ask: "


def test_a_rows_own_index_text_is_what_is_indexed(encoder_folder, tmp_path, encoded):
    skill = Skill("a", "name", "description", "body", {"index_text": "pseudo queries zebra"})
    build_index(tmp_path / "index", SkillCorpus([skill]), encoder_folder, cache_dir=tmp_path / "cache")
    assert encoded == ["pseudo queries zebra"]
    assert open_index(tmp_path / "index").bm25.scores("zebra")[0] > 0


def test_bm25_alone_needs_no_model(tmp_path):
    corpus = library()
    info = build_index(tmp_path / "index", corpus, "bm25").info
    index = open_index(tmp_path / "index")
    assert (info.model, info.kind, info.dimension, index.dense) == (None, None, None, None)
    expected = BM25Index(corpus.ids, corpus.documents()).scores("draw table 7")
    assert index.bm25.scores("draw table 7").tolist() == expected.tolist()


def test_the_weight_stored_with_a_model_is_the_indexs(encoder_folder, encoder_cache, tmp_path):
    model = shutil.copytree(encoder_folder, tmp_path / "model")
    write_fusion_weight(model, 0.3)
    assert build_index(tmp_path / "a", library(3), model, cache_dir=encoder_cache).info.fusion_weight == 0.3
    own = build_index(tmp_path / "b", library(3), f"hybrid:{model}", fusion_weight=0.7, cache_dir=encoder_cache)
    assert (own.info.fusion_weight, own.info.model) == (0.7, str(model))


def test_a_hybrid_without_weight_is_refused_before_anything_is_encoded(encoder_folder, tmp_path, encoded):
    with pytest.raises(ValueError, match="give one with --fusion-weight"):
        build_index(tmp_path / "index", library(), f"hybrid:{encoder_folder}")
    assert encoded == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "lsh"}, "kind is 'lsh'; expected one of auto, flat, ivf, hnsw"),
        ({"fusion_weight": 1.5}, "fusion weight is 1.5"),
        ({"keep": 1}, "keep is 1"),
        ({"kind": "ivf"}, "bm25 has no vectors, so it takes no kind"),
        ({"dtype": "float16"}, "takes no dtype"),
        ({"fusion_weight": 0.5}, "takes no fusion weight"),
    ],
)
def test_impossible_settings_are_refused_and_leave_no_folder(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        build_index(tmp_path / "index", library(3), "bm25", **options)
    assert not (tmp_path / "index").exists()


def test_an_empty_library_is_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"empty\.jsonl:1: the file has no skills"):
        build_index(tmp_path / "index", tmp_path / "empty.jsonl", "bm25")
    with pytest.raises(ValueError, match="the library is empty"):
        build_index(tmp_path / "index", SkillCorpus([]), "bm25")


def test_an_id_that_occurs_twice_is_named_by_row(tmp_path):
    row = {"skill_id": "twice", "name": "n", "description": "d", "body": "b"}
    (tmp_path / "corpus.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    with pytest.raises(ValueError, match=r"corpus\.jsonl:2: skill_id = 'twice': duplicate id, first seen in row 1"):
        build_index(tmp_path / "index", tmp_path / "corpus.jsonl", "bm25")


def test_odd_unicode_is_kept_as_it_is(encoder_folder, encoder_cache, tmp_path):
    odd = "e\u0301 \u202eright to left\u202c \U0001f9ea\ufe0f \u2028line\u2029 \x07 \ufeff 中文 ‏עברית"
    corpus = SkillCorpus([Skill(f"ид/{odd}", odd, odd, odd, {"note": odd}), Skill("b", "b", "", "b\r\n\tb\x85")])
    build_index(tmp_path / "index", corpus, encoder_folder, cache_dir=encoder_cache)
    index = open_index(tmp_path / "index")
    assert list(index.skills) == list(corpus)
    assert index.skills[0].metadata == {"note": odd}


def test_half_a_surrogate_pair_is_named(tmp_path):
    corpus = SkillCorpus([Skill("a", "a", "d", "b"), Skill("b", "b", "d", "ab\ud800")])
    with pytest.raises(ValueError, match="skill 'b': body has half a surrogate pair at character 2"):
        build_index(tmp_path / "index", corpus, "bm25")


def test_a_build_that_fails_leaves_the_old_version_serving(encoder_folder, tmp_path, monkeypatch):
    old = build_index(tmp_path / "index", library(5), encoder_folder, cache_dir=tmp_path / "cache").info

    def broken(self, documents, *args, **kwargs):
        return np.full((len(documents), 32), np.nan, dtype=np.float32)

    monkeypatch.setattr(SentenceTransformerEncoder, "encode_documents", broken)
    with pytest.raises(ValueError, match="gave a NaN"):
        build_index(tmp_path / "index", library(9), encoder_folder, cache_dir=tmp_path / "cache")
    assert open_index(tmp_path / "index").info == old
    assert os.listdir(tmp_path / "index" / "versions") == [old.version]


def test_a_killed_build_leaves_the_old_version_and_goes_on_where_it_was(encoder_folder, tmp_path, encoded):
    old = build_index(tmp_path / "index", library(3), "bm25").info.version
    script = """
import sys, time
from models.encoder import SentenceTransformerEncoder
from retrieval.embedding_cache import EmbeddingCache
from serving.index_build import build_index
from tests_library import library
EmbeddingCache.__init__.__defaults__ = (0.0,)  # what is encoded is written at once
plain = SentenceTransformerEncoder.encode_documents
def slow(self, documents, *args, **kwargs):
    time.sleep(0.3)
    return plain(self, documents, *args, **kwargs)
SentenceTransformerEncoder.encode_documents = slow
build_index(sys.argv[1], library(80), sys.argv[2], cache_dir=sys.argv[3], batch_size=1)
"""
    (tmp_path / "tests_library.py").write_text(
        "from data_pipeline.corpus import Skill, SkillCorpus\n"
        "def library(count):\n    return SkillCorpus(Skill(f'd{i % 3}/s{i}', f'skill {i}', f'Fill PDF form number {i}.',"
        " f'Read table {i} and draw. ' * 3) for i in range(count))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "index"), str(encoder_folder), str(tmp_path / "cache")],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("cache/*/shard-*.npz"))) < 3 and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert current_version(tmp_path / "index") == old
    assert len(open_index(tmp_path / "index").skills) == 3

    encoded.clear()
    built = build_index(tmp_path / "index", library(80), encoder_folder, cache_dir=tmp_path / "cache")
    assert built.reused >= 12  # three shards of four documents
    assert len(encoded) == built.encoded == 80 - built.reused
    assert list((tmp_path / "index" / "versions").glob(".*")) == []
    assert len(open_index(tmp_path / "index").skills) == 80


def test_two_writers_of_one_index_are_one_too_many(tmp_path):
    with writing(tmp_path / "index"), pytest.raises(IndexBusyError, match="another process"):
        build_index(tmp_path / "index", library(3), "bm25")


def test_every_damaged_file_is_named(encoder_folder, encoder_cache, tmp_path):
    info = build_index(tmp_path / "index", library(), encoder_folder, kind="ivf", cache_dir=encoder_cache).info
    folder = tmp_path / "index" / "versions" / info.version
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 9  # skills, vectors, FAISS, five of bm25s, index.json
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if path.name != "index.json" else content[:100])
        with pytest.raises(IndexCorruptError, match=f"{path.name}: .*build the index again"):
            open_index(tmp_path / "index")
        path.write_bytes(content)
    assert len(open_index(tmp_path / "index").skills) == 30


def test_a_build_replaces_a_damaged_index(tmp_path):
    info = build_index(tmp_path / "index", library(3), "bm25").info
    (tmp_path / "index" / "versions" / info.version / "skills.jsonl").unlink()
    build_index(tmp_path / "index", library(4), "bm25")
    assert len(open_index(tmp_path / "index").skills) == 4


def test_an_index_of_another_format_is_refused(tmp_path):
    info = build_index(tmp_path / "index", library(3), "bm25").info
    path = tmp_path / "index" / "versions" / info.version / "index.json"
    path.write_text(path.read_text().replace("skillreason-index-1", "skillreason-index-9"))
    with pytest.raises(IndexCorruptError, match="format is 'skillreason-index-9'; expected 'skillreason-index-1'"):
        read_info(tmp_path / "index")


@pytest.fixture
def moved(encoder_folder: Path, encoder_cache: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An index and its model's own folder."""
    model = Path(shutil.copytree(encoder_folder, tmp_path / "model"))
    build_index(tmp_path / "index", library(4), model, cache_dir=encoder_cache)
    return tmp_path / "index", model


def test_a_model_that_vanished_is_named(moved):
    index, model = moved
    model.rename(model.with_name("elsewhere"))
    with pytest.raises(ModelMismatchError, match=r"cannot be found \(.*model.*--model"):
        load_model(read_info(index))
    assert load_model(read_info(index), model.with_name("elsewhere")).fingerprint == read_info(index).fingerprint


def test_a_model_that_changed_is_refused(moved):
    index, model = moved
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    with pytest.raises(ModelMismatchError, match="not the model that encoded this index: its fingerprint is"):
        load_model(read_info(index))


def test_verifying_finds_vectors_that_are_not_the_models(moved, encoder_folder, encoder_cache, tmp_path, monkeypatch):
    index, _ = moved
    assert "the model gives the same vectors for 4 skills" in verify_index(index)
    plain = EmbeddingCache.encode_documents
    monkeypatch.setattr(EmbeddingCache, "encode_documents", lambda *args, **kwargs: plain(*args, **kwargs)[::-1])
    build_index(tmp_path / "wrong", library(4), encoder_folder, cache_dir=encoder_cache)
    with pytest.raises(IndexCorruptError, match="differs from the model's by"):
        verify_index(tmp_path / "wrong")


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_the_recall_of_an_approximate_index_is_measured_and_kept(kind, encoder_folder, encoder_cache, tmp_path):
    built = build_index(tmp_path / "index", library(200), encoder_folder, kind=kind, cache_dir=encoder_cache)
    index = open_index(tmp_path / "index")
    assert index.dense is not None
    assert index.info.kind == kind
    drawn = np.random.default_rng(0).permutation(200)
    requests = load_encoder(encoder_folder).encode_queries([index.skills[i].description for i in drawn])[100:]
    scores = np.sort(requests.astype(np.float64) @ index.dense.embeddings.T.astype(np.float64), axis=1)
    tenth = scores[:, -10] - 1e-6
    found = index.dense.search(requests, 10).scores >= tenth[:, None]
    assert built.info.vectors["recall"] == pytest.approx(found.mean(), abs=1e-3)
    assert built.info.vectors["recall_requests"] == 100


@pytest.mark.parametrize(
    ("largest", "least_recall", "kind"), [(200 * 32, 0.0, "flat"), (200 * 32 - 1, 0.0, "ivf"), (0, 1.1, "flat")]
)
def test_auto_is_exact_for_small_libraries_and_where_recall_is_low(
    largest, least_recall, kind, encoder_folder, encoder_cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(index_vectors, "EXACT_VALUES", largest)
    monkeypatch.setattr(index_vectors, "MIN_RECALL", least_recall)
    info = build_index(tmp_path / "index", library(200), encoder_folder, cache_dir=encoder_cache).info
    assert (info.kind, info.vectors["requested"]) == (kind, "auto")
    assert len(open_index(tmp_path / "index").skills) == 200


def test_versions_are_kept_up_to_a_number(tmp_path):
    for count in (3, 4, 5):
        build_index(tmp_path / "index", library(count), "bm25", keep=2)
    assert len(list_versions(tmp_path / "index")) == 2


@pytest.mark.parametrize(
    ("skill_id", "metadata", "domain"),
    [
        ("media/mix", {}, "media"),
        ("media/audio/mix", {}, "media"),
        ("mix", {}, None),
        ("/mix", {}, None),
        ("media/mix", {"category": "sound", "major": "m"}, "sound"),
        ("media/mix", {"domain": " audio ", "category": "sound"}, "audio"),
        ("media/mix", {"domain": " ", "major": "Music"}, "Music"),
    ],
)
def test_a_skills_domain_is_its_own_or_its_ids_first_part(skill_id, metadata, domain):
    assert skill_domain(Skill(skill_id, "n", "d", "b", metadata)) == domain
