"""The stages that make a skill library ready: cleaning, embeddings, the exclusion graph and categories (C.2, D.1)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from data_pipeline.exclusions import build_exclusion_graph, nearest_neighbours
from data_pipeline.ingest import ingest
from data_pipeline.negatives import category_from_prefix
from data_pipeline.pipeline.artifacts import corpus_of, encoder_of
from data_pipeline.pipeline.asking import Asked, ask
from data_pipeline.pipeline.dag import Stage, StageContext, StageReport
from data_pipeline.rows import write_rows
from data_pipeline.teacher import prompts
from models.folders import write_json


def collect(context: StageContext) -> StageReport:
    """Read, clean and merge the sources (C.2)."""
    file, summary = context.out / "corpus.jsonl.gz", context.out / "ingest.json"
    report = ingest(context.config.sources, file, summary, progress=context.progress)
    # Without the folder that it was written in: an artifact of the same inputs has the same bytes.
    write_json(summary, report.to_dict() | {"out": file.name})
    return StageReport({"collected": report.collected, "skills": report.kept}, report.dropped)


def embed(context: StageContext) -> StageReport:
    """Unit embeddings of every document."""
    corpus = corpus_of(context)
    encoder = encoder_of(context, corpus)
    embeddings = encoder.encode_documents(corpus.documents())
    np.save(context.out / "embeddings.npy", embeddings)
    write_json(context.out / "encoder.json", {"name": encoder.name, "fingerprint": encoder.fingerprint})
    return StageReport({"skills": len(corpus), "dimensions": int(embeddings.shape[1])}, notes={"encoder": encoder.name})


def exclude(context: StageContext) -> StageReport:
    """The exclusion graph and every skill's nearest skills (D.1)."""
    corpus, limits = corpus_of(context), context.config.exclusions
    embeddings = np.load(context.inputs["embed"] / "embeddings.npy")
    given = bool(context.config.encoding.encoder)
    neighbours = nearest_neighbours(corpus.ids, embeddings, limits.neighbours, context.progress)
    graph = build_exclusion_graph(
        corpus,
        embeddings,
        neighbours,
        encoder=context.config.encoding.encoder or "tfidf-svd",
        threshold=limits.cosine,
        copy_threshold=limits.copy,
        text_gate=not given,
        progress=context.progress,
    )
    graph.write(context.out / "exclusions.json")
    positions = np.array([[corpus.position(i) for i in row] for row in neighbours.ids], dtype=np.int32)
    np.save(context.out / "neighbours.npy", positions.reshape(len(corpus), -1))
    manifest = graph.manifest
    return StageReport(
        {key: manifest[key] for key in ("edges", "copies", "similar", "skills_with_edges")}, notes=manifest
    )


def categorize(context: StageContext) -> StageReport:
    """Every skill's category: its id's prefix, the teacher's choice, or the label nearest to its document."""
    corpus, settings = corpus_of(context), context.config.categories
    asked = Asked([])
    if settings.source == "prefix":
        found = [category_from_prefix(skill) for skill in corpus]
    elif settings.source == "teacher":
        asked = ask(context, "category", (prompts.category(skill, settings.labels) for skill in corpus))
        found = [r.value["category"] if r.value else settings.labels[0] for r in asked.results]
    else:
        encoder = encoder_of(context, corpus)
        labels = encoder.encode_queries(settings.labels)
        documents = np.load(context.inputs["embed"] / "embeddings.npy")
        found = [settings.labels[i] for i in (documents @ labels.T).argmax(axis=1)]
    rows = ({"skill_id": skill_id, "category": name} for skill_id, name in zip(corpus.ids, found, strict=True))
    write_rows(context.out / "categories.jsonl", rows)
    return StageReport({"categories": len(set(found))}, asked.failed, {"skills": dict(Counter(found)), **asked.notes})


LIBRARY_STAGES = (
    Stage("corpus", collect, keys=("sources",), files=("sources",)),
    Stage("embed", embed, ("corpus",), keys=("embedding", "seed")),
    Stage("exclude", exclude, ("corpus", "embed"), keys=("exclusions", "embedding")),
    Stage("categorize", categorize, ("corpus", "embed"), keys=("categories", "asked.category", "embedding", "seed")),
)
