"""The agents' two tools without a protocol: what they return, what they refuse, and that they follow the index."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from serving.index_build import build_index
from serving.library import Library, ToolRefusedError
from serving.mcp_tools import SkillTools, known_domains
from serving.versions import current_version, version_folder

AUDIT = "ai-ml/annotation-agreement-audit"


@pytest.fixture(scope="module")
def tools(sample_index: Path) -> SkillTools:
    """Over the sample library's BM25 index."""
    return SkillTools(Library(sample_index))


def call(tools: SkillTools, name: str, **arguments: Any) -> dict[str, Any]:
    return tools.call(name, arguments).model_dump()


def refusal(tools: SkillTools, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolRefusedError) as refused:
        tools.call(name, arguments)
    return str(refused.value)


# -- find_skills ----------------------------------------------------------------------------------------------------------


def test_a_skill_is_found_by_its_own_description(tools: SkillTools):
    request = load_sample_corpus().get(AUDIT).description
    found = call(tools, "find_skills", request=request, k=3)
    assert found["skills"][0]["skill_id"] == AUDIT
    assert len(found["skills"]) == 3
    assert found["searched"] == 114
    assert found["skills"][0]["score"] == found["skills"][0]["scores"]["bm25"]


def test_five_skills_are_returned_unless_the_call_says_otherwise(tools: SkillTools):
    assert len(call(tools, "find_skills", request="how far do the annotators agree")["skills"]) == 5


def test_a_domain_narrows_the_search(tools: SkillTools):
    found = call(tools, "find_skills", request="how far do the annotators agree", domain="finance", k=50)
    assert {skill["domain"] for skill in found["skills"]} == {"finance"}
    assert len(found["skills"]) == found["searched"] == 13


def test_a_long_description_is_cut_in_results_but_not_in_the_document(tmp_path: Path):
    long = "Resize pictures. " + "x" * 1000
    build_index(tmp_path / "i", SkillCorpus([Skill("a/resize", "resize", long, "Do it.")]), "bm25")
    tools = SkillTools(Library(tmp_path / "i"))
    shown = call(tools, "find_skills", request="resize pictures")["skills"][0]["description"]
    assert len(shown) == 500
    assert shown.endswith("x…")
    assert call(tools, "read_skill", skill_id="a/resize")["description"] == long


def test_an_index_with_a_model_answers_hybrid_searches_by_default_if_told_so(model_index: Path):
    tools = SkillTools(Library(model_index), hybrid=True)
    by_default = call(tools, "find_skills", request="how far do the annotators agree", k=1)["skills"][0]
    assert "fused" in by_default["scores"]
    asked = call(tools, "find_skills", request="how far do the annotators agree", k=1, hybrid=False)["skills"][0]
    assert set(asked["scores"]) == {"dense"}


# -- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({}, "request is missing. Expected arguments: request, k, domain, hybrid, rerank"),
        ({"request": " \n"}, "request is blank; expected a sentence"),
        ({"request": "x", "limit": 3}, "unknown argument 'limit'. Expected arguments: request, k"),
        ({"request": "x", "k": 0}, "k: Input should be greater than or equal to 1, not '0'"),
        ({"request": "x", "k": 51}, "k: Input should be less than or equal to 50, not '51'"),
        ({"request": ["x"]}, "request: Input should be a valid string"),
        ({"request": "x" * 8193}, "request: String should have at most 8192 characters"),
        ({"request": "x", "domain": "financ"}, "no skill of domain 'financ'; expected one of: ai-ml, data-analytics"),
        ({"request": "x", "hybrid": True}, "hybrid is not available in this library; expected hybrid: false"),
        ({"request": "x", "rerank": True}, "rerank is not available in this library; expected rerank: false"),
    ],
)
def test_find_skills_says_what_it_would_accept(tools: SkillTools, arguments: dict[str, Any], expected: str):
    assert expected in refusal(tools, "find_skills", **arguments)


def test_a_refusal_repeats_only_the_beginning_of_a_long_argument(tools: SkillTools):
    assert len(refusal(tools, "find_skills", request="x" * 100_000)) < 300


def test_an_unknown_id_is_answered_with_ids_that_are_spelt_alike(tools: SkillTools):
    message = refusal(tools, "read_skill", skill_id="ai-ml/annotation-agreement-audits")
    assert f"did you mean '{AUDIT}'" in message
    assert message.endswith("expected a skill_id that find_skills returned")


def test_a_default_that_the_index_does_not_support_is_refused_at_the_start(sample_index: Path):
    with pytest.raises(ValueError, match="--hybrid: the index has no fusion weight"):
        SkillTools(Library(sample_index), hybrid=True)
    with pytest.raises(ValueError, match="--rerank: the index has no reranker"):
        SkillTools(Library(sample_index), rerank=True)


# -- read_skill -----------------------------------------------------------------------------------------------------------


def test_the_pages_of_a_document_put_together_are_the_document(tools: SkillTools):
    body = load_sample_corpus().get(AUDIT).body
    pages, offset = [], 0
    while offset is not None:
        page = call(tools, "read_skill", skill_id=AUDIT, offset=offset, limit=700)
        assert page["total_chars"] == len(body)
        pages.append(page["body"])
        offset = page["next_offset"]
    assert "".join(pages) == body
    assert len(pages) == -(-len(body) // 700)


def test_the_last_page_that_ends_exactly_at_the_limit_has_no_next(tmp_path: Path):
    build_index(tmp_path / "i", SkillCorpus([Skill("a/b", "b", "d", "0123456789")]), "bm25")
    tools = SkillTools(Library(tmp_path / "i"))
    assert call(tools, "read_skill", skill_id="a/b", limit=10)["next_offset"] is None
    assert call(tools, "read_skill", skill_id="a/b", limit=9)["next_offset"] == 9
    assert call(tools, "read_skill", skill_id="a/b", offset=10)["body"] == ""
    assert "expected 0 to 10" in refusal(tools, "read_skill", skill_id="a/b", offset=11)


def test_metadata_comes_along_without_the_indexed_text(tmp_path: Path):
    skill = Skill("a/b", "b", "d", "body", {"license": "MIT", "index_text": "what retrievers see"})
    build_index(tmp_path / "i", SkillCorpus([skill]), "bm25")
    assert call(SkillTools(Library(tmp_path / "i")), "read_skill", skill_id="a/b")["metadata"] == {"license": "MIT"}


# -- the library ----------------------------------------------------------------------------------------------------------


def test_the_next_call_after_an_update_searches_the_new_version(own_index: Path):
    tools = SkillTools(Library(own_index))
    before = call(tools, "find_skills", request="resize pictures")
    build_index(own_index, SkillCorpus([Skill("media/resize", "resize", "Resize pictures.", "Do it.")]), "bm25")
    after = call(tools, "find_skills", request="resize pictures")
    assert after["index_version"] == current_version(own_index) != before["index_version"]
    assert [skill["skill_id"] for skill in after["skills"]] == ["media/resize"]
    assert tools.library.info.n_skills == 1


def test_a_damaged_update_leaves_the_old_version_in_use_and_is_read_once(
    own_index: Path, caplog: pytest.LogCaptureFixture
):
    tools = SkillTools(Library(own_index))
    before = call(tools, "find_skills", request="resize pictures")
    build_index(own_index, SkillCorpus([Skill("media/resize", "resize", "Resize pictures.", "Do it.")]), "bm25")
    (version_folder(own_index, current_version(own_index)) / "skills.jsonl").write_text("{}\n")
    for _ in range(3):
        assert call(tools, "find_skills", request="resize pictures") == before
    assert caplog.text.count("stays open") == 1
    assert "skills.jsonl" in caplog.text


def test_a_library_whose_model_is_missing_opens_once_the_model_is_there(model_index: Path, tmp_path: Path):
    library = Library(model_index, model=tmp_path / "model")
    with pytest.raises(ToolRefusedError, match="cannot be opened"):
        library.searcher()
    assert not library.ready
    shutil.copytree(str(library.info.model), tmp_path / "model")
    assert library.searcher().info.n_skills == 114
    assert library.ready


def test_domains_are_listed_largest_first_and_counted_beyond_the_limit(tools: SkillTools):
    assert known_domains(tools.library.info, 2) == "ai-ml (13), data-analytics (13) and 7 more"
