"""Build an index from a library: encode what is not encoded yet, and write a version that is complete or does not exist."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.corpus import SkillCorpus, skill_to_row
from data_pipeline.rows import write_rows
from models.folders import write_json
from models.views import DEFAULT_FORMAT
from retrieval.bm25 import BM25Index
from retrieval.embedding_cache import EmbeddingCache, default_cache_dir, text_key
from retrieval.retriever import RETRIEVAL_FILE, read_fusion_weight, split_model_spec
from serving.index import (
    BM25_FOLDER,
    EMBEDDINGS_FILE,
    FAISS_FILE,
    INFO_FILE,
    SKILLS_FILE,
    IndexInfo,
    SkillIndex,
    absolute_path,
    info_to_json,
    open_index,
    skill_domain,
)
from serving.index_vectors import KINDS, write_vectors
from serving.versions import KEEP, IndexCorruptError, IndexNotFoundError, check_keep, file_digests, new_version, writing

if TYPE_CHECKING:
    from models.encoder import SentenceTransformerEncoder

_TOOLS = ("skillreason", "sentence-transformers", "torch", "numpy", "bm25s", "faiss-cpu", "faiss-gpu-cu12")


@dataclass(frozen=True)
class BuildSettings:
    """How an index is built, apart from its skills and its model; an update keeps the settings of the build.

    Attributes:
        kind: ``flat``, ``ivf``, ``hnsw``, or ``auto``: exact up to :data:`retrieval.approximate.EXACT_VALUES` numbers.
        fusion_weight: of the dense list in a hybrid; None: unknown.
        reranker: recorded, and opened with the index.
        encoder_options: for :func:`models.encoder.load_encoder`.
    """

    kind: str = "auto"
    fusion_weight: float | None = None
    reranker: str | None = None
    encoder_options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Built:
    """A version that was just written.

    Attributes:
        info: what is in it.
        encoded: documents that had to be encoded.
        reused: documents whose embeddings were there, from an earlier version or the cache.
    """

    info: IndexInfo
    encoded: int
    reused: int


def build_index(
    out: str | Path,
    corpus: str | Path | SkillCorpus,
    model: str | Path,
    *,
    kind: str = "auto",
    fusion_weight: float | None = None,
    reranker: str | Path | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    similarity: str | None = None,
    device: str | None = None,
    cache_dir: str | Path | None = None,
    batch_size: int = 32,
    keep: int = KEEP,
    wait: float = 0.0,
    source: Sequence[str] | None = None,
    progress: bool = False,
) -> Built:
    """Write a new version of the index in the folder ``out``, which readers see when it is complete.

    Documents are put together in the model's own format (a row's ``index_text`` as it stands) and encoded once: what an earlier
    version of the index or the embedding cache has is taken from there, so the same call after a kill goes on where it was.

    Args:
        corpus: a corpus file, or the skills themselves.
        model: ``bm25``, a model folder or hub id, or ``hybrid:`` and one of these, which must have a fusion weight.
        kind: see :class:`BuildSettings`.
        fusion_weight: of the dense list in hybrid searches; the one stored with the model if not given.
        reranker: see :func:`evaluation.reranking.rerank`; recorded, and opened with the index.
        max_length, dtype, query_prompt, document_prompt, similarity, device: see :func:`models.encoder.load_encoder`; all but the
            device are recorded, and whoever opens the index uses the same.
        cache_dir: see :func:`retrieval.embedding_cache.default_cache_dir`.
        keep: versions to keep, the new one included; at least 2.
        wait: seconds to wait for another writer.
        source: where the skills came from, for the record.

    Raises:
        ValueError, FileNotFoundError: what the corpus or the model refuses, or a setting out of range.
        IndexBusyError: another process writes to this index.
    """
    check_keep(keep)
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
    if fusion_weight is not None and not 0 <= fusion_weight <= 1:
        raise ValueError(
            f"fusion weight is {fusion_weight}; expected a number between 0 (BM25 alone) and 1 (dense alone)"
        )
    skills = corpus if isinstance(corpus, SkillCorpus) else SkillCorpus.from_jsonl(corpus)
    if source is None:
        source = [] if isinstance(corpus, SkillCorpus) else [str(Path(corpus).absolute())]
    wanted, path = split_model_spec(model)
    encoder = None
    given = {
        "max_length": max_length,
        "dtype": dtype,
        "query_prompt": query_prompt,
        "document_prompt": document_prompt,
        "similarity": similarity,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if wanted == "bm25":
        vectors = [*options, *(["fusion_weight"] if fusion_weight is not None else [])]
        if vectors or kind not in ("auto", "flat"):
            raise ValueError(f"bm25 has no vectors, so it takes no {(vectors or ['kind'])[0].replace('_', ' ')}")
    else:
        from models.encoder import load_encoder, resolve_encoder_folder

        folder = resolve_encoder_folder(path)
        if fusion_weight is None and (wanted == "hybrid" or (folder / RETRIEVAL_FILE).is_file()):
            fusion_weight = read_fusion_weight(folder)
        encoder = load_encoder(path, device=device, **options)
        path = absolute_path(path)
    settings = BuildSettings(kind, fusion_weight, absolute_path(reranker) if reranker else None, options)
    with writing(out, wait):
        return write_version(
            out,
            skills,
            encoder,
            path or None,
            settings,
            previous=_previous(out),
            source=source,
            cache_dir=cache_dir,
            batch_size=batch_size,
            keep=keep,
            progress=progress,
        )


def write_version(
    root: str | Path,
    skills: SkillCorpus,
    encoder: SentenceTransformerEncoder | None,
    model: str | None,
    settings: BuildSettings,
    *,
    previous: SkillIndex | None,
    source: Sequence[str],
    cache_dir: str | Path | None,
    batch_size: int,
    keep: int,
    progress: bool,
) -> Built:
    """Encode and write; the caller holds the lock (:func:`serving.versions.writing`).

    Args:
        encoder: None: BM25 alone.
        model: where the encoder is, for whoever opens the index.
        previous: the version whose embeddings are taken over where the document is the same.
    """
    if not len(skills):
        raise ValueError("the library is empty; expected at least one skill")
    _check_text(skills)
    with new_version(root, keep) as (version, folder):
        write_rows(folder / SKILLS_FILE, (skill_to_row(skill) for skill in skills))
        # From here on what a reader will see: reading drops empty metadata and names any row that it would refuse.
        skills = SkillCorpus.from_jsonl(folder / SKILLS_FILE)
        document_format = encoder.document_format if encoder is not None else DEFAULT_FORMAT
        texts = skills.documents(document_format)
        cache = EmbeddingCache(cache_dir or default_cache_dir())
        dimension, kind, vectors = None, None, {}
        if encoder is not None:
            embeddings = cache.encode_documents(
                encoder, texts, batch_size=batch_size, progress=progress, known=_known(previous, encoder)
            )
            dimension = embeddings.shape[1]
            np.save(folder / EMBEDDINGS_FILE, embeddings, allow_pickle=False)
            kind, vectors = write_vectors(folder / FAISS_FILE, skills, encoder, embeddings, settings.kind, batch_size)
        BM25Index(skills.ids, texts).save(folder / BM25_FOLDER)
        info = IndexInfo(
            version=version,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            n_skills=len(skills),
            domains=dict(sorted(Counter(d for d in map(skill_domain, skills) if d is not None).items())),
            model=model,
            fingerprint=encoder.fingerprint if encoder is not None else None,
            encoder_options=dict(settings.encoder_options or {}),
            document_format=document_format,
            dimension=dimension,
            kind=kind,
            vectors=vectors,
            fusion_weight=settings.fusion_weight,
            reranker=settings.reranker,
            source=list(source),
            tools=_tools(),
        )
        write_json(folder / INFO_FILE, info_to_json(info, file_digests(folder)))
    return Built(info, cache.misses, cache.hits)


def _known(previous: SkillIndex | None, encoder: SentenceTransformerEncoder) -> dict[bytes, np.ndarray]:
    """Embeddings of an earlier version by their text, where the same model made them."""
    if previous is None or previous.dense is None or previous.info.fingerprint != encoder.fingerprint:
        return {}
    keys = map(text_key, previous.skills.documents(previous.info.document_format))
    return dict(zip(keys, previous.dense.embeddings, strict=True))


def _previous(root: str | Path) -> SkillIndex | None:
    """The version that is there, if it can be read; a damaged one is what a build replaces."""
    try:
        return open_index(root)
    except (IndexNotFoundError, IndexCorruptError):
        return None


def _check_text(skills: SkillCorpus) -> None:
    for skill in skills:
        for key, text in skill_to_row(skill).items():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"skill {skill.skill_id!r}: {key} has half a surrogate pair at character {error.start}, which no model "
                    "reads; skillreason ingest drops such records"
                ) from None


def _tools() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _TOOLS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
