"""The whole report: measure a library, write ``report.json``, the plots and the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.corpus import SkillCorpus
from data_pipeline.negatives import category_from_prefix
from data_pipeline.skill2query.generation import GenerationConfig, generate
from data_pipeline.skill2query.pseudo_query import PseudoQuery, read_pseudo_queries
from evaluation.library_report import figures
from evaluation.library_report.advice import Adviser
from evaluation.library_report.descriptions import weak_descriptions
from evaluation.library_report.duplicates import duplicate_clusters
from evaluation.library_report.findings import LABELS
from evaluation.library_report.overview import encoder_of, overview
from evaluation.library_report.page import SHOWN, write_page
from evaluation.library_report.reach import (
    confusions,
    hubs,
    own_requests,
    self_retrieval,
)
from evaluation.library_report.real_requests import real_requests
from evaluation.library_report.rows import advice_row, cluster_row, confusion_row, recall_with_copies, skill_rows
from evaluation.library_report.trial import open_library, try_advice
from evaluation.library_report.wording import Wording
from models.folders import write_json
from retrieval.embedding_cache import EmbeddingCache, default_cache_dir
from retrieval.retriever import Retriever, document_format

MARKED = 12
"""Skills whose number stands on the map: the first of the list of what to do."""


@dataclass(frozen=True)
class LibraryConfig:
    """How much is measured.

    Attributes:
        per_skill: most pseudo-queries of a skill.
        max_queries: most of all; a large library gets fewer a skill, at least one.
        try_advice: also search an index in which the suggested words stand in the descriptions.
    """

    per_skill: int = 10
    max_queries: int = 100_000
    try_advice: bool = False

    def __post_init__(self) -> None:
        for key in ("per_skill", "max_queries"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; expected a positive number")


@dataclass(frozen=True)
class LibraryReport:
    """What ``report.json`` holds; docs/reports.md names the keys."""

    value: dict[str, Any]

    def summary(self) -> str:
        """A few lines for the terminal."""
        value = self.value
        found, counts = value["self_retrieval"], value["findings"]
        lines = [
            f"{value['overview']['skills']:,} skills, {found['requests']:,} pseudo-queries: "
            f"recall@1 {100 * found['recall@1']:.1f}%, recall@{found['depth']} {100 * found['recall@depth']:.1f}%",
            f"{len(value['advice']):,} skills have a finding:",
            *(f"  {LABELS[kind]}: {count:,}" for kind, count in counts.items() if count),
        ]
        if "advice_tried" in value:
            tried = value["advice_tried"]
            before, after = (100 * tried[key]["recall@1"] for key in ("before", "after"))
            lines.append(
                f"with the suggested words in {tried['skills']:,} descriptions: recall@1 {before:.1f}% → {after:.1f}%"
            )
        return "\n".join(lines)


def report_library(
    model: str,
    corpus_path: str | Path,
    out_dir: str | Path,
    *,
    bench: str | Path | None = None,
    queries: str | Path | None = None,
    config: LibraryConfig | None = None,
    fusion_weight: float | None = None,
    max_length: int | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = False,
) -> LibraryReport:
    """Measure a library as ``model`` searches it; write ``index.html``, ``report.json`` and PNGs into ``out_dir``.

    Args:
        model: ``bm25``, a model folder or hub id, or ``hybrid:FOLDER``.
        corpus_path: skills (JSONL, gzipped JSONL or Parquet).
        bench: real requests with their skills, reported beside the pseudo-queries.
        queries: pseudo-queries; made by rule (the Skill2Query paper, 3.3) if not given.

    Raises:
        ValueError: what a reader or the model refuses, and pseudo-queries none of which belongs to the library.
        FileNotFoundError: a file or the model is missing.
    """
    config = config or LibraryConfig()
    corpus = _encodable(SkillCorpus.from_jsonl(corpus_path))
    settings = {"fusion_weight": fusion_weight, "max_length": max_length, "cache_dir": cache_dir}
    retriever = open_library(model, corpus, settings, progress)
    requests = own_requests(corpus, _pseudo_queries(corpus, queries, progress), config.per_skill, config.max_queries)
    if not requests:
        raise ValueError(
            f"{queries or corpus_path}: no pseudo-query for any of the {len(corpus)} skills; nothing to measure"
        )
    reach = self_retrieval(corpus, retriever, requests, progress)
    embeddings, encoder = _embeddings(corpus, retriever, model, cache_dir, progress)
    clusters = duplicate_clusters(corpus, embeddings, encoder, progress)
    confusable, (found_hubs, hub_threshold) = confusions(reach), hubs(reach)
    wording = Wording(corpus, progress)
    advice = Adviser(corpus, wording, requests, reach).advise(
        clusters, confusable, found_hubs, weak_descriptions(corpus)
    )

    points, method = figures.layout(embeddings)
    domains = domains_of(corpus)
    marked = [
        (a.skill, str(number) if number <= MARKED else "")
        for number, a in enumerate(advice[: SHOWN["advice"]], 1)
        if a.impact
    ]
    out = Path(out_dir)
    plots = {
        "ranks": figures.plot_ranks(reach, out / "ranks.png"),
        "skills": figures.plot_skill_recall(reach, out / "skills.png"),
        "map": figures.plot_map(points, domains, marked, out / "map.png"),
    }
    value: dict[str, Any] = {
        "model": str(model),
        "corpus": str(corpus_path),
        "overview": overview(corpus, retriever, document_format(model), domains),
        "self_retrieval": {
            "requests": len(requests),
            "most_a_skill": int(reach.requests.max()),
            "asked_of": config.per_skill,
            "source": str(queries) if queries else "by rule",
            "depth": reach.depth,
            "recall@1": reach.recall(1),
            "recall@depth": reach.recall(reach.depth),
            "copies_forgiven@1": recall_with_copies(reach, corpus, clusters),
            "ranks": figures.rank_counts(reach),
            "skills_asked": int((reach.requests > 0).sum()),
            "skills_never_found": int(((reach.requests > 0) & (reach.found(reach.depth) == 0)).sum()),
            "skills_never_first": int(((reach.requests > 0) & (reach.found(1) == 0)).sum()),
        },
        "findings": {kind: sum(any(f.kind == kind for f in a.findings) for a in advice) for kind in LABELS},
        "advice": [advice_row(corpus, a) for a in advice],
        "confusable": [confusion_row(corpus, wording, reach, pair) for pair in confusable],
        "duplicates": [cluster_row(corpus, cluster) for cluster in clusters],
        "hubs": [{"skill_id": corpus.ids[hub.skill], **asdict(hub)} for hub in found_hubs],
        "hub_threshold": hub_threshold,
        "map": {"method": method, "encoder": encoder},
        "skills": skill_rows(corpus, reach),
    }
    if bench is not None:
        value["real_requests"] = real_requests(corpus, retriever, bench, reach.depth)
    if config.try_advice:
        value["advice_tried"] = try_advice(model, corpus, settings, requests, reach, advice, progress)
    write_json(out / "report.json", value)
    write_page(out / "index.html", value, plots)
    return LibraryReport(value)


def _encodable(corpus: SkillCorpus) -> SkillCorpus:
    """The corpus with lone surrogates replaced: JSON can write them, and no file or page can hold them."""

    def clean(text: str) -> str:
        return text.encode("utf-8", "replace").decode("utf-8")

    return SkillCorpus(
        replace(
            skill,
            skill_id=clean(skill.skill_id),
            name=clean(skill.name),
            description=clean(skill.description),
            body=clean(skill.body),
            metadata={key: clean(value) for key, value in skill.metadata.items()},
        )
        for skill in corpus
    )


def domains_of(corpus: SkillCorpus) -> list[str]:
    """The domain of each skill: its row's ``domain``, else ``category``, else its id up to the first ``/`` where it has one."""
    return [
        skill.metadata.get("domain")
        or skill.metadata.get("category")
        or (category_from_prefix(skill) if "/" in skill.skill_id else "library")
        for skill in corpus
    ]


def _pseudo_queries(corpus: SkillCorpus, queries: str | Path | None, progress: bool) -> Iterable[PseudoQuery]:
    if queries is None:
        return generate(corpus, GenerationConfig(), progress=progress)
    return sorted(
        read_pseudo_queries(queries), key=lambda query: query.skill_id
    )  # stable: a skill's stay in their order


def _embeddings(
    corpus: SkillCorpus, retriever: Retriever, model: str, cache_dir: str | Path | None, progress: bool
) -> tuple[np.ndarray, str]:
    """Unit rows for neighbours and the map: the model's, read from the cache where it just put them, or TF-IDF/SVD for BM25."""
    texts = corpus.documents(document_format(model))
    used = encoder_of(retriever)
    if used is not None:
        cache = EmbeddingCache(cache_dir or default_cache_dir())
        rows = cache.encode_documents(used, texts, progress=progress)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)  # not 1 where a model compares by dot product
        return rows / np.where(norms == 0, 1.0, norms), Path(used.name).name
    from data_pipeline.tfidf import TfidfSvdEncoder

    encoder = TfidfSvdEncoder(texts)
    return encoder.encode_documents(texts), encoder.name
