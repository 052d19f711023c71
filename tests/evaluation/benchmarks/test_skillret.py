"""SkillRet's public layout: subsets, several targets, versions of the test split, and broken rows."""

from __future__ import annotations

import shutil

import pytest

from evaluation.benchmarks import load_folder


def test_skills_queries_and_qrels_become_a_benchmark(skillret_folder):
    bench = load_folder(skillret_folder)
    assert bench.name == "skillret"
    assert bench.corpus.ids == ["id-frost", "id-drip", "id-slug", "id-vents"]
    assert bench.qrels == {"t1": {"id-frost": 1}, "t2": {"id-drip": 1, "id-vents": 1}, "t3": {"id-slug": 1}}
    assert bench.queries[1].query == "Water and air the greenhouse."
    assert {query.domain for query in bench.queries} == {"Garden"}


def test_the_body_is_skill_md_where_there_is_no_body(skillret_folder):
    corpus = load_folder(skillret_folder).corpus
    assert corpus.get("id-frost").body == "# Frost alert"
    assert corpus.get("id-vents").body == "---\nname: vents\n---"


def test_counts_other_than_table_1_are_named_with_the_version_they_may_be(skillret_folder):
    notes = load_folder(skillret_folder).notes
    assert notes[0] == "skillret: expected 4,997 queries (Table 1), found 3"
    assert notes[1] == "skillret: expected 6,660 skills (Table 1), found 4"
    assert "version 1.1 of the test split has 4,392 queries and 6,006 skills" in notes[-1]


def test_the_layout_is_found_without_data_too(skillret_folder):
    assert len(load_folder(skillret_folder / "data").queries) == 3


def test_without_qrels_the_skill_ids_of_the_queries_count(skillret_folder):
    with_qrels = load_folder(skillret_folder).qrels
    shutil.rmtree(skillret_folder / "data" / "qrels")
    assert load_folder(skillret_folder).qrels == with_qrels


def test_another_split_has_no_published_counts(skillret_folder):
    for subset in ("skills", "queries", "qrels"):
        folder = skillret_folder / "data" / subset
        (folder / "test.jsonl").rename(folder / "train.jsonl")
    assert load_folder(skillret_folder, split="train").notes == ()
    with pytest.raises(FileNotFoundError, match=r"no table test .*the folder has: train.jsonl"):
        load_folder(skillret_folder)


def test_queries_that_disagree_with_the_qrels_are_counted(skillret_folder, change):
    change(skillret_folder / "data/queries/test.jsonl", lambda rows: rows[0].update(skill_ids=["id-slug"]))
    bench = load_folder(skillret_folder)
    assert bench.qrels["t1"] == {"id-frost": 1}
    assert "1 queries have other skill_ids than qrels; the qrels count" in bench.notes


def test_a_query_without_a_relevant_skill_is_left_out_and_counted(skillret_folder, change):
    change(skillret_folder / "data/qrels/test.jsonl", lambda rows: rows.pop())
    bench = load_folder(skillret_folder)
    assert list(bench.qrels) == ["t1", "t2"]
    assert "1 queries without a relevant skill were left out" in bench.notes


@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        (
            "qrels",
            lambda rows: rows[2].update(skill_id="id-moon"),
            r"qrels/test.jsonl:3: skill_id = 'id-moon': no such skill",
        ),
        ("qrels", lambda rows: rows[0].update(query_id="t9"), r"qrels/test.jsonl:1: query_id = 't9': no such query"),
        (
            "qrels",
            lambda rows: rows[1].update(relevance=0.5),
            r"test.jsonl:2: relevance = 0.5: expected a whole number",
        ),
        (
            "qrels",
            lambda rows: rows[1].pop("skill_id"),
            r"test.jsonl:2: missing column skill_id; this row has query_id",
        ),
        ("qrels", lambda rows: rows.append(rows[0] | {"relevance": 2}), r"test.jsonl:5: .*has another grade for it, 1"),
        ("queries", lambda rows: rows[2].update(id="t1"), r"queries/test.jsonl:3: id = 't1': duplicate query id"),
        (
            "queries",
            lambda rows: rows[0].pop("query"),
            r"test.jsonl:1: missing column query; this row has id, skill_ids, k",
        ),
        (
            "queries",
            lambda rows: rows[0].update(query="  "),
            r"test.jsonl:1: query = '  ': expected text that is not blank",
        ),
        ("skills", lambda rows: rows[1].update(id="id-frost"), r"skills/test.jsonl:2: id = 'id-frost': duplicate id"),
        ("skills", lambda rows: rows[1].update(name=["a"]), r"skills/test.jsonl:2: name = \['a'\]: expected text"),
    ],
)
def test_what_is_wrong_is_named_with_file_row_and_key(skillret_folder, change, file, edit, message):
    change(skillret_folder / "data" / file / "test.jsonl", edit)
    with pytest.raises(ValueError, match=message):
        load_folder(skillret_folder)
