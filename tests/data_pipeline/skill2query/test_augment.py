"""Pseudo-queries in the indexed text: which ones, where, and what an index then finds."""

from __future__ import annotations

import pytest

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.skill2query.augment import augment_corpus, index_texts, select_queries
from data_pipeline.skill2query.pseudo_query import Form, PseudoQuery
from retrieval import BM25Index

CORPUS = SkillCorpus(
    [
        Skill("garden/frost", "frost", "Warns of cold nights.", "# Frost\nReads the forecast."),
        Skill("garden/rain", "rain", "Adds up rainfall.", "# Rain\nReads the gauge."),
    ]
)


def query(text: str, capability: str = "c1", template: str = "t1", skill: str = "garden/frost", valid: bool = True):
    problems = () if valid else ("range: 99",)
    return PseudoQuery(text, skill, text, capability, "do it", template, text, Form.IMPERATIVE, {}, problems)


QUERIES = [query("Will my tomatoes freeze?"), query("Cover the beds tonight?", "c2", "t2")]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("name", "frost"),
        ("name_description", "frost | Warns of cold nights."),
        ("full", "frost | Warns of cold nights. | # Frost\nReads the forecast."),
    ],
)
def test_each_configuration_indexes_what_its_name_says(config: str, expected: str) -> None:
    assert index_texts(CORPUS, config)[0] == expected
    assert index_texts(CORPUS, config, QUERIES) == [
        f"{expected}\nWill my tomatoes freeze?\nCover the beds tonight?",
        index_texts(CORPUS, config)[1],
    ]


def test_before_the_body_they_stand_between_description_and_body() -> None:
    text = index_texts(CORPUS, "full", QUERIES, placement="before_body")[0]
    assert text == (
        "frost | Warns of cold nights.\nWill my tomatoes freeze?\nCover the beds tonight? | # Frost\nReads the forecast."
    )


def test_without_a_body_both_placements_are_one() -> None:
    texts = [index_texts(CORPUS, "name", QUERIES, placement=placement) for placement in ("append", "before_body")]
    assert texts[0] == texts[1]


def test_queries_are_not_cut_where_the_body_is() -> None:
    corpus = SkillCorpus([Skill("garden/frost", "frost", "d" * 400, "b" * 4000)])
    text = index_texts(corpus, "full", QUERIES)[0]
    assert text.startswith(f"frost | {'d' * 300} | {'b' * 2500}\n")
    assert text.endswith("\nWill my tomatoes freeze?\nCover the beds tonight?")


def test_labeled_lines_for_models_of_that_format() -> None:
    text = index_texts(CORPUS, "full", QUERIES[:1], placement="before_body", document_format="skill2query")[0]
    assert text == (
        "Name: frost\nDescription: Warns of cold nights.\nWill my tomatoes freeze?\nBody: # Frost\nReads the forecast."
    )


def test_every_capability_gets_one_before_any_gets_two() -> None:
    queries = [query("a1", "c1", "t1"), query("a2", "c1", "t2"), query("a3", "c1", "t3"), query("b1", "c2", "t4")]
    assert select_queries(queries, 3) == ["a1", "b1", "a2"]


def test_every_template_of_a_capability_is_used_once_before_any_twice() -> None:
    queries = [query("fill 1", "c1", "t1"), query("fill 2", "c1", "t1"), query("other", "c1", "t2")]
    assert select_queries(queries, 2) == ["fill 1", "other"]


def test_queries_that_fail_a_check_come_last() -> None:
    queries = [query("bad", "c1", "t1", valid=False), query("good", "c2", "t2"), query("fine", "c2", "t3")]
    assert select_queries(queries, 3) == ["good", "fine", "bad"]


def test_one_wording_stands_once_whatever_its_case_and_spaces() -> None:
    assert select_queries([query("Do  it now"), query("do it now", "c2"), query("Later", "c3")]) == [
        "Do it now",
        "Later",
    ]


def test_no_query_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="per_skill is 0; expected at least 1"):
        select_queries(QUERIES, 0)


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        index_texts(CORPUS, "nothing")


def test_an_augmented_corpus_is_found_by_the_words_of_its_queries_and_keeps_its_fields(tmp_path) -> None:
    augment_corpus(CORPUS, QUERIES).to_jsonl(tmp_path / "augmented.jsonl")
    read = SkillCorpus.from_jsonl(tmp_path / "augmented.jsonl")
    assert read.documents() == index_texts(CORPUS, "full", QUERIES)
    assert read.documents("skill2query") == read.documents()
    assert [(skill.name, skill.description, skill.body) for skill in read] == [
        (skill.name, skill.description, skill.body) for skill in CORPUS
    ]
    scores = [
        dict(zip(corpus.ids, BM25Index(corpus.ids, corpus.documents()).scores("tomatoes"), strict=True))
        for corpus in (CORPUS, read)
    ]
    assert scores[0]["garden/frost"] == 0 < scores[1]["garden/frost"]


def test_queries_of_unknown_skills_are_left_alone() -> None:
    assert index_texts(CORPUS, "full", [query("x", skill="no/such")]) == CORPUS.documents()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"config": "nme"}, "config is 'nme'; expected one of name, name_description, full"),
        ({"placement": "x"}, "append"),
    ],
)
def test_an_unknown_setting_is_refused_with_what_would_be_accepted(settings, named):
    corpus = SkillCorpus([Skill("a/b", "b", "Draws charts.", "Draws bar charts.")])
    with pytest.raises(ValueError, match=named):
        index_texts(corpus, **settings)
