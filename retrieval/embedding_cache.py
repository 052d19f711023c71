"""Document embeddings kept on disk by model and content, so that no text is encoded twice."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

if TYPE_CHECKING:
    from models.encoder import Encoder

_CORRUPT = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, EOFError, OSError, RuntimeError)
"""What reading a damaged ``.npz`` raises, depending on the byte that is wrong."""


def default_cache_dir() -> Path:
    """``$SKILLREASON_CACHE``, else ``skillreason/embeddings`` in the user's cache folder."""
    own = os.environ.get("SKILLREASON_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skillreason" / "embeddings"


def text_key(text: str) -> bytes:
    """By what the cache knows a text: the SHA-256 of its UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache:
    """Embeddings by ``(encoder.fingerprint, sha256(text))``.

    On disk each fingerprint is a folder of shards that are written once, under a temporary name, and never
    changed: a killed process loses at most ``flush_seconds`` of work, and several processes may share a
    folder. A shard is an ``.npz`` of ``keys[n, 32]`` (digests) and ``embeddings[n, d]``, whose checksums are
    verified on reading.

    Args:
        folder: made when the first shard is written.
        flush_seconds: how much encoding to risk between two shards.

    Attributes:
        hits: texts answered so far without encoding them.
        misses: texts that were encoded; a text that a call has twice is encoded once.
    """

    def __init__(self, folder: str | Path, flush_seconds: float = 30.0) -> None:
        self.folder = Path(folder)
        self.flush_seconds = flush_seconds
        self.hits = 0
        self.misses = 0
        self._writable = True

    def encode_documents(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        batch_size: int = 32,
        progress: bool = False,
        known: Mapping[bytes, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Embeddings ``[n, d]`` (float32) of ``texts``, in their order; only those not on disk are encoded.

        Args:
            known: embeddings of the same encoder that the caller has, by :func:`text_key`; they are not looked for on disk.

        Raises:
            ValueError: the encoder returned a value that is not finite, or another number of rows; nothing
                bad is kept.
        """
        if not texts:
            return encoder.encode_documents([], batch_size=batch_size)
        keys = [text_key(text) for text in texts]
        rows = {key: known[key] for key in keys if key in known} if known else {}
        unseen = set(keys) - rows.keys()
        rows.update(self._read(encoder.fingerprint, unseen) if unseen else {})
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        if missing:
            rows.update(self._encode(encoder, missing, batch_size, progress))
        return np.stack([rows[key] for key in keys])

    def _encode(
        self, encoder: Encoder, missing: dict[bytes, str], batch_size: int, progress: bool
    ) -> dict[bytes, np.ndarray]:
        # Longest first over the whole set: little padding, and what does not fit into memory fails at once.
        todo = sorted(missing, key=lambda key: -len(missing[key]))
        done: dict[bytes, np.ndarray] = {}
        pending: dict[bytes, np.ndarray] = {}
        flushed = time.monotonic()
        bar = tqdm(total=len(todo), desc="Encoding documents", unit="doc", disable=not progress)
        try:
            for start in range(0, len(todo), 4 * batch_size):
                chunk = todo[start : start + 4 * batch_size]
                rows = encoder.encode_documents([missing[key] for key in chunk], batch_size=batch_size)
                rows = _checked(rows, [missing[key] for key in chunk], encoder.name)
                pending.update(zip(chunk, rows, strict=True))
                bar.update(len(chunk))
                if time.monotonic() - flushed >= self.flush_seconds:
                    self._write(encoder.fingerprint, pending)
                    done.update(pending)
                    pending, flushed = {}, time.monotonic()
        finally:
            bar.close()
            # Also when interrupted: what has been encoded is kept.
            self._write(encoder.fingerprint, pending)
        return done | pending

    def _store(self, fingerprint: str) -> Path:
        safe = re.fullmatch(r"[A-Za-z0-9_-]{1,128}", fingerprint)
        return self.folder / (fingerprint if safe else hashlib.sha256(fingerprint.encode()).hexdigest())

    def _read(self, fingerprint: str, wanted: set[bytes]) -> dict[bytes, np.ndarray]:
        found: dict[bytes, np.ndarray] = {}
        for path in sorted(self._store(fingerprint).glob("shard-*.npz")):
            try:
                found.update(_read_shard(path, wanted - found.keys()))
            except (FileNotFoundError, PermissionError):
                continue  # Dropped by another process, or not ours to read.
            except _CORRUPT as error:
                warnings.warn(
                    f"{path}: corrupt embedding shard dropped, its texts are encoded again: {error}",
                    stacklevel=3,
                )
                path.unlink(missing_ok=True)
        return found

    def _write(self, fingerprint: str, rows: dict[bytes, np.ndarray]) -> None:
        if not rows or not self._writable:
            return
        store = self._store(fingerprint)
        name = f"shard-{uuid.uuid4().hex}.npz"
        scratch = store / f".{name}.tmp"
        try:
            store.mkdir(parents=True, exist_ok=True)
            with scratch.open("wb") as handle:
                keys = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, 32)
                np.savez(handle, keys=keys, embeddings=np.stack(list(rows.values())))
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(scratch, store / name)
        except OSError as error:
            # An hour of encoding is worth more than its cache.
            self._writable = False
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            warnings.warn(f"{store}: embeddings cannot be kept for the next run: {error}", stacklevel=4)


def _read_shard(path: Path, wanted: set[bytes]) -> dict[bytes, np.ndarray]:
    with np.load(path, allow_pickle=False) as shard:
        keys = [bytes(key) for key in shard["keys"]]
        rows = [row for row, key in enumerate(keys) if key in wanted]
        if not rows:
            return {}
        embeddings = shard["embeddings"]
    if embeddings.ndim != 2 or len(embeddings) != len(keys) or embeddings.dtype != np.float32:
        raise ValueError(f"{len(keys)} keys and embeddings {embeddings.dtype}{list(embeddings.shape)}")
    return {keys[row]: embeddings[row] for row in rows}


def _checked(rows: np.ndarray, texts: Sequence[str], name: str) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(texts):
        raise ValueError(f"encoder {name} gave shape {list(rows.shape)} for {len(texts)} texts; expected one row each")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ValueError(
            f"encoder {name} gave a NaN or infinite value for the document that begins {texts[int(bad[0])][:80]!r}"
        )
    return rows
