"""SkillReason-Bench: one target a request, columns by several names, and names of one's own."""

from __future__ import annotations

import json

import pytest

from evaluation.benchmarks import load_benchmark, load_folder


def test_requests_and_the_shared_corpus_become_a_benchmark(skillreason_folder):
    bench = load_folder(skillreason_folder)
    assert bench.qrels == {"s1": {"garden/frost": 1}, "s2": {"garden/slug": 1}}
    assert bench.corpus.get("garden/slug").body == "# Slug diary"
    assert bench.queries[0].domain == "home"
    assert bench.notes == ()


def test_its_own_counts_are_compared_under_its_own_name(skillreason_folder):
    with pytest.warns(UserWarning, match="found"):
        bench = load_benchmark(f"skillreason-bench={skillreason_folder}")
    assert bench.name == "skillreason-bench"
    assert bench.notes == (
        "skillreason-bench: expected 3,729 queries (Table 1), found 2",
        "skillreason-bench: expected 61,228 skills (Table 1), found 4",
        "skillreason-bench: expected 33.2 words a query (Table 1), found 4.5",
    )


def test_columns_that_are_not_there_are_named_with_those_found(skillreason_folder, change):
    change(skillreason_folder / "queries.jsonl", lambda rows: rows[1].update(wish=rows[1].pop("query")))
    message = (
        r"queries.jsonl:2: missing column query or request or .*; this row has query_id, target_skill_id, domain, wish"
    )
    with pytest.raises(ValueError, match=message):
        load_folder(skillreason_folder)


def test_columns_json_names_files_and_columns_of_ones_own(skillreason_folder, change):
    change(skillreason_folder / "queries.jsonl", lambda rows: [row.update(wish=row.pop("query")) for row in rows])
    (skillreason_folder / "queries.jsonl").rename(skillreason_folder / "wishes.jsonl")
    (skillreason_folder / "columns.json").write_text(json.dumps({"queries": "wishes", "query": ["wish"]}))
    assert load_folder(skillreason_folder).queries[0].query == "Save the seedlings tonight."


def test_an_unknown_name_in_columns_json_is_refused(skillreason_folder):
    (skillreason_folder / "columns.json").write_text('{"question": "wish"}')
    with pytest.raises(
        ValueError, match=r"columns.json: found .*question.*expected an object with some of corpus, queries"
    ):
        load_folder(skillreason_folder)


def test_a_target_that_the_corpus_lacks_is_named(skillreason_folder, change):
    change(skillreason_folder / "queries.jsonl", lambda rows: rows[1].update(target_skill_id="garden/moon"))
    with pytest.raises(
        ValueError, match=r"queries.jsonl:2: target_skill_id = 'garden/moon': no such skill among the 4"
    ):
        load_folder(skillreason_folder)
