"""From skills to pseudo-queries: by rule, with a teacher, traceable, the same bytes twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.pipeline.leakage import names_skill
from data_pipeline.sample_library import load_sample_corpus
from data_pipeline.skill2query.generation import (
    FROM_DESCRIPTION,
    GenerationConfig,
    GenerationCounts,
    generate,
    generate_for_graph,
)
from data_pipeline.skill2query.graph import SkillGraph
from data_pipeline.skill2query.parsing import parse_skill
from data_pipeline.skill2query.pseudo_query import Form, read_pseudo_queries, write_pseudo_queries
from data_pipeline.teacher import OfflineTeacher, TeacherTask

SKILL = Skill(
    "a/ferns",
    "ferns",
    "Raise ferns indoors.",
    "# Ferns\n\n## Features\n\n- Water ferns by schedule\n- Repot old plants\n",
)


def test_every_query_leads_back_to_a_capability_and_a_template_of_its_skill(seating: SkillGraph) -> None:
    known = {capability.node_id: capability.text for capability in seating.capabilities}
    made = generate_for_graph(seating)
    for query in made:
        assert query.skill_id == seating.skill_id
        assert query.capability == known[query.capability_id]
        for mark, value in query.slots.items():
            assert f"{{{mark}}}" in query.template
            assert query.query == query.template or value
    assert len({query.query_id for query in made}) == len(made)
    assert {query.capability_id for query in made} == set(known)


def test_no_two_queries_of_a_skill_are_alike(seating: SkillGraph) -> None:
    texts = [query.query.lower() for query in generate_for_graph(seating, GenerationConfig(per_capability=12))]
    assert len(texts) == len(set(texts))


def test_fewer_capabilities_and_templates_can_be_asked_for(seating: SkillGraph) -> None:
    made = generate_for_graph(seating, GenerationConfig(per_capability=1, max_capabilities=1, combinations=1))
    assert [query.capability_id for query in made] == ["c1"]


def test_a_skill_without_capabilities_gets_queries_from_its_description() -> None:
    graph = SkillGraph("a/b", "b", "Convert recordings into searchable notes.")
    made = generate_for_graph(graph)
    assert {query.capability_id for query in made} == {FROM_DESCRIPTION}
    assert {query.form for query in made} == set(Form)
    assert all("recordings into searchable notes" in query.query for query in made)


def test_a_skill_with_nothing_to_ask_for_gives_nothing() -> None:
    assert generate_for_graph(SkillGraph("a/b", "b", "A page.")) == []


def test_counts_tell_where_queries_come_from() -> None:
    counts = GenerationCounts()
    skills = [SKILL, Skill("a/none", "none", "A page.", "")]
    made = list(generate(skills, counts=counts))
    assert (counts.skills, counts.from_capabilities, counts.none) == (2, 1, 1)
    assert counts.queries == len(made)
    assert counts.valid == sum(query.valid for query in made)


def test_a_baseline_without_a_teacher_model_is_refused_before_the_first_skill() -> None:
    for teacher in (None, OfflineTeacher()):
        with pytest.raises(ValueError, match="method few_shot needs a teacher model"):
            generate([SKILL], GenerationConfig(method="few_shot"), teacher)


def test_the_offline_teacher_means_by_rule() -> None:
    assert list(generate([SKILL], teacher=OfflineTeacher())) == list(generate([SKILL]))


def test_the_sample_library_twice_gives_the_same_bytes_and_reads_back(tmp_path: Path) -> None:
    corpus = load_sample_corpus()
    for name in ("one.jsonl", "two.jsonl"):
        write_pseudo_queries(tmp_path / name, generate(corpus, GenerationConfig(per_capability=2)))
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    read = read_pseudo_queries(tmp_path / "one.jsonl")
    assert [asdict(query) for query in read] == [
        asdict(query) for query in generate(corpus, GenerationConfig(per_capability=2))
    ]


def test_another_seed_words_queries_differently() -> None:
    first, other = (list(generate([SKILL], GenerationConfig(seed=seed))) for seed in (0, 1))
    assert {query.query for query in first} != {query.query for query in other}


def test_a_skill_gets_the_same_queries_whatever_stands_before_it() -> None:
    corpus = list(load_sample_corpus())[:6]
    shuffled = random.Random(0).sample(corpus, len(corpus))
    by_id = {query.query_id: query for query in generate(shuffled)}
    assert all(by_id[query.query_id] == query for query in generate(corpus))


def test_the_sample_library_reads_like_requests() -> None:
    corpus = load_sample_corpus()
    for query in generate(corpus, GenerationConfig(per_capability=4)):
        text = query.query
        assert text[0].isupper() or text[0].isdigit()
        assert text[-1] in ".?"
        assert ("?" in text) is (query.form in (Form.YES_NO, Form.WH))
        assert not set(text) & set("{}`*|<>")
        assert "  " not in text
        assert " ." not in text
        assert not names_skill(text, corpus.get(query.skill_id))


def answer_for(task: TeacherTask) -> dict[str, Any]:
    slots = task.inputs["slots"]
    return {
        "templates": [
            {"capability": c, "form": "wh", "template": f"How do I manage number {i} of these?"}
            for i, c in enumerate(slots)
        ]
    }


def test_a_teacher_writes_the_templates_and_is_named(scripted_teacher: Callable[..., Any]) -> None:
    teacher = scripted_teacher(answer_for)
    made = list(generate([SKILL], teacher=teacher))
    wanted = {capability.node_id for capability in parse_skill(SKILL).capabilities}
    assert {query.capability_id for query in made} == wanted
    assert {query.writer for query in made} == {"openai:scripted"}


def test_skills_about_which_nothing_is_asked_are_counted_in_their_place(scripted_teacher: Callable[..., Any]) -> None:
    counts = GenerationCounts()
    skills = [Skill("a/0", "none", "A page.", ""), SKILL, Skill("a/1", "none", "A page.", "")]
    made = list(generate(skills, teacher=scripted_teacher(answer_for), counts=counts))
    assert (counts.skills, counts.from_capabilities, counts.none) == (3, 1, 2)
    assert {query.skill_id for query in made} == {"a/ferns"}


def test_an_answer_that_cannot_be_used_is_counted_by_reason(scripted_teacher: Callable[..., Any]) -> None:
    counts = GenerationCounts()
    made = list(generate([SKILL], teacher=scripted_teacher(lambda task: {"templates": []}), counts=counts))
    assert made == []
    assert counts.failed == {"schema_violation": 1}
    assert counts.none == 1


@pytest.mark.data
def test_the_real_library_gives_sound_queries(data_dir: Path) -> None:
    corpus = SkillCorpus.from_jsonl(data_dir / "skills.jsonl.gz")
    counts = GenerationCounts()
    made = list(generate(corpus[::20], counts=counts))
    assert counts.from_capabilities > 0.9 * counts.skills
    assert counts.valid > 0.99 * counts.queries
    assert not any(set(query.query) & set("{}`|<>") for query in made)
