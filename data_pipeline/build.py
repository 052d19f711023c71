"""From requests with one target each to Stage-I and Stage-II records with mined negatives (D.1)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tqdm import tqdm

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import (
    COPY_THRESHOLD,
    COSINE_THRESHOLD,
    NEIGHBOURS,
    ExclusionGraph,
    build_exclusion_graph,
    nearest_neighbours,
)
from data_pipeline.negatives import (
    SOURCES,
    Category,
    NegativeMiner,
    NegativeQuotas,
    QueryRanker,
    Shortfall,
    category_from_prefix,
    quotas_for,
)
from data_pipeline.records import (
    Stage1Record,
    Stage2Record,
    TrainingRequest,
    read_stage1,
    read_stage2,
    write_records,
)
from data_pipeline.tfidf import TfidfSvdEncoder
from data_pipeline.validation import query_problem, record_problem
from models.folders import write_json
from models.views import DEFAULT_FORMAT

if TYPE_CHECKING:
    from models.encoder import Encoder


@dataclass(frozen=True)
class DroppedRow:
    """A request without a record in ``stage`` (1 or 2), and why."""

    record_id: str
    stage: int
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class BuiltRecords:
    """Aligned training records: each of ``stage2`` has the positive and negatives of its record in ``stage1``."""

    stage1: list[Stage1Record]
    stage2: list[Stage2Record]
    exclusions: ExclusionGraph
    manifest: dict[str, Any]


def build_records(
    requests: Sequence[TrainingRequest],
    corpus: SkillCorpus,
    *,
    encoder: Encoder | None = None,
    category: Category = category_from_prefix,
    quotas: NegativeQuotas | None = None,
    seed: int = 42,
    threshold: float = COSINE_THRESHOLD,
    copy_threshold: float = COPY_THRESHOLD,
    query_source: Literal["dense", "bm25"] | QueryRanker = "dense",
    document_format: str = DEFAULT_FORMAT,
    progress: bool = False,
) -> BuiltRecords:
    """Mine negatives for every request and make the records of both stages; deterministic.

    Args:
        encoder: of skills and requests; None: TF-IDF/SVD, whose exclusion graph takes text overlap as a gate too.
        category: a skill's category; the default suits ids whose prefix is one.
        query_source: the query neighbours' retriever: the encoder (``dense``), BM25 (D.1's controlled variant), or
            any function (requests, k) -> ids per request.
        document_format: how documents are put together, see :func:`models.views.serialize_document`.

    A row that cannot be filled or fails validation is dropped, never repaired; the manifest counts and names it. A request
    without an implicit rewrite has a Stage-I record only.

    Raises:
        ValueError: no requests, a repeated record_id, or an encoder that the threshold does not fit.
    """
    quotas = quotas or NegativeQuotas()
    _check_requests(requests)
    documents = corpus.documents(document_format)
    used = encoder if encoder is not None else TfidfSvdEncoder(documents, seed=seed)
    embeddings = used.encode_documents(documents, progress=progress)
    neighbours = nearest_neighbours(corpus.ids, embeddings, NEIGHBOURS, progress)
    exclusions = build_exclusion_graph(
        corpus,
        embeddings,
        neighbours,
        encoder=used.name,
        threshold=threshold,
        copy_threshold=copy_threshold,
        text_gate=encoder is None,
        progress=progress,
    )
    dropped: list[DroppedRow] = []
    usable = [request for request in requests if _usable(request, corpus, dropped)]
    ranker = _query_ranker(query_source, used, corpus, documents, embeddings, progress)
    rankings = ranker([request.query for request in usable], NEIGHBOURS) if usable else []
    categories = {skill.skill_id: category(skill) for skill in corpus}
    skill_neighbours = dict(zip(corpus.ids, neighbours.ids, strict=True))
    quotas = quotas_for(quotas, categories)
    miner = NegativeMiner(categories, exclusions.adjacency, skill_neighbours, quotas, seed)

    stage1: list[Stage1Record] = []
    stage2: list[Stage2Record] = []
    occurrences: Counter[str] = Counter()
    rows = zip(usable, rankings, strict=True)
    for request, ranking in tqdm(rows, total=len(usable), desc="mining negatives", disable=not progress):
        mined = miner.mine(request.record_id, request.skill_id, ranking)
        if isinstance(mined, Shortfall):
            detail = f"{mined.source}: {mined.found} of {mined.wanted}"
            dropped.append(DroppedRow(request.record_id, 1, f"unfilled_{mined.source}", detail))
            continue
        record = _stage1_record(request, mined.ids, corpus, categories[request.skill_id], document_format)
        problem = record_problem(record, corpus, exclusions.adjacency, quotas.total)
        if problem:
            dropped.append(DroppedRow(request.record_id, 1, problem))
            continue
        stage1.append(record)
        occurrences.update(mined.sources)
        if request.implicit_query.strip():
            stage2.append(to_stage2(record, request.implicit_query))
        else:
            dropped.append(DroppedRow(request.record_id, 2, "no_implicit_query"))
    manifest = {
        "requests": len(requests),
        "stage1_records": len(stage1),
        "stage2_records": len(stage2),
        "rejected": dict(sorted(Counter(f"stage{row.stage}_{row.reason}" for row in dropped).items())),
        "dropped": [asdict(row) for row in dropped],
        "negatives_by_source": {source: occurrences[source] for source in SOURCES},
        "quotas": asdict(quotas),
        "seed": seed,
        "query_source": query_source if isinstance(query_source, str) else _name_of(query_source),
        "category": _name_of(category),
        "categories": len(set(categories.values())),
        "document_format": document_format,
        "encoder": {"name": used.name, "fingerprint": used.fingerprint},
        "corpus": {"skills": len(corpus), "sha256": _digest(corpus.ids, documents)},
        "exclusions": exclusions.manifest,
    }
    return BuiltRecords(stage1, stage2, exclusions, manifest)


def to_stage2(record: Stage1Record, implicit_query: str) -> Stage2Record:
    """The Stage-II view of a Stage-I record: the rewrite as query, labels and candidates unchanged (D.1)."""
    fields: dict[str, Any] = vars(record) | {"query": implicit_query, "original_query": record.query}
    return Stage2Record(**fields)


def write_records_folder(built: BuiltRecords, out_dir: str | Path) -> None:
    """Write ``stage1.jsonl``, ``stage2.jsonl``, ``exclusions.json`` and, last, ``manifest.json``.

    A folder with a manifest is complete: an older one is removed first. The same records give the same bytes.
    """
    folder = Path(out_dir)
    (folder / "manifest.json").unlink(missing_ok=True)
    write_records(folder / "stage1.jsonl", built.stage1)
    write_records(folder / "stage2.jsonl", built.stage2)
    built.exclusions.write(folder / "exclusions.json")
    write_json(folder / "manifest.json", built.manifest)


def read_records_folder(folder: str | Path) -> BuiltRecords:
    """Read what ``write_records_folder`` wrote; FileNotFoundError where the folder is not complete."""
    import json

    folder = Path(folder)
    if not (folder / "manifest.json").is_file():
        raise FileNotFoundError(f"{folder}: no manifest.json; expected a complete records folder")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    stage2 = read_stage2(folder / "stage2.jsonl") if manifest["stage2_records"] else []
    stage1 = read_stage1(folder / "stage1.jsonl") if manifest["stage1_records"] else []
    return BuiltRecords(stage1, stage2, ExclusionGraph.read(folder / "exclusions.json"), manifest)


def _check_requests(requests: Sequence[TrainingRequest]) -> None:
    if not requests:
        raise ValueError("no requests: expected at least one")
    repeated = [record_id for record_id, n in Counter(r.record_id for r in requests).items() if n > 1]
    if repeated:
        raise ValueError(f"record_id {repeated[0]!r} occurs more than once among the requests; ids are unique")


def _usable(request: TrainingRequest, corpus: SkillCorpus, dropped: list[DroppedRow]) -> bool:
    problem = query_problem(request.query)
    if request.skill_id not in corpus:
        dropped.append(DroppedRow(request.record_id, 1, "unknown_skill", request.skill_id))
    elif problem:
        detail = f"{len(request.query.split())} words, {len(request.query)} characters"
        dropped.append(DroppedRow(request.record_id, 1, problem, detail))
    else:
        return True
    return False


def _stage1_record(
    request: TrainingRequest, negative_ids: tuple[str, ...], corpus: SkillCorpus, category: str, document_format: str
) -> Stage1Record:
    negatives = tuple(corpus.document(skill_id, document_format) for skill_id in negative_ids)
    positive = corpus.document(request.skill_id, document_format)
    return Stage1Record(
        request.record_id,
        request.query,
        request.query_capability,
        request.skill_id,
        positive,
        negative_ids,
        negatives,
        category,
    )


def _query_ranker(
    source: str | QueryRanker,
    encoder: Encoder,
    corpus: SkillCorpus,
    documents: list[str],
    embeddings: Any,
    progress: bool,
) -> QueryRanker:
    from retrieval import BM25Index, DenseIndex

    if not isinstance(source, str):
        return source
    if source == "dense":
        dense = DenseIndex(corpus.ids, embeddings)
        return lambda requests, k: dense.search(encoder.encode_queries(requests, progress=progress), k).ids
    if source == "bm25":
        bm25 = BM25Index(corpus.ids, documents)
        return lambda requests, k: bm25.search(requests, k).ids
    raise ValueError(f"query_source = {source!r}: expected 'dense', 'bm25' or a function")


def _name_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"


def _digest(ids: list[str], documents: list[str]) -> str:
    digest = hashlib.sha256()
    for skill_id, document in zip(ids, documents, strict=True):
        digest.update(hashlib.sha256(f"{skill_id}\0{document}".encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()
