"""BEIR folders: the three files, splits, grades, headers, and broken qrels."""

from __future__ import annotations

import pytest

from evaluation.benchmarks import load_folder


def test_a_folder_becomes_a_benchmark_of_its_name(beir_folder):
    bench = load_folder(beir_folder)
    assert bench.name == "tiny-beir"
    assert bench.corpus.get("d1").document == "Title d1 |  | Text of d1."
    assert bench.qrels == {"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 1, "d1": 0}}


def test_queries_of_other_splits_are_left_out_and_counted(beir_folder):
    assert load_folder(beir_folder).notes == ("1 queries without a relevant skill were left out",)


def test_another_split_has_its_own_qrels(beir_folder):
    (beir_folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\ntrain1\td2\t1\n")
    assert load_folder(beir_folder, split="train").qrels == {"train1": {"d2": 1}}
    with pytest.raises(FileNotFoundError, match=r"no qrels dev.tsv; the folder has: test.tsv, train.tsv"):
        load_folder(beir_folder, split="dev")


def test_qrels_without_a_header_are_read(beir_folder):
    file = beir_folder / "qrels" / "test.tsv"
    with_header = load_folder(beir_folder).qrels
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    assert load_folder(beir_folder).qrels == with_header


def test_a_zero_for_a_document_that_is_not_there_does_no_harm(beir_folder):
    with (beir_folder / "qrels" / "test.tsv").open("a") as handle:
        handle.write("q2\tgone\t0\n")
    assert load_folder(beir_folder).qrels["q2"] == {"d3": 1, "d1": 0}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q2\tgone\t1", r"test.tsv:6: corpus-id = 'gone': no such skill among the 3"),
        ("q9\td1\t1", r"test.tsv:6: query-id = 'q9': no such query among the 3"),
        ("q2\td1", r"test.tsv:6: 2 columns separated by tabs; expected 3: query-id, corpus-id, score"),
        ("q2\td2\tmuch", r"test.tsv:6: score = 'much': expected a whole number >= 0"),
        ("q2\td2\t-1", r"test.tsv:6: score = '-1': expected a whole number >= 0"),
    ],
)
def test_a_broken_line_is_named(beir_folder, line, message):
    with (beir_folder / "qrels" / "test.tsv").open("a") as handle:
        handle.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        load_folder(beir_folder)


def test_qrels_without_any_relevant_document_are_refused(beir_folder):
    (beir_folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t0\n")
    with pytest.raises(ValueError, match="none of 3 queries has a relevant skill"):
        load_folder(beir_folder)
