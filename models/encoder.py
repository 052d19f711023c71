"""The encoder that retrieval sees: requests and documents to unit vectors, by any SentenceTransformer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from models.views import DEFAULT_FORMAT, DOCUMENT_FORMATS, QUERY_CHARS

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DEFAULT_MAX_LENGTH = 4096
"""Tokens of an input in evaluation (E.6); a model that takes fewer keeps its own limit."""

_DTYPES = ("float32", "bfloat16", "float16")
_FINGERPRINT_SUFFIXES = {".safetensors", ".json", ".txt", ".model"}
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model"]
_NOT_THE_MODEL = {"retrieval.json"}
"""Files of an export that do not change an embedding; rewriting them must not empty the cache."""


class Encoder(Protocol):
    """What retrieval needs of a model.

    ``fingerprint`` identifies everything an embedding depends on (weights, tokenizer, prompts, truncation,
    precision), so it can key a cache that outlives the process.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def encode_queries(self, requests: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray: ...

    def encode_documents(
        self, documents: Sequence[str], batch_size: int = 32, progress: bool = False
    ) -> np.ndarray: ...


class SentenceTransformerEncoder:
    """A SentenceTransformer folder as an :class:`Encoder`; our own exports are such folders too.

    Requests get the model's ``query`` prompt and documents its ``document`` prompt where the model has them,
    and no prompt otherwise. Embeddings are float32 with unit rows whatever the precision of the weights.

    Args:
        folder: a folder with ``modules.json``.
        name: how reports call the model; the folder's name if not given.
        max_length: tokens after which an input is cut; the model's own limit wins where it is lower.
        dtype: precision of the weights, ``float32`` (default), ``bfloat16`` or ``float16``.
        device: a torch device; the GPU where there is one, else the CPU.

    Raises:
        FileNotFoundError: the folder or a file that it must have is missing.
        ValueError: it cannot be loaded, would need code of its own to be run, or an argument is out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        name: str | None = None,
        max_length: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.name
        self.dtype = dtype or "float32"
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(_DTYPES)}")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length is {max_length}; expected a positive number of tokens")
        self._model = _load_sentence_transformer(self.folder, self.dtype, device)
        wanted = DEFAULT_MAX_LENGTH if max_length is None else max_length
        own_limit = self._model.max_seq_length
        self.max_length = wanted if own_limit is None else min(wanted, int(own_limit))
        self._model.max_seq_length = self.max_length
        self.document_format = read_document_format(self.folder)
        self._query_chars = QUERY_CHARS if self.document_format == "skill2query" else None
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the model's files (name and content), its prompts, truncation and precision."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for path in _model_files(self.folder):
                digest.update(f"{path.relative_to(self.folder).as_posix()}\0".encode())
                with path.open("rb") as handle:
                    digest.update(hashlib.file_digest(handle, "sha256").digest())
            settings = {"prompts": self._model.prompts, "max_length": self.max_length, "dtype": self.dtype}
            digest.update(json.dumps(settings, sort_keys=True).encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    @property
    def dimension(self) -> int:
        """Components of an embedding."""
        dimension = self._model.get_embedding_dimension()
        if dimension is None:
            raise ValueError(f"{self.folder}: the model does not say how long its embeddings are")
        return int(dimension)

    def encode_queries(self, requests: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        """Embeddings ``[n, d]`` of requests, float32, rows of unit length, in the order given."""
        cut = [request[: self._query_chars] for request in requests]
        return self._encode(self._model.encode_query, cut, batch_size, progress)

    def encode_documents(self, documents: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        """Embeddings ``[n, d]`` of serialized documents, float32, rows of unit length, in the order given."""
        return self._encode(self._model.encode_document, documents, batch_size, progress)

    def _encode(self, encode: Any, texts: Sequence[str], batch_size: int, progress: bool) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        # sentence-transformers batches by length, longest first, and restores the order.
        embeddings = encode(list(texts), batch_size=batch_size, show_progress_bar=progress, convert_to_numpy=True)
        # Normalized here and not by the library: its norm would be taken in the precision of the weights.
        embeddings = np.asarray(embeddings, dtype=np.float32)
        norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings / np.where(norms == 0, 1.0, norms)


def load_encoder(
    path_or_id: str | Path, max_length: int | None = None, dtype: str | None = None, device: str | None = None
) -> SentenceTransformerEncoder:
    """Load a run's folder or its ``export/``, another SentenceTransformer folder, or a hub id ``owner/name``.

    Raises:
        FileNotFoundError: there is no such folder and the hub has or reaches no such model; or files are
            missing from it.
        ValueError: see :class:`SentenceTransformerEncoder`.
    """
    folder = resolve_encoder_folder(path_or_id)
    return SentenceTransformerEncoder(folder, name=str(path_or_id), max_length=max_length, dtype=dtype, device=device)


def resolve_encoder_folder(path_or_id: str | Path) -> Path:
    """The local folder of an encoder: the one named, its ``export/``, or the hub's copy of ``owner/name``.

    Raises:
        FileNotFoundError: nothing of that name; the message says what was looked for.
    """
    text = str(path_or_id)
    folder = Path(text).expanduser()
    if folder.is_dir():
        for candidate in (folder, folder / "export"):
            if (candidate / "modules.json").is_file():
                return candidate
        raise FileNotFoundError(
            f"{text}: no modules.json in it or in its export/; expected a SentenceTransformer folder or a run's folder"
        )
    if folder.exists():
        raise FileNotFoundError(f"{text} is a file; expected a SentenceTransformer folder or a hub id owner/name")
    owner, _, rest = text.partition("/")
    if not owner or not rest or "/" in rest or owner[0] in ".~" or Path(owner).is_dir():
        raise FileNotFoundError(f"no folder {text}; expected a SentenceTransformer folder or a hub id owner/name")
    return _download(text)


def read_document_format(folder: str | Path) -> str:
    """How the documents of an encoder's folder are put together, as its ``config.json`` says; others' models do not say it.

    Raises:
        ValueError: a format that we do not know.
    """
    path = Path(folder) / "config.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found = stored.get("document_format") or DEFAULT_FORMAT
    if found not in DOCUMENT_FORMATS:
        raise ValueError(f"{path}: document_format is {found!r}; expected one of {', '.join(DOCUMENT_FORMATS)}")
    return found


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        # Safetensors only, and no Python: nothing that comes with a model is ever run.
        folder = Path(snapshot_download(hub_id, allow_patterns=_HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"{hub_id} is neither a folder here nor a model that the Hugging Face hub gave: {error}"
        ) from error
    if not (folder / "modules.json").is_file():
        raise FileNotFoundError(f"{hub_id}: the hub's model has no modules.json; expected a SentenceTransformer model")
    return folder


def _load_sentence_transformer(folder: Path, dtype: str, device: str | None) -> SentenceTransformer:
    if not (folder / "modules.json").is_file():
        raise FileNotFoundError(f"{folder}: no modules.json; expected a SentenceTransformer folder")
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    # A bar for the weights of one local model is noise in the output of a search.
    bar_was_shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model = SentenceTransformer(
            str(folder),
            device=device,
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True, "dtype": getattr(torch, dtype)},
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(f"{folder}: cannot be loaded as a SentenceTransformer model: {error}") from error
    finally:
        if bar_was_shown:
            transformers_logging.enable_progress_bar()
    return model.eval()


def _model_files(folder: Path) -> list[Path]:
    """The files an embedding depends on, sorted: beside ``modules.json`` and in the folders that it lists."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    folders = {folder, *(folder / module["path"] for module in modules if module.get("path"))}
    files = (path for sub in folders if sub.is_dir() for path in sub.iterdir())
    return sorted(
        path
        for path in files
        if path.is_file() and path.suffix in _FINGERPRINT_SUFFIXES and path.name not in _NOT_THE_MODEL
    )
