"""Slices by length, domain and shared words: who falls where, and what a slice reports."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.records import BenchQuery
from evaluation.benchmarks import OPEN_PROTOCOL, Benchmark
from evaluation.metrics import Scores
from evaluation.slices import MAX_DOMAINS, slice_labels, slice_rows, target_overlap

CORPUS = SkillCorpus(
    [
        Skill("frost", "Frost alert", "Warns of cold nights.", "tomato"),
        Skill("drip", "Drip timer", "Waters beds on a schedule.", ""),
    ]
)


def bench(*queries: BenchQuery, suites: dict[str, str] | None = None) -> Benchmark:
    return Benchmark("mine", CORPUS, list(queries), OPEN_PROTOCOL, "here", suites=suites or {})


def asked(query_id: str, text: str, *targets: str, domain: str = "") -> BenchQuery:
    return BenchQuery(query_id, text, dict.fromkeys(targets or ("frost",), 1), domain)


def test_overlap_is_the_share_of_content_words_in_the_targets_name_or_description():
    overlap = target_overlap(
        bench(
            asked("none", "Protect the tomato seedlings"),  # "tomato" stands in the body alone
            asked("some", "It will be cold: protect the seedlings"),  # cold of cold, protect, seedlings
            asked("all", "Frost alert! FROST?"),
            asked("union", "cold schedule garden beds", "frost", "drip"),
            asked("empty", "to be or not to be"),
        )
    )
    assert overlap == pytest.approx({"none": 0.0, "some": 1 / 3, "all": 1.0, "union": 3 / 4, "empty": 0.0})


def test_lengths_are_cut_into_thirds_and_named_by_their_range():
    queries = [asked(f"q{n}", " ".join(["word"] * n)) for n in (3, 4, 5, 7, 8, 9, 20, 30, 40)]
    labels = slice_labels(bench(*queries))["length"]
    assert labels["q5"] == "3 to 5 words"
    assert labels["q7"] == labels["q9"] == "7 to 9 words"
    assert labels["q20"] == "20 to 40 words"
    assert list(dict.fromkeys(labels.values())) == ["3 to 5 words", "7 to 9 words", "20 to 40 words"]


def test_equal_lengths_make_no_slices():
    assert "length" not in slice_labels(bench(asked("a", "cold night"), asked("b", "warm day")))


def test_overlaps_fall_into_four_slices():
    words = ["cold", *(f"w{i}" for i in range(30))]
    texts = {"none": words[1:5], "tenth": words[:10], "fifth": words[:5], "half": words[:2]}
    labels = slice_labels(bench(*(asked(name, " ".join(text)) for name, text in texts.items())))["overlap"]
    assert labels == {"none": "no shared word", "tenth": "up to 10%", "fifth": "10% to 25%", "half": "over 25%"}


def test_small_domains_are_put_together():
    queries = [asked(f"q{n}{i}", "cold night", domain=f"d{n:02}") for n in range(MAX_DOMAINS) for i in range(2)]
    labels = slice_labels(bench(*queries, asked("x", "cold", domain="rare"), asked("y", "cold", domain="odd")))[
        "domain"
    ]
    assert (labels["q00"], labels["x"], labels["y"]) == ("d00", "2 other domains", "2 other domains")


def test_requests_without_a_domain_are_in_no_domain():
    labels = slice_labels(bench(asked("a", "x", domain="one"), asked("b", "x", domain="two"), asked("c", "x")))[
        "domain"
    ]
    assert labels == {"a": "one", "b": "two"}


def test_domains_that_are_the_suites_are_not_told_twice():
    queries = [asked("a", "x", domain="one"), asked("b", "x", domain="two")]
    assert "domain" not in slice_labels(bench(*queries, suites={"a": "one", "b": "two"}))


def test_a_row_has_the_mean_and_interval_of_its_queries():
    scores = Scores(["a", "b", "c"], ["recall@1", "mrr"], np.array([[1.0, 1.0], [0.0, 0.5], [0.0, 0.1]]))
    rows = slice_rows(scores, {"domain": {"a": "one", "b": "one", "c": "two"}}, ["recall@1"])["domain"]
    assert [(row["slice"], row["n_queries"], row["metrics"]) for row in rows] == [
        ("one", 2, {"recall@1": 0.5}),
        ("two", 1, {"recall@1": 0.0}),
    ]
    assert rows[0]["intervals"]["recall@1"] == [0.0, 1.0]
