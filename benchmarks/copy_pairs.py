"""How many near copies of a real library the embedding-gated exclusion graph finds, against a count of all pairs.

    python benchmarks/copy_pairs.py CORPUS [--encoder MODEL]

Every pair's character-trigram Jaccard is computed (sparse products, quadratic: minutes for 10,000 skills), then the graph of D.1
is built with the encoder, gated by its cosine alone and with the text gate, and what it misses is listed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from data_pipeline import SkillCorpus
from data_pipeline.exclusions import COPY_THRESHOLD, build_exclusion_graph, nearest_neighbours
from data_pipeline.pipeline.config import EncodingConfig
from data_pipeline.pipeline.spread import PipelineEncoder
from data_pipeline.trigrams import copy_text

_ROWS = 128


def all_pairs(texts: list[str], minimum: float) -> dict[tuple[int, int], float]:
    """Every pair of texts whose trigram Jaccard is above ``minimum``."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False, binary=True)
    matrix: Any = vectorizer.fit_transform(texts)
    sizes = np.asarray(matrix.sum(axis=1)).ravel()
    columns = matrix.T.tocsc()
    found = {}
    for start in range(0, len(texts), _ROWS):
        shared = (matrix[start : start + _ROWS] @ columns).toarray()
        scores = shared / np.maximum(sizes[start : start + _ROWS, None] + sizes - shared, 1)
        for left, right in zip(*np.nonzero(scores > minimum), strict=True):
            if start + left < right:
                found[int(start + left), int(right)] = float(scores[left, right])
    return found


def main() -> None:
    """Print the counts, and the pairs that each gate misses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus")
    parser.add_argument("--encoder", default="", help="embedding model (default: TF-IDF/SVD)")
    parser.add_argument("--threshold", type=float, default=0.85)
    arguments = parser.parse_args()
    corpus = SkillCorpus.from_jsonl(arguments.corpus)
    start = time.perf_counter()
    copies = all_pairs([copy_text(skill) for skill in corpus], COPY_THRESHOLD)
    above = sum(score > 0.8 for score in copies.values())
    print(
        f"{len(corpus)} skills, all pairs in {time.perf_counter() - start:.1f} s: {len(copies)} above 0.60, {above} above 0.80"
    )
    start = time.perf_counter()
    encoder = PipelineEncoder(EncodingConfig(encoder=arguments.encoder), corpus, 42, progress=True)
    embeddings = encoder.encode_documents(corpus.documents())
    neighbours = nearest_neighbours(corpus.ids, embeddings)
    near = {corpus.ids[i]: set(row) for i, row in enumerate(neighbours.ids)}
    print(f"embedded by {encoder.name} in {time.perf_counter() - start:.1f} s")
    for text_gate in (False, True):
        graph = build_exclusion_graph(
            corpus, embeddings, neighbours, encoder=encoder.name, threshold=arguments.threshold, text_gate=text_gate
        )
        found = {(corpus.position(edge.a), corpus.position(edge.b)) for edge in graph.edges}
        missed = sorted(copies.keys() - found, key=lambda pair: -copies[pair])
        gate = "cosine or text" if text_gate else "cosine"
        print(f"gate {gate}: {len(copies) - len(missed)} of {len(copies)}; {len(graph.edges)} edges; missed:")
        for left, right in missed:
            a, b = corpus.ids[left], corpus.ids[right]
            place = "" if b in near[a] or a in near[b] else ", not among the 50 nearest"
            cosine = float(embeddings[left] @ embeddings[right])
            print(f"  Jaccard {copies[left, right]:.4f}, cosine {cosine:.3f}{place}: {a}  {b}")


if __name__ == "__main__":
    main()
