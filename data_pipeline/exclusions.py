"""The exclusion graph (D.1): pairs of skills so alike that neither may serve as a negative of the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm import tqdm

from data_pipeline.corpus import SkillCorpus
from data_pipeline.trigrams import TrigramSets, copy_text
from models.folders import write_json

if TYPE_CHECKING:
    from retrieval import DenseIndex

COSINE_THRESHOLD = 0.85
COPY_THRESHOLD = 0.60
NEIGHBOURS = 50
MAX_PAIR_FRACTION = 0.01
_SAMPLED_ROWS = 2048


@dataclass(frozen=True)
class ExclusionEdge:
    """An undirected pair, ``a`` before ``b`` in the corpus. A ``copy`` has trigram Jaccard above 0.60, a ``similar`` not."""

    a: str
    b: str
    kind: Literal["copy", "similar"]
    cosine: float
    jaccard: float


@dataclass(frozen=True)
class Neighbours:
    """Per skill, in corpus order, its nearest other skills: ids, best first, and cosines ``[n, k]`` float."""

    ids: list[list[str]]
    cosines: np.ndarray


@dataclass(frozen=True)
class ExclusionGraph:
    """Edges, the symmetric adjacency map made of them, and a manifest of how they were found."""

    edges: tuple[ExclusionEdge, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def adjacency(self) -> dict[str, frozenset[str]]:
        """For every skill with an edge, the ids it is tied to: symmetric, without self."""
        sets: dict[str, set[str]] = {}
        for edge in self.edges:
            sets.setdefault(edge.a, set()).add(edge.b)
            sets.setdefault(edge.b, set()).add(edge.a)
        return {skill_id: frozenset(sets[skill_id]) for skill_id in sorted(sets)}

    def neighbours(self, skill_id: str) -> frozenset[str]:
        """N_excl of D.1: the skills that may not be negatives of ``skill_id``; empty where there are none."""
        return self.adjacency.get(skill_id, frozenset())

    def write(self, path: str | Path) -> None:
        """Write manifest, edges and the adjacency map as JSON, atomically."""
        adjacency = {skill_id: sorted(others) for skill_id, others in self.adjacency.items()}
        edges = [vars(edge) for edge in self.edges]
        write_json(path, {"manifest": self.manifest, "edges": edges, "adjacency": adjacency})

    @classmethod
    def read(cls, path: str | Path) -> ExclusionGraph:
        """Read what ``write`` wrote; ValueError naming the file where edges and adjacency map disagree."""
        try:
            value = json.loads(Path(path).read_text(encoding="utf-8"))
            graph = cls(tuple(ExclusionEdge(**edge) for edge in value["edges"]), value["manifest"])
            stored = {skill_id: frozenset(others) for skill_id, others in value["adjacency"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: not an exclusion graph ({error}); expected manifest, edges, adjacency"
            ) from error
        if stored != graph.adjacency:
            raise ValueError(f"{path}: the adjacency map is not the symmetric map of the edges")
        return graph


def nearest_neighbours(
    ids: list[str], embeddings: np.ndarray, k: int = NEIGHBOURS, progress: bool = False, index: DenseIndex | None = None
) -> Neighbours:
    """The ``k`` nearest other skills of each, by exact inner product over L2-normalized ``embeddings[n, d]``.

    ``index`` may be one that the caller has of the same embeddings; it spares a second copy of them.
    """
    from retrieval import DenseIndex

    index = index or DenseIndex(ids, embeddings)
    k = min(k, len(ids) - 1)
    found: list[list[str]] = []
    cosines = np.zeros((len(ids), k))
    blocks = range(0, len(ids), 1024)
    for start in tqdm(blocks, desc="nearest skills", disable=not progress):
        ranking = index.search(embeddings[start : start + 1024], k + 1)
        for offset, row in enumerate(ranking.ids):
            position = start + offset
            # Exact copies tie with the skill itself and may push it out of its own list.
            keep = [i for i, other in enumerate(row) if other != ids[position]][:k]
            found.append([row[i] for i in keep])
            cosines[position] = ranking.scores[offset, keep]
    return Neighbours(found, cosines)


def build_exclusion_graph(
    corpus: SkillCorpus,
    embeddings: np.ndarray,
    neighbours: Neighbours,
    *,
    encoder: str,
    threshold: float = COSINE_THRESHOLD,
    copy_threshold: float = COPY_THRESHOLD,
    text_gate: bool = False,
    max_pair_fraction: float = MAX_PAIR_FRACTION,
    progress: bool = False,
) -> ExclusionGraph:
    """The potential false-negative graph of D.1.

    Pairs among the nearest neighbours with cosine > ``threshold`` become edges; one whose trigram Jaccard is >
    ``copy_threshold`` is marked a copy, which tells but changes nothing. ``text_gate`` is for vectors that the
    threshold was not made for (``TfidfSvdEncoder``): then a pair of neighbours becomes an edge by either measure.

    Args:
        embeddings: ``[n, d]`` in corpus order, rows of unit length, the ones ``neighbours`` were found with.
        encoder: what the manifest calls the encoder.
        max_pair_fraction: share (0..1) of *all* pairs of the corpus that may exceed ``threshold``.

    Raises:
        ValueError: more pairs exceed the threshold: the encoder puts unrelated skills there, and its graph would
            forbid most negatives.
    """
    _check_share("threshold", threshold, low=-1.0)
    _check_share("copy_threshold", copy_threshold)
    passing, fraction = _check_pass_rate(embeddings, encoder, threshold, max_pair_fraction)
    pairs = _candidate_pairs(corpus, neighbours, -np.inf if text_gate else threshold)
    # only of the skills that have a pair: of 65,714 that is a few thousand
    compared = sorted(set(pairs) | {high for others in pairs.values() for high in others})
    trigrams = TrigramSets(copy_text(corpus[position]) for position in compared)
    packed = {position: i for i, position in enumerate(compared)}
    edges: list[ExclusionEdge] = []
    for left in tqdm(sorted(pairs), desc="comparing texts", disable=not progress):
        others = sorted(pairs[left])
        jaccards = trigrams.jaccard_to(packed[left], [packed[other] for other in others])
        for other, jaccard in zip(others, jaccards, strict=True):
            cosine = pairs[left][other]
            is_copy = jaccard > copy_threshold
            if is_copy or cosine > threshold:
                kind = "copy" if is_copy else "similar"
                a, b = corpus.ids[left], corpus.ids[other]
                edges.append(ExclusionEdge(a, b, kind, round(float(cosine), 6), round(float(jaccard), 6)))
    full = (
        int((neighbours.cosines[:, -1] > threshold).sum()) if 0 < neighbours.cosines.shape[1] < len(corpus) - 1 else 0
    )
    manifest = {
        "encoder": encoder,
        "threshold": threshold,
        "copy_threshold": copy_threshold,
        "text_gate": text_gate,
        "neighbours": int(neighbours.cosines.shape[1]),
        "skills": len(corpus),
        "edges": len(edges),
        "copies": sum(edge.kind == "copy" for edge in edges),
        "similar": sum(edge.kind == "similar" for edge in edges),
        "skills_with_edges": len({skill_id for edge in edges for skill_id in (edge.a, edge.b)}),
        "passing_pairs": passing,
        "passing_pair_fraction": round(fraction, 8),
        # Their lists end above the threshold: they may have more such neighbours than were looked at.
        "skills_with_cut_lists": full,
    }
    return ExclusionGraph(tuple(edges), manifest)


def _candidate_pairs(corpus: SkillCorpus, neighbours: Neighbours, minimum: float) -> dict[int, dict[int, float]]:
    """Undirected pairs with cosine > ``minimum``, self-pairs removed: {lower position: {higher position: cosine}}."""
    pairs: dict[int, dict[int, float]] = {}
    for position, row in enumerate(neighbours.ids):
        for other_id, cosine in zip(row, neighbours.cosines[position].tolist(), strict=True):
            if cosine <= minimum:
                break
            low, high = sorted((position, corpus.position(other_id)))
            pairs.setdefault(low, {})[high] = cosine
    return pairs


def _check_pass_rate(embeddings: np.ndarray, encoder: str, threshold: float, limit: float) -> tuple[int, float]:
    """Estimated number and share of all pairs above the threshold; exact up to 2,048 skills, from sampled rows above."""
    n = len(embeddings)
    norms = np.linalg.norm(embeddings, axis=1)
    # A zero row is a text without a known word; any other length would make inner products no cosines.
    off = np.flatnonzero((np.abs(norms - 1) > 1e-2) & (norms > 0))
    if len(off):
        raise ValueError(f"embedding {off[0]} of encoder {encoder!r} has norm {norms[off[0]]:.4g}; expected unit rows")
    if n < 2:
        return 0, 0.0
    rows = np.arange(n)
    if n > _SAMPLED_ROWS:
        rows = np.sort(np.random.default_rng(42).choice(n, _SAMPLED_ROWS, replace=False))
    above = 0
    for start in range(0, len(rows), 256):
        block = rows[start : start + 256]
        similar = embeddings[block] @ embeddings.T > threshold
        similar[np.arange(len(block)), block] = False
        above += int(similar.sum())
    fraction = above / (len(rows) * (n - 1))
    passing = round(fraction * n * (n - 1) / 2)
    # In a library of a few dozen skills 1% is a handful of pairs, which real forks alone exceed.
    if fraction > limit and passing > n / 2:
        raise ValueError(
            f"threshold = {threshold}: {fraction:.1%} of all pairs of the {n} skills have a higher cosine under encoder "
            f"{encoder!r}, more than the {limit:.1%} that near copies explain; the threshold does not fit this encoder "
            "(0.85 was chosen for Qwen3-Embedding). Give a higher threshold, another encoder, or none for TF-IDF/SVD"
        )
    return passing, fraction


def _check_share(key: str, value: float, low: float = 0.0) -> None:
    if not low <= value <= 1:
        raise ValueError(f"{key} = {value!r}: expected a number from {low:g} to 1")


def adjacency_of(
    exclusions: ExclusionGraph | Mapping[str, Iterable[str]] | None,
) -> dict[str, frozenset[str]]:
    """The adjacency map of a graph, of any mapping of ids to ids, or of nothing."""
    if exclusions is None:
        return {}
    if isinstance(exclusions, ExclusionGraph):
        return exclusions.adjacency
    return {skill_id: frozenset(others) for skill_id, others in exclusions.items()}
