"""The encoder that retrieval sees: requests and documents to unit vectors, by any SentenceTransformer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from models.encoder_files import download, load_sentence_transformer, model_files, stored_similarity
from models.encoding import encode_by_tokens, token_budget, token_lengths
from models.prompts import Prompts, resolve_prompts
from models.views import DEFAULT_FORMAT, DOCUMENT_FORMATS, QUERY_CHARS, QUERY_PREFIX, View, privileged_view

DEFAULT_MAX_LENGTH = 4096
"""Tokens of an input in evaluation (E.6); a model that takes fewer keeps its own limit."""

_DTYPES = ("float32", "bfloat16", "float16")


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

    Requests and documents get the prompts that :func:`models.prompts.resolve_prompts` finds. Embeddings are float32 whatever the
    precision of the weights, with unit rows unless the model compares by ``dot`` product.

    Args:
        folder: a folder with ``modules.json``.
        name: how reports call the model; the folder's name if not given.
        max_length: tokens after which an input is cut; the model's own limit wins where it is lower.
        dtype: precision of the weights, ``float32`` (default), ``bfloat16`` or ``float16``.
        device: a torch device; the GPU where there is one, else the CPU.
        query_prompt, document_prompt, similarity: instead of the model's own.

    Attributes:
        prompts: those in use, with the similarity, and where each comes from.

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
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        similarity: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.name = name or self.folder.name
        self.dtype = dtype or "float32"
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(_DTYPES)}")
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length is {max_length}; expected a positive number of tokens")
        self._model = load_sentence_transformer(self.folder, self.dtype, device)
        wanted = DEFAULT_MAX_LENGTH if max_length is None else max_length
        own_limit = self._model.max_seq_length
        self.max_length = wanted if own_limit is None else min(wanted, int(own_limit))
        self._model.max_seq_length = self.max_length
        self.prompts: Prompts = resolve_prompts(
            self.name,
            self._model.prompts,
            stored_similarity(self.folder),
            query=query_prompt,
            document=document_prompt,
            similarity=similarity,
        )
        self.document_format = read_document_format(self.folder)
        self._query_chars = QUERY_CHARS if self.document_format == "skill2query" else None
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the model's files (name and content), its prompts, truncation and precision."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for path in model_files(self.folder):
                digest.update(f"{path.relative_to(self.folder).as_posix()}\0".encode())
                with path.open("rb") as handle:
                    digest.update(hashlib.file_digest(handle, "sha256").digest())
            settings: dict[str, Any] = {
                "prompts": self._model.prompts,
                "max_length": self.max_length,
                "dtype": self.dtype,
            }
            used, own = self.prompts, self._model.prompts
            if (used.query, used.document, used.similarity) != (own.get("query"), own.get("document"), "cosine"):
                settings["used"] = [used.query, used.document, used.similarity]
            digest.update(json.dumps(settings, sort_keys=True).encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    @property
    def device(self) -> str:
        """Where the model computes, as torch names it."""
        return str(self._model.device)

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
        return self._encode(self._model.encode_query, cut, self.prompts.query, batch_size, progress)

    def encode_augmented(
        self, requests: Sequence[str], rationales: Sequence[str], batch_size: int = 32, progress: bool = False
    ) -> np.ndarray:
        """Embeddings ``[n, d]`` of requests with a rationale each, [q; c] of eq. 3, as :meth:`encode_queries` gives them.

        A model that was trained on our instruction reads the privileged view of E.1; any other its own query prompt, the request,
        and the rationale on a line of its own. Over-long input loses the end of the request, then of the
        rationale, never the anchor.
        """
        texts = []
        for request, rationale in zip(requests, rationales, strict=True):
            request = request[: self._query_chars]
            ours = self.prompts.query == QUERY_PREFIX
            view = privileged_view(request, rationale) if ours else View("", request, "\n", rationale)
            texts.append(self._fitted(replace(view, prefix="")))
        return self._encode(self._model.encode_query, texts, self.prompts.query, batch_size, progress)

    def _fitted(self, view: View) -> str:
        """The text of a view that fits behind the query prompt."""
        for part in ("content", "analysis"):
            while text := getattr(view, part):
                over = len(self._tokenize(self.prompts.query + view.text)["input_ids"]) - self.max_length
                if over <= 0:
                    return view.text
                ends = self._tokenize(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
                # A cut changes how its neighbours are split into tokens: measured again, and at least one character shorter.
                kept = min(ends[-over - 1][1], len(text) - 1) if over < len(ends) else 0
                view = replace(view, **{part: text[:kept]})
        return view.text

    def _tokenize(self, text: str, **options: Any) -> Any:
        tokenizer: Any = self._model.tokenizer
        return tokenizer(text, truncation=False, verbose=False, **options)

    def encode_documents(self, documents: Sequence[str], batch_size: int = 32, progress: bool = False) -> np.ndarray:
        """Embeddings ``[n, d]`` of serialized documents, float32, rows of unit length, in the order given."""
        return self._encode(self._model.encode_document, documents, self.prompts.document, batch_size, progress)

    def document_tokens(self, documents: Sequence[str]) -> np.ndarray | None:
        """Tokens ``[n]`` of whole documents, prompt and special tokens included: those above ``max_length`` are cut.

        None for a model without a tokenizer that counts them.
        """
        if token_lengths(self._model, ["a"]) is None:
            return None
        counts = np.zeros(len(documents), dtype=np.int64)
        for start in range(0, len(documents), 1024):
            texts = [self.prompts.document + document for document in documents[start : start + 1024]]
            ids = self._model.tokenizer(texts, truncation=False, verbose=False)["input_ids"]
            counts[start : start + len(texts)] = [len(row) for row in ids]
        return counts

    def _encode(self, encode: Any, texts: Sequence[str], prompt: str, batch_size: int, progress: bool) -> np.ndarray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)

        def run(batch: list[str], size: int, bar: bool = False) -> np.ndarray:
            return encode(batch, prompt=prompt, batch_size=size, show_progress_bar=bar, convert_to_numpy=True)

        # one request needs no order, and a server should not tokenize it twice
        lengths = token_lengths(self._model, texts) if len(texts) > 1 else None
        if lengths is None:
            embeddings = np.asarray(run(list(texts), batch_size, progress), dtype=np.float32)
        else:
            budget = token_budget(batch_size, self.max_length, self._model.device.type)
            embeddings = encode_by_tokens(run, texts, lengths, budget, progress=progress)
        if self.prompts.similarity == "dot":
            return embeddings
        # Normalized here and not by the library: its norm would be taken in the precision of the weights.
        norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings / np.where(norms == 0, 1.0, norms)


def load_encoder(
    path_or_id: str | Path,
    max_length: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    *,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: str | None = None,
) -> SentenceTransformerEncoder:
    """Load a run's folder or its ``export/``, another SentenceTransformer folder, or a hub id ``owner/name``.

    ``query_prompt``, ``document_prompt`` and ``similarity`` take the place of the model's own, see
    :func:`models.prompts.resolve_prompts`.

    Raises:
        FileNotFoundError: there is no such folder and the hub has or reaches no such model; or files are
            missing from it.
        ValueError: see :class:`SentenceTransformerEncoder`.
    """
    folder = resolve_encoder_folder(path_or_id)
    return SentenceTransformerEncoder(
        folder,
        name=str(path_or_id),
        max_length=max_length,
        dtype=dtype,
        device=device,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        similarity=similarity,
    )


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
    return download(text)


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
