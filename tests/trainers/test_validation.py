"""Held-out requests: never trained on, measured with the weights of the moment, and the fusion weight chosen on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.schema import ValidationConfig
from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.heldout import is_heldout
from data_pipeline.records import Stage1Record
from models.views import View, raw_view
from trainers.validation import HeldOutSet, build_heldout_set, split_heldout


def record(number: int, skill: str, negatives: tuple[str, ...] = ("n0",)) -> Stage1Record:
    return Stage1Record(
        f"r{number}",
        f"query {number}",
        "why",
        skill,
        f"{skill} text",
        negatives,
        tuple(f"{n} text" for n in negatives),
        "c",
    )


def many_records() -> list[Stage1Record]:
    """Three records for each of two hundred skills, in rounds, each with a negative of its own."""
    return [record(100 * i + s, f"s{s}", (f"n{s}",)) for i in range(3) for s in range(200)]


def test_all_records_of_a_skill_fall_on_one_side():
    records = many_records()
    training, heldout = split_heldout(records, 0.1)
    assert {r.positive_id for r in training}.isdisjoint(r.positive_id for r in heldout)
    assert {r.positive_id for r in heldout} == {f"s{s}" for s in range(200) if is_heldout(f"s{s}", 0.1)}
    assert len(training) + len(heldout) == len(records)
    assert 10 <= len({r.positive_id for r in heldout}) <= 30  # about a tenth of two hundred


def test_the_split_keeps_the_order_and_does_not_depend_on_it():
    records = many_records()
    training, heldout = split_heldout(records, 0.1)
    assert training == [r for r in records if r in training]
    backwards, heldout_backwards = split_heldout(records[::-1], 0.1)
    assert (backwards[::-1], heldout_backwards[::-1]) == (training, heldout)


def test_without_a_fraction_everything_is_trained_on():
    records = many_records()
    assert split_heldout(records, 0.0) == (records, [])
    assert build_heldout_set([], records, ValidationConfig()) is None


def test_candidates_are_all_documents_of_the_records():
    found = build_heldout_set([record(1, "a", ("b",))], [record(2, "c", ("d", "a"))], ValidationConfig())
    assert found is not None
    assert dict(zip(found.document_ids, found.documents, strict=True)) == {s: f"{s} text" for s in "abcd"}
    assert (found.query_ids, found.queries, found.targets) == (["r1"], ["query 1"], ["a"])
    assert found.qrels == {"r1": {"a": 1}}


@pytest.mark.parametrize(("limit", "expected"), [(2, 6), (6, 6), (8, 8), (500, 12)])
def test_a_limit_on_documents_keeps_every_target(limit: int, expected: int):
    heldout = [record(i, f"t{i}", (f"n{i}",)) for i in range(6)]
    found = build_heldout_set(heldout, [], ValidationConfig(max_documents=limit))
    assert found is not None
    assert len(set(found.document_ids)) == expected
    assert {f"t{i}" for i in range(6)} <= set(found.document_ids)


def test_a_limit_on_queries_takes_the_same_ones_whatever_the_order():
    heldout = [record(i, f"t{i}") for i in range(20)]
    found, again = (build_heldout_set(rows, [], ValidationConfig(max_queries=5)) for rows in (heldout, heldout[::-1]))
    assert found is not None
    assert again is not None
    assert len(found.queries) == 5
    assert found.query_ids == again.query_ids


def test_requests_made_of_a_documents_own_words_are_not_measured():
    written, made = record(1, "a"), replace(record(2, "b"), record_id="self/b/0")
    found = build_heldout_set([made, written], [], ValidationConfig())
    assert found is not None
    assert found.query_ids == ["r1"]
    alone = build_heldout_set([made], [], ValidationConfig())  # better than nothing
    assert alone is not None
    assert alone.query_ids == ["self/b/0"]


def test_a_corpus_file_gives_the_candidates_and_a_target_it_lacks_is_added(tmp_path: Path):
    skills = [Skill(f"c{i}", f"name {i}", "does things", "body") for i in range(4)]
    SkillCorpus(skills).to_jsonl(tmp_path / "corpus.jsonl")
    heldout = [record(1, "c2"), record(2, "elsewhere")]
    found = build_heldout_set(heldout, [], ValidationConfig(corpus_file=str(tmp_path / "corpus.jsonl")))
    assert found is not None
    assert set(found.document_ids) == {"c0", "c1", "c2", "c3", "elsewhere"}
    assert found.documents[found.document_ids.index("c0")] == "name 0 | does things | body"


class TableEncoder:
    """Vectors by text; notes what it is asked for."""

    def __init__(self, vectors: dict[str, list[float]]):
        self.vectors = vectors
        self.calls: list[tuple[list[str], int]] = []

    def __call__(self, views: Sequence[View], max_length: int) -> np.ndarray:
        self.calls.append(([view.text for view in views], max_length))
        return np.array([self.vectors[view.text] for view in views], dtype=np.float32)


def small_set() -> HeldOutSet:
    return HeldOutSet(["q1", "q2"], ["first", "second"], ["a", "b"], ["a", "b", "c"], ["doc a", "doc b", "doc c"])


def table(a: list[float], b: list[float], c: list[float]) -> dict[str, list[float]]:
    queries = {raw_view("first").text: [1.0, 0.0, 0.0], raw_view("second").text: [0.0, 1.0, 0.0]}
    return {**queries, "doc a": a, "doc b": b, "doc c": c}


def test_recall_is_that_of_the_vectors():
    x, y, z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    metrics = small_set().recall(TableEncoder(table(a=x, b=z, c=y)), 77, 55)  # q1 finds a; q2 finds c before b
    assert set(metrics) == {"val/recall@1", "val/recall@5", "val/recall@10", "val/ndcg@10"}
    assert metrics["val/recall@1"] == 0.5
    assert metrics["val/recall@10"] == 1.0


def test_recall_encodes_documents_anew_at_every_call():
    x, y, z = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
    encoder, heldout = TableEncoder(table(a=x, b=y, c=z)), small_set()
    assert heldout.recall(encoder, 77, 55)["val/recall@1"] == 1.0
    encoder.vectors = table(a=z, b=z, c=[0.6, 0.8, 0.0])  # the policy has moved
    assert heldout.recall(encoder, 77, 55)["val/recall@1"] == 0.0
    documents = (["doc a", "doc b", "doc c"], 55)
    queries = ([raw_view("first").text, raw_view("second").text], 77)
    assert sorted(encoder.calls) == sorted([documents, queries] * 2)


def fusion_set(documents: dict[str, str]) -> HeldOutSet:
    return HeldOutSet(["q"], ["alpha"], ["a"], list(documents), list(documents.values()))


def ranked(documents: dict[str, str], order: str) -> TableEncoder:
    """An encoder that ranks the documents in the given order for the one query."""
    angles = {skill: [np.cos(0.3 * place), np.sin(0.3 * place)] for place, skill in enumerate(order)}
    return TableEncoder({raw_view("alpha").text: [1.0, 0.0], **{documents[s]: angles[s] for s in documents}})


def test_the_weight_is_chosen_with_inputs_as_long_as_the_exported_retrievers():
    documents = {"a": "alpha", "b": "one", "c": "two"}
    encoder = ranked(documents, "abc")
    fusion_set(documents).fusion_weight(encoder, 99)
    assert {length for _, length in encoder.calls} == {99}


def test_the_weight_is_one_where_bm25_misleads():
    # Dense: a, c, b; BM25: b alone. a leads only if w/61 > w/63 + (1 - w)/61, that is w > 0.969: of the grid, 1.0.
    documents = {"a": "one", "b": "alpha", "c": "two"}
    assert fusion_set(documents).fusion_weight(ranked(documents, "acb"), 77) == 1.0


def test_the_weight_is_the_middle_where_bm25_is_right_and_dense_wrong():
    # Dense: c, b, a; BM25: a alone. a leads for every w below 0.969, and of equal weights the one nearest to 0.5 is taken.
    documents = {"a": "alpha", "b": "one", "c": "two"}
    assert fusion_set(documents).fusion_weight(ranked(documents, "cba"), 77) == 0.5


def test_the_weight_serves_the_explicit_wording_too():
    # "beta": BM25 has b alone, dense a first and b on rank 11. a leads if w/61 > w/71 + (1 - w)/61, that is w > 0.877; of 0.9
    # and 1.0 the one nearer to 0.5 is taken. "alpha": BM25 has a alone, dense has it on rank 11. It leads if w < 0.877, is
    # third at 0.9 (NDCG 0.5) and lost to recall@10 at 1.0. Together: 1 + 0.63 for 0.1 to 0.8 against 1 + 0.5 at 0.9.
    names = "abcdefghijk"
    documents = {name: {"a": "alpha", "b": "beta"}.get(name, f"text{name}") for name in names}
    angles = {name: 0.1 + 0.1 * place for place, name in enumerate([*names[1:], "a"])}
    vectors = {documents[name]: [np.cos(angle), np.sin(angle)] for name, angle in angles.items()}
    encoder = TableEncoder({raw_view("alpha").text: [1.0, 0.0], raw_view("beta").text: [0.0, 1.0], **vectors})
    implicit = HeldOutSet(["q"], ["beta"], ["a"], list(documents), list(documents.values()))
    assert implicit.fusion_weight(encoder, 77) == 0.9
    assert replace(implicit, original_queries=["alpha"]).fusion_weight(encoder, 77) == 0.5
