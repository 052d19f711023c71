"""The pipeline's configuration: the paper's numbers, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import configs
from configs import ConfigError
from data_pipeline.pipeline import PipelineConfig, load_pipeline_config
from data_pipeline.pipeline.quality_audit import BUILDERS

REQUIRED = ["out=x", "sources=[y]"]
FOLDER = Path(configs.__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.glob("data_*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_file_loads(path: Path) -> None:
    load_pipeline_config(path, REQUIRED)


def test_the_papers_numbers() -> None:
    config = load_pipeline_config("data_paper", REQUIRED)
    assert (config.exclusions.cosine, config.exclusions.copy, config.exclusions.neighbours) == (0.85, 0.60, 50)
    quotas = config.negatives
    assert (quotas.skill_neighbours, quotas.query_neighbours, quotas.same_category, quotas.cross_category) == (
        4,
        3,
        2,
        1,
    )
    chosen = config.select
    assert (chosen.target, chosen.reserve, chosen.category_share, chosen.per_skill) == (30_000, 500, 0.40, 2)
    assert (config.isolation.near, config.isolation.review, config.seed) == (0.85, 0.70, 42)
    groups = config.reranker
    assert (groups.select, groups.depth, groups.min_negatives) == (20_000, 20, 8)
    assert (groups.name_jaccard, groups.id_jaccard, groups.text_jaccard, groups.cosine) == (0.60, 0.80, 0.60, 0.85)
    assert (groups.query_negatives, groups.same_category, groups.cross_category) == (8, 1, 1)
    bench = config.bench
    assert (bench.candidates, bench.size, bench.audit_size) == (6_000, 4_000, 300)
    assert config.reranker.tasks == 27_583
    assert PipelineConfig().exclusions == config.exclusions


def test_no_judge_of_the_papers_audit_had_a_part_in_the_construction() -> None:
    config = load_pipeline_config("data_paper", REQUIRED)
    builders = {config.teacher(role).name for role in BUILDERS}
    assert config.teacher("judge_a").name != config.teacher("judge_b").name
    assert config.teacher("audit_a").name != config.teacher("audit_b").name
    assert not builders & {config.teacher("audit_a").name, config.teacher("audit_b").name}


def test_a_retriever_that_was_trained_on_in_its_folder_changes_the_groups_and_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1")
    config = load_pipeline_config(None, [*REQUIRED, f"reranker.retriever={tmp_path}", f"encoding.encoder={tmp_path}"])
    before = config.retriever_weights, config.embedding
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert config.retriever_weights != before[0]
    assert config.embedding != before[1]


def test_a_role_without_a_teacher_of_its_own_has_the_default_one() -> None:
    config = load_pipeline_config(None, [*REQUIRED, "teachers.default.kind=openai", "teachers.default.model=m"])
    assert (config.teacher("review").model, config.teacher("rewrite").name) == ("m", "openai:m")
    assert load_pipeline_config(None, REQUIRED).teacher("review").kind == "offline"


def test_limits_and_prices_do_not_decide_what_is_asked() -> None:
    base = load_pipeline_config(None, REQUIRED)
    other = load_pipeline_config(
        None, [*REQUIRED, "teachers.default.concurrency=2", "teachers.default.budget_tokens=5"]
    )
    model = load_pipeline_config(None, [*REQUIRED, "teachers.review.kind=openai", "teachers.review.model=m"])
    assert base.asked == other.asked
    assert [role for role in base.asked if base.asked[role] != model.asked[role]] == ["review"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sources=[]", "sources is empty"),
        ("exclusions.cosine=1.5", r"exclusions.cosine is 1.5; expected a number from 0 to 1"),
        ("teachers.nobody.kind=offline", r"teachers.nobody: no such role; expected default or one of synthesis"),
        ("teachers.review.kind=openai", r"teachers.review.model is ''"),
        ("categories.source=guess", r"categories.source is 'guess'; expected one of prefix, teacher, nearest"),
        ("categories.source=nearest", r"categories.labels is \[\]; expected two or more"),
        ("synthesis.teacher=false", "there would be no requests"),
        ("negatives.query_source=sparse", r"negatives.query_source is 'sparse'; expected dense or bm25"),
        ("select.target=0", r"select.target is 0; expected at least 1"),
        (
            "bench.min_words=200",
            r"bench.min_words is 200 and bench.max_words 110; expected 1 <= min_words <= max_words",
        ),
        ("isolation.review=0.9", r"isolation.review is 0.9; expected at most isolation.near, 0.85"),
        ("reranker.tasks=-1", r"reranker.tasks is -1; expected at least 0"),
        ("select.category_share=0", r"select.category_share is 0.0; expected more than 0"),
        ("negatives.skill_neighbours=-1", r"negatives.skill_neighbours is -1; expected at least 0"),
        ("reranker.cross_category=-1", r"reranker.cross_category is -1; expected at least 0"),
        (
            "negatives={skill_neighbours: 0, query_neighbours: 0, same_category: 0, cross_category: 0}",
            "are all 0; expected at least one negative",
        ),
        (
            "negatives.query_neighbours=51",
            r"negatives.query_neighbours is 51; expected at most exclusions.neighbours, 50",
        ),
        ("select.taget=5", r"select.taget.*did you mean select.target"),
    ],
)
def test_what_cannot_work_is_refused_by_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_pipeline_config(None, [*REQUIRED, override])


def test_one_source_without_brackets_is_told_that_a_list_is_expected() -> None:
    with pytest.raises(ConfigError, match=r"sources: expected a list, such as \[a,b\]"):
        load_pipeline_config(None, ["out=x", "sources=mylib"])
