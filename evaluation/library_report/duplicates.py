"""Near-duplicate skills: proposed by their embeddings, decided by their text, joined into clusters."""

from __future__ import annotations

from dataclasses import dataclass

import networkx
import numpy as np

from data_pipeline.corpus import SkillCorpus
from data_pipeline.exclusions import COPY_THRESHOLD, ExclusionEdge, build_exclusion_graph, nearest_neighbours

COPY = 0.80
"""Trigram Jaccard from which two skills are called copies; from D.1's 0.60 on they are variants."""


@dataclass(frozen=True)
class Cluster:
    """Skills tied by near-duplicate pairs.

    Attributes:
        skills: their ids, in corpus order.
        edges: the pairs, with trigram Jaccard and cosine, the closest first.
    """

    skills: tuple[str, ...]
    edges: tuple[ExclusionEdge, ...]

    @property
    def closest(self) -> float:
        return self.edges[0].jaccard


def duplicate_clusters(
    corpus: SkillCorpus, embeddings: np.ndarray, encoder: str, progress: bool = False
) -> list[Cluster]:
    """Clusters of skills whose texts have a character-trigram Jaccard over 0.60, the largest first.

    Pairs are looked for among each skill's 50 nearest by cosine. A high cosine alone makes no pair: it depends on the encoder,
    and skills of one subject but different words show up among the confusable pairs if they harm each other.

    Args:
        embeddings: ``[n, d]`` in corpus order, rows of unit length.
    """
    if len(corpus) < 2:
        return []
    neighbours = nearest_neighbours(corpus.ids, embeddings, progress=progress)
    pairs = build_exclusion_graph(
        corpus,
        embeddings,
        neighbours,
        encoder=encoder,
        threshold=1.0,
        copy_threshold=COPY_THRESHOLD,
        text_gate=True,
        max_pair_fraction=1.0,
        progress=progress,
    )
    graph = networkx.Graph()
    graph.add_edges_from((edge.a, edge.b) for edge in pairs.edges if edge.jaccard > COPY_THRESHOLD)
    clusters = []
    for component in networkx.connected_components(graph):
        own = [edge for edge in pairs.edges if edge.a in component and edge.jaccard > COPY_THRESHOLD]
        own.sort(key=lambda edge: (-edge.jaccard, edge.a, edge.b))
        clusters.append(Cluster(tuple(sorted(component, key=corpus.position)), tuple(own)))
    return sorted(clusters, key=lambda c: (-len(c.skills), -c.closest, corpus.position(c.skills[0])))
