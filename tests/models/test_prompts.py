"""Which prompts and similarity a model gets: expected strings are those of the models' public cards."""

from __future__ import annotations

import pytest

from models.prompts import family_of, resolve_prompts

NO_PROMPTS = {"query": "", "document": ""}
SKILL = (
    "Instruct: Given a task description, retrieve the most relevant skill document that would help an agent complete the task\n"
    "Query:"
)


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("intfloat/e5-base-v2", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large", "query: ", "passage: "),
        ("intfloat/multilingual-e5-large-instruct", SKILL + " ", ""),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-large-zh-v1.5", "为这个句子生成表示以用于检索相关文章：", ""),
        ("BAAI/bge-m3", "", ""),
        ("Alibaba-NLP/gte-Qwen2-1.5B-instruct", SKILL + " ", ""),
        ("models/Qwen3-Embedding-0.6B/", SKILL, ""),
        ("sentence-transformers/all-MiniLM-L6-v2", "", ""),
    ],
)
def test_a_family_gets_the_prompts_of_its_card_where_the_model_has_none(name: str, query: str, document: str):
    found = resolve_prompts(name, NO_PROMPTS, "cosine")
    assert (found.query, found.document, found.similarity) == (query, document, "cosine")


@pytest.mark.parametrize("name", ["mine/score5-base", "e5-tuned", "abge-large-en", "my-qwen3-embeddings"])
def test_a_name_that_only_resembles_a_family_is_none(name: str):
    assert family_of(name) is None


def test_the_models_own_prompts_win_over_its_familys():
    own = {"query": "Instruct: web\nQuery:", "document": ""}
    found = resolve_prompts("Qwen/Qwen3-Embedding-0.6B", own, "cosine")
    assert (found.query, found.query_source) == ("Instruct: web\nQuery:", "model")
    # a prompt for requests alone is meant so: documents do not get E5's
    found = resolve_prompts("intfloat/e5-base", {"query": "q: ", "document": ""}, None)
    assert (found.document, found.document_source) == ("", "model")


def test_documents_get_a_prompt_called_passage():
    """sentence-transformers would take the empty ``document``, which every model has."""
    found = resolve_prompts("x/y", {"query": "query: ", "document": "", "passage": "passage: "}, None)
    assert (found.query, found.document) == ("query: ", "passage: ")


def test_what_is_given_wins_as_text_or_as_a_name():
    own = {"query": "q: ", "document": "d: ", "sts": "same: "}
    found = resolve_prompts("x/y", own, None, query="sts", document="any text ")
    assert (found.query, found.query_source) == ("same: ", "given")
    assert (found.document, found.document_source) == ("any text ", "given")
    assert resolve_prompts("x/y", own, None, query="skill", document="none").query == SKILL
    assert resolve_prompts("x/y", own, None, document="none").document == ""
    assert resolve_prompts("x/y", own, None, query="").query == ""


def test_a_word_that_names_no_prompt_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no query prompt named 'serach'; expected one of skill, none, search"):
        resolve_prompts("x/y", {"search": "s: "}, None, query="serach")


def test_the_similarity_is_the_models_then_its_familys_then_cosine():
    assert resolve_prompts("x/y", {}, "dot").similarity == "dot"
    assert resolve_prompts("x/msmarco-bert-dot-v5", {}, None).similarity == "dot"
    assert resolve_prompts("x/msmarco-bert-dot-v5", {}, None, similarity="cosine").similarity_source == "given"
    assert resolve_prompts("x/y", {}, None).similarity_source == "default"
    with pytest.raises(ValueError, match=r"similarity is 'euclidean' \(model\); expected one of cosine, dot"):
        resolve_prompts("x/y", {}, "euclidean")
