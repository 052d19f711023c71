"""The index on disk, opened: the skills of a library, their vectors, BM25, and what they were built with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_pipeline.corpus import Skill, SkillCorpus
from models.views import DEFAULT_FORMAT
from retrieval.bm25 import BM25Index
from retrieval.dense import DenseIndex
from serving.versions import (
    IndexCorruptError,
    check_files,
    current_version,
    version_folder,
)

if TYPE_CHECKING:
    from models.encoder import SentenceTransformerEncoder

FORMAT = "skillreason-index-1"
INFO_FILE = "index.json"
SKILLS_FILE = "skills.jsonl"
EMBEDDINGS_FILE = "embeddings.npy"
FAISS_FILE = "vectors.faiss"
BM25_FOLDER = "bm25"
_DOMAIN_KEYS = ("domain", "category", "major")


class ModelMismatchError(ValueError):
    """The model of an index has changed or vanished: its requests would not fit the indexed documents."""


@dataclass(frozen=True)
class IndexInfo:
    """What an index was built from and how; ``index.json`` of a version.

    Attributes:
        version: id of the version.
        built_at: UTC, ISO 8601.
        n_skills: skills in it.
        domains: skills by domain, see :func:`skill_domain`; those without one are not counted.
        model: folder or hub id of the encoder; None: BM25 alone.
        fingerprint: of the model, see :class:`models.encoder.Encoder`.
        encoder_options: what else :func:`models.encoder.load_encoder` needs to be given.
        document_format: in which the documents were put together.
        dimension: components of an embedding.
        kind: ``flat`` (exact), ``ivf`` or ``hnsw``; None without a model.
        vectors: how the kind was chosen, its parameters, and its recall against exact search on a sample.
        fusion_weight: of the dense list in a hybrid search; None: unknown.
        reranker: folder or hub id of the reranker to be opened with the index.
        source: the files or folders that the skills came from.
        tools: versions of what built it.
    """

    version: str
    built_at: str
    n_skills: int
    domains: dict[str, int]
    model: str | None = None
    fingerprint: str | None = None
    encoder_options: dict[str, Any] = field(default_factory=dict)
    document_format: str = DEFAULT_FORMAT
    dimension: int | None = None
    kind: str | None = None
    vectors: dict[str, Any] = field(default_factory=dict)
    fusion_weight: float | None = None
    reranker: str | None = None
    source: list[str] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)

    @property
    def has_reranker(self) -> bool:
        """Whether results can be reranked."""
        return self.reranker is not None


@dataclass(frozen=True)
class SkillIndex:
    """One version of an index in memory; nothing in it changes, any number of threads may read it.

    Attributes:
        folder: of the version.
        skills: in corpus order, the order of every vector and of equal scores.
        dense: None where the index was built for BM25 alone.
        domain_of: each skill's domain, None where it has none; in corpus order.
        positions: of the skills of each domain, ascending.
    """

    folder: Path
    info: IndexInfo
    skills: SkillCorpus
    bm25: BM25Index
    dense: DenseIndex | None
    domain_of: list[str | None]
    positions: dict[str, np.ndarray]

    def within(self, domain: str) -> np.ndarray:
        """Positions of a domain's skills, ascending.

        Raises:
            ValueError: no skill has it; the domains that there are are named.
        """
        if domain not in self.positions:
            known = sorted(self.positions)
            shown = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
            raise ValueError(
                f"no skill of domain {domain!r}; expected one of: {shown or 'none, no skill here has a domain'}"
            )
        return self.positions[domain]


def skill_domain(skill: Skill) -> str | None:
    """The domain by which a search can be narrowed; None where a skill has none.

    It is the row's ``domain``, ``category`` or ``major`` (SkillRet's), whichever comes first; else its id up to the first ``/``,
    as in the paper's corpus (D.1).
    """
    for key in _DOMAIN_KEYS:
        if skill.metadata.get(key, "").strip():
            return skill.metadata[key].strip()
    prefix, slash, _ = skill.skill_id.partition("/")
    return prefix.strip() or None if slash else None


def absolute_path(path: str | Path) -> str:
    """A file or folder by its whole path, since the index may be opened from elsewhere; a hub id, which is no path, as it is."""
    found = Path(path).expanduser()
    return str(found.absolute()) if found.exists() else str(path)


def read_info(root: str | Path, version: str | None = None) -> IndexInfo:
    """What ``index.json`` of a version says, the current one if none is named; nothing else is read or verified.

    Raises:
        IndexNotFoundError, IndexCorruptError: no index, or a damaged file.
    """
    return _read_info(version_folder(root, version or current_version(root)))[0]


def open_index(root: str | Path, version: str | None = None) -> SkillIndex:
    """Read a version of an index into memory, the current one if none is named, and verify every file of it.

    Raises:
        IndexNotFoundError: the folder holds no index.
        IndexCorruptError: a file is missing or damaged; it is named.
    """
    while True:
        wanted = version or current_version(root)
        try:
            return _open(version_folder(root, wanted))
        except IndexCorruptError:
            # While this version was being read a writer may have moved on twice and removed it.
            if version is not None or current_version(root) == wanted:
                raise


def load_model(
    info: IndexInfo, model: str | Path | None = None, device: str | None = None
) -> SentenceTransformerEncoder:
    """The encoder that an index was built with.

    Args:
        model: where it is now, if not where it was.

    Raises:
        ModelMismatchError: it is gone, or is not the one that encoded the documents.
    """
    from models.encoder import load_encoder

    where = str(model if model is not None else info.model)
    remedy = "give the model's place with --model, or build the index again"
    try:
        encoder = load_encoder(where, device=device, **info.encoder_options)
    except FileNotFoundError as error:
        raise ModelMismatchError(f"the model of this index cannot be found ({error}); {remedy}") from error
    if encoder.fingerprint != info.fingerprint:
        raise ModelMismatchError(
            f"{where}: not the model that encoded this index: its fingerprint is {encoder.fingerprint[:12]}…, "
            f"the index has {str(info.fingerprint)[:12]}…; {remedy}"
        )
    return encoder


def _read_info(folder: Path) -> tuple[IndexInfo, dict[str, Any]]:
    path = folder / INFO_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("format") != FORMAT:
            raise IndexCorruptError(f"{path}: format is {stored.get('format')!r}; expected {FORMAT!r}")
        info = IndexInfo(**{key.name: stored[key.name] for key in fields(IndexInfo)})
        return info, dict(stored["files"])
    except FileNotFoundError:
        raise IndexCorruptError(f"{path}: missing; build the index again") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, IndexCorruptError):
            raise
        raise IndexCorruptError(f"{path}: not what index build wrote ({error!r}); build the index again") from error


def info_to_json(info: IndexInfo, files: dict[str, Any]) -> dict[str, Any]:
    """What ``index.json`` holds: the information and the digests of all other files."""
    return {"format": FORMAT, **asdict(info), "files": files}


def _open(folder: Path) -> SkillIndex:
    info, files = _read_info(folder)
    check_files(folder, files)
    skills = SkillCorpus.from_jsonl(folder / SKILLS_FILE)
    bm25 = BM25Index.load(folder / BM25_FOLDER, skills.ids)
    dense = None
    if info.model is not None:
        embeddings = np.load(folder / EMBEDDINGS_FILE, allow_pickle=False)
        if info.kind == "flat":
            dense = DenseIndex(skills.ids, embeddings)
        else:
            from retrieval.approximate import ApproximateIndex

            effort = int(info.vectors["effort"])
            dense = ApproximateIndex.load(folder / FAISS_FILE, skills.ids, embeddings, str(info.kind), effort)
    domain_of = [skill_domain(skill) for skill in skills]
    positions: dict[str, list[int]] = {}
    for position, domain in enumerate(domain_of):
        if domain is not None:
            positions.setdefault(domain, []).append(position)
    arrays = {domain: np.array(found) for domain, found in positions.items()}
    return SkillIndex(folder, info, skills, bm25, dense, domain_of, arrays)
