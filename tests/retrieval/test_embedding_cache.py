"""The embedding cache: nothing encoded twice, nothing lost by a kill, nothing damaged ever returned."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retrieval import EmbeddingCache, default_cache_dir
from retrieval.embedding_cache import text_key

TEXTS = [f"document number {i} " + "x" * (i % 7) for i in range(40)]
ROOT = Path(__file__).resolve().parents[2]


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("shard-*.npz"))


def test_a_second_call_encodes_nothing_and_returns_the_same(tmp_path, hash_encoder):
    first = EmbeddingCache(tmp_path).encode_documents(hash_encoder(), TEXTS)
    cache, encoder = EmbeddingCache(tmp_path), hash_encoder()
    np.testing.assert_array_equal(cache.encode_documents(encoder, TEXTS), first)
    assert encoder.encoded == []
    assert (cache.hits, cache.misses) == (40, 0)


def test_rows_are_in_the_order_of_the_texts(tmp_path, hash_encoder):
    encoder = hash_encoder()
    rows = EmbeddingCache(tmp_path).encode_documents(encoder, TEXTS, batch_size=4)
    np.testing.assert_array_equal(rows, [encoder.vector(text) for text in TEXTS])


def test_only_new_texts_are_encoded(tmp_path, hash_encoder):
    EmbeddingCache(tmp_path).encode_documents(hash_encoder(), TEXTS[:30])
    cache, encoder = EmbeddingCache(tmp_path), hash_encoder()
    rows = cache.encode_documents(encoder, TEXTS[20:])
    assert sorted(encoder.encoded) == sorted(TEXTS[30:])
    assert (cache.hits, cache.misses) == (10, 10)
    np.testing.assert_array_equal(rows, [encoder.vector(text) for text in TEXTS[20:]])


def test_a_text_that_occurs_twice_is_encoded_once(tmp_path, hash_encoder):
    encoder = hash_encoder()
    rows = EmbeddingCache(tmp_path).encode_documents(encoder, ["a", "b", "a"])
    assert sorted(encoder.encoded) == ["a", "b"]
    np.testing.assert_array_equal(rows[0], rows[2])


def test_embeddings_that_the_caller_has_are_neither_encoded_nor_read(tmp_path, hash_encoder):
    known = {text_key(text): np.full(6, i, dtype=np.float32) for i, text in enumerate(TEXTS[:30])}
    EmbeddingCache(tmp_path).encode_documents(hash_encoder(), TEXTS[:20])
    cache, encoder = EmbeddingCache(tmp_path), hash_encoder()
    rows = cache.encode_documents(encoder, TEXTS, known=known)
    np.testing.assert_array_equal(rows[:30, 0], range(30))
    assert sorted(encoder.encoded) == sorted(TEXTS[30:])
    assert (cache.hits, cache.misses) == (30, 10)


def test_another_model_does_not_see_the_first_ones_embeddings(tmp_path, hash_encoder):
    EmbeddingCache(tmp_path).encode_documents(hash_encoder("weights-1"), TEXTS)
    other = hash_encoder("weights-2")
    rows = EmbeddingCache(tmp_path).encode_documents(other, TEXTS)
    assert len(other.encoded) == 40
    np.testing.assert_array_equal(rows, [other.vector(text) for text in TEXTS])


def test_no_texts_give_an_empty_matrix_of_the_right_width(tmp_path, hash_encoder):
    assert EmbeddingCache(tmp_path).encode_documents(hash_encoder(), []).shape == (0, 6)


def test_an_interrupted_call_keeps_what_it_has_encoded(tmp_path, hash_encoder):
    class Interrupted(hash_encoder):
        def encode_documents(self, documents, batch_size=32, progress=False):
            if len(self.encoded) >= 16:
                raise KeyboardInterrupt
            return super().encode_documents(documents, batch_size, progress)

    with pytest.raises(KeyboardInterrupt):
        EmbeddingCache(tmp_path).encode_documents(Interrupted(), TEXTS, batch_size=2)
    encoder = hash_encoder()
    EmbeddingCache(tmp_path).encode_documents(encoder, TEXTS)
    assert len(encoder.encoded) == 24


def test_a_killed_process_leaves_a_cache_that_is_whole(tmp_path, hash_encoder):
    script = """
import importlib.util, os, signal, sys
from retrieval import EmbeddingCache
spec = importlib.util.spec_from_file_location("fakes", sys.argv[2])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
class Killed(fakes.HashEncoder):
    def encode_documents(self, documents, batch_size=32, progress=False):
        if len(self.encoded) >= 24:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_documents(documents, batch_size, progress)
texts = [f"document number {i} " + "x" * (i % 7) for i in range(40)]
EmbeddingCache(sys.argv[1], flush_seconds=0).encode_documents(Killed(), texts, batch_size=2)
"""
    fakes = Path(__file__).with_name("conftest.py")
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path), str(fakes)], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    encoder = hash_encoder()
    rows = EmbeddingCache(tmp_path).encode_documents(encoder, TEXTS)
    assert len(encoder.encoded) == 16
    np.testing.assert_array_equal(rows, [encoder.vector(text) for text in TEXTS])


def test_a_half_written_file_is_not_read(tmp_path, hash_encoder):
    EmbeddingCache(tmp_path).encode_documents(hash_encoder(), TEXTS)
    (shard,) = shards(tmp_path)
    shard.rename(shard.with_name(f".{shard.name}.tmp"))
    encoder = hash_encoder()
    EmbeddingCache(tmp_path).encode_documents(encoder, TEXTS)
    assert len(encoder.encoded) == 40


@pytest.mark.parametrize("place", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_flipped_byte_costs_a_warning_and_an_encoding_but_never_a_wrong_row(tmp_path, hash_encoder, place):
    EmbeddingCache(tmp_path).encode_documents(hash_encoder(), TEXTS)
    (shard,) = shards(tmp_path)
    data = bytearray(shard.read_bytes())
    data[int(place * len(data))] ^= 0x55
    shard.write_bytes(bytes(data))
    encoder = hash_encoder()
    with pytest.warns(UserWarning, match="corrupt embedding shard dropped"):
        rows = EmbeddingCache(tmp_path).encode_documents(encoder, TEXTS)
    np.testing.assert_array_equal(rows, [encoder.vector(text) for text in TEXTS])
    assert len(encoder.encoded) == 40
    assert shard not in shards(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 200, 1500])
def test_a_truncated_shard_is_dropped_with_a_warning(tmp_path, hash_encoder, size):
    EmbeddingCache(tmp_path).encode_documents(hash_encoder(), TEXTS)
    (shard,) = shards(tmp_path)
    shard.write_bytes(shard.read_bytes()[:size])
    encoder = hash_encoder()
    with pytest.warns(UserWarning, match="corrupt embedding shard dropped"):
        EmbeddingCache(tmp_path).encode_documents(encoder, TEXTS)
    assert len(encoder.encoded) == 40


def test_an_embedding_that_is_not_finite_is_refused_and_not_kept(tmp_path, hash_encoder):
    class Broken(hash_encoder):
        def vector(self, text):
            return np.full(6, np.nan) if text == "bad one" else super().vector(text)

    with pytest.raises(ValueError, match="'bad one'"):
        EmbeddingCache(tmp_path).encode_documents(Broken(), ["fine", "bad one"])
    assert shards(tmp_path) == []


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path, hash_encoder):
    (tmp_path / "file").write_text("in the way")
    encoder = hash_encoder()
    with pytest.warns(UserWarning, match="cannot be kept"):
        rows = EmbeddingCache(tmp_path / "file").encode_documents(encoder, TEXTS)
    np.testing.assert_array_equal(rows, [encoder.vector(text) for text in TEXTS])


def test_the_default_folder_can_be_moved_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SKILLREASON_CACHE", str(tmp_path / "mine"))
    assert default_cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("SKILLREASON_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "skillreason" / "embeddings"
