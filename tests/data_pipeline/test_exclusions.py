"""The exclusion graph: both gates, symmetry, the refusal of an encoder that the threshold does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline import ExclusionGraph, Skill, SkillCorpus
from data_pipeline.exclusions import Neighbours, build_exclusion_graph, nearest_neighbours

COPY = "Reconcile two ledgers line by line and explain each difference in a short table."
# Texts of four skills: 0 and 1 are copies; 2 and 3 share few trigrams with anything.
TEXTS = [COPY, COPY + " Then sign.", "Cut video to length.", "Zebra quiz: jump, vex, wok."]


def corpus_of(texts: list[str]) -> SkillCorpus:
    return SkillCorpus(Skill(f"s{i}", f"n{i}", "", text) for i, text in enumerate(texts))


def unit(*angles: float) -> np.ndarray:
    """Vectors in the plane at these angles (degrees): the cosine of two is that of their difference."""
    radians = np.deg2rad(np.array(angles))
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def graph(texts: list[str], vectors: np.ndarray, **options: Any) -> ExclusionGraph:
    corpus = corpus_of(texts)
    neighbours = nearest_neighbours(corpus.ids, vectors, options.pop("k", 50))
    return build_exclusion_graph(corpus, vectors, neighbours, encoder="test", **options)


def found(built: ExclusionGraph) -> list[tuple[str, str, str]]:
    return [(edge.a, edge.b, edge.kind) for edge in built.edges]


def test_cosine_gates_and_text_marks_copies() -> None:
    # cos 10° = 0.985, cos 90° = 0: 0-1 and 2-3 pass the gate, and only 0-1 share their text.
    assert found(graph(TEXTS, unit(0, 10, 90, 100))) == [("s0", "s1", "copy"), ("s2", "s3", "similar")]


def test_a_copy_below_the_cosine_threshold_is_no_edge() -> None:
    assert found(graph(TEXTS, unit(0, 60, 120, 180))) == []


def test_with_the_text_gate_either_measure_is_enough() -> None:
    assert found(graph(TEXTS, unit(0, 60, 150, 160), text_gate=True)) == [
        ("s0", "s1", "copy"),
        ("s2", "s3", "similar"),
    ]


def test_the_threshold_is_exclusive() -> None:
    vectors = np.array([[1, 0], [0.5, np.sqrt(0.75)], [-1, 0]], dtype=np.float64)
    neighbours = Neighbours([["s1"], ["s0"], ["s1"]], np.array([[0.5], [0.5], [-0.5]]))
    built = build_exclusion_graph(corpus_of(TEXTS[1:]), vectors, neighbours, encoder="e", threshold=0.5)
    assert built.edges == ()


def test_adjacency_is_symmetric_and_without_self() -> None:
    built = graph(TEXTS, unit(0, 10, 20, 180), max_pair_fraction=1.0)
    assert built.adjacency == {
        "s0": frozenset({"s1", "s2"}),
        "s1": frozenset({"s0", "s2"}),
        "s2": frozenset({"s0", "s1"}),
    }
    assert built.neighbours("s3") == frozenset()


def test_edges_equal_a_brute_force_count() -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(40, 16))
    vectors = np.repeat(centres, 5, axis=0) + 0.25 * generator.normal(size=(200, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    similar = np.triu(vectors.astype(np.float64) @ vectors.T.astype(np.float64) > 0.85, 1)
    expected = {(f"s{a}", f"s{b}") for a, b in zip(*np.nonzero(similar), strict=True)}
    built = graph([f"text number {i}" for i in range(200)], vectors, max_pair_fraction=1.0)
    assert len(expected) > 100
    assert {(edge.a, edge.b) for edge in built.edges} == expected


def test_an_encoder_that_finds_everything_alike_is_refused() -> None:
    vectors = unit(*np.linspace(0, 20, 30))
    with pytest.raises(ValueError, match=r"threshold = 0.85: 100.0% of all pairs of the 30 skills.*encoder 'test'"):
        graph([f"text {i}" for i in range(30)], vectors)


def test_the_refusal_counts_all_pairs_not_the_neighbours_looked_at() -> None:
    # One neighbour each is at most 2% of the pairs of 101 skills, all of which are alike.
    with pytest.raises(ValueError, match=r"100\.0% of all pairs"):
        graph([f"text {i}" for i in range(101)], unit(*np.linspace(0, 20, 101)), k=1)


def test_the_sampled_pass_rate_is_close_above_two_thousand_skills() -> None:
    # Three equal groups 90° apart: a third of the pairs pass.
    vectors = unit(*([0] * 900 + [90] * 900 + [180] * 900))
    neighbours = Neighbours([[] for _ in vectors], np.zeros((len(vectors), 0)))
    corpus = corpus_of([f"text {i}" for i in range(len(vectors))])
    built = build_exclusion_graph(corpus, vectors, neighbours, encoder="e", max_pair_fraction=1.0)
    assert built.manifest["passing_pair_fraction"] == pytest.approx(1 / 3, abs=0.01)


def test_a_small_library_with_forks_is_not_refused() -> None:
    assert len(graph(TEXTS, unit(0, 1, 90, 180)).edges) == 1


def test_manifest_records_encoder_threshold_and_counts() -> None:
    manifest = graph(TEXTS, unit(0, 10, 90, 100), threshold=0.9).manifest
    expected = {"encoder": "test", "threshold": 0.9, "copy_threshold": 0.6, "edges": 2, "copies": 1, "similar": 1}
    assert expected.items() <= manifest.items()
    assert (manifest["skills"], manifest["skills_with_edges"], manifest["passing_pairs"]) == (4, 4, 2)


def test_lists_that_end_above_the_threshold_are_counted() -> None:
    built = graph([f"text {i}" for i in range(5)], unit(0, 1, 2, 90, 180), k=1, max_pair_fraction=1.0)
    assert built.manifest["skills_with_cut_lists"] == 3


def test_nearest_neighbours_leave_out_self_even_among_identical_vectors() -> None:
    built = nearest_neighbours([f"s{i}" for i in range(6)], unit(*[5] * 6), k=3)
    assert all(len(row) == 3 and f"s{i}" not in row for i, row in enumerate(built.ids))


def test_nearest_neighbours_are_ordered_by_cosine() -> None:
    built = nearest_neighbours(["a", "b", "c", "d"], unit(0, 30, 10, 90), k=2)
    assert built.ids[0] == ["c", "b"]
    assert built.cosines[0] == pytest.approx([np.cos(np.deg2rad(10)), np.cos(np.deg2rad(30))], abs=1e-6)


def test_vectors_that_are_not_unit_rows_are_named() -> None:
    with pytest.raises(ValueError, match="embedding 1 of encoder 'test' has norm 3"):
        graph(TEXTS, unit(0, 90, 180, 270) * np.array([[1], [3], [1], [1]], dtype=np.float32))


def test_file_round_trip(tmp_path: Path) -> None:
    built = graph(TEXTS, unit(0, 10, 90, 100))
    built.write(tmp_path / "e.json")
    read = ExclusionGraph.read(tmp_path / "e.json")
    assert (read.edges, read.manifest) == (built.edges, built.manifest)
    assert json.loads((tmp_path / "e.json").read_text())["adjacency"]["s1"] == ["s0"]


def test_a_file_whose_adjacency_is_not_symmetric_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    graph(TEXTS, unit(0, 10, 90, 100)).write(path)
    value = json.loads(path.read_text())
    del value["adjacency"]["s1"]
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=r"e\.json: the adjacency map is not the symmetric map"):
        ExclusionGraph.read(path)
