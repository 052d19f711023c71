"""Building the records of both stages from requests: alignment, drops, audit, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_pipeline import (
    NegativeQuotas,
    Skill,
    SkillCorpus,
    TrainingRequest,
    build_records,
    read_records_folder,
    read_stage1,
    read_stage2,
    write_records_folder,
)
from models.views import serialize_document


def request(record_id: str, skill_id: str, **change: str) -> TrainingRequest:
    fields = {
        "query": f"Please help me with {skill_id.replace('/', ' ')} because the quarter closes on Friday",
        "query_capability": f"The user needs skills for {skill_id}.",
        "implicit_query": f"Friday is close and {skill_id} is not done.",
    }
    return TrainingRequest(record_id, skill_id, **(fields | change))


def requests_for(corpus: SkillCorpus) -> list[TrainingRequest]:
    return [request(f"r{i}", skill_id) for i, skill_id in enumerate(corpus.ids)]


def test_every_record_passes_an_independent_audit(library: SkillCorpus) -> None:
    built = build_records(requests_for(library), library)
    assert len(built.stage1) == len(library)
    tied = {frozenset((edge.a, edge.b)) for edge in built.exclusions.edges}
    for record in built.stage1:
        assert len(record.negative_ids) == len(set(record.negative_ids)) == 10
        assert record.positive_id not in record.negative_ids
        assert not any(frozenset((record.positive_id, i)) in tied for i in record.negative_ids)
        for skill_id, text in zip(
            (record.positive_id, *record.negative_ids), (record.positive, *record.negatives), strict=True
        ):
            skill = library.get(skill_id)
            assert text == serialize_document(skill.name, skill.description, skill.body)
        assert record.category == record.positive_id.split("/")[0]
        assert record.negative_ids[9].split("/")[0] != record.category
        assert {i.split("/")[0] for i in record.negative_ids[7:9]} == {record.category}


def test_stage2_carries_labels_and_candidates_over_unchanged(library: SkillCorpus) -> None:
    built = build_records(requests_for(library), library)
    first, second = built.stage1[3], built.stage2[3]
    assert second.original_query == first.query
    assert second.query == "Friday is close and finance/s3 is not done."
    assert vars(first) | {"query": second.query, "original_query": first.query} == vars(second)


def test_a_fork_is_never_a_negative_of_its_original(library: SkillCorpus) -> None:
    original = library.get("media/s2")
    fork = Skill("media/fork", "renamed", original.description, original.body + " Forked.")
    corpus = SkillCorpus([*library, fork])
    built = build_records(requests_for(corpus), corpus)
    assert built.exclusions.neighbours("media/fork") >= {"media/s2"}
    assert any(
        edge.kind == "copy" and {edge.a, edge.b} == {"media/s2", "media/fork"} for edge in built.exclusions.edges
    )
    by_positive = {record.positive_id: record.negative_ids for record in built.stage1}
    assert "media/fork" not in by_positive["media/s2"]
    assert "media/s2" not in by_positive["media/fork"]
    assert len(by_positive) == 43


def test_records_do_not_depend_on_the_order_of_requests(library: SkillCorpus) -> None:
    requests = requests_for(library)
    one, two = build_records(requests, library), build_records(requests[::-1], library)
    assert one.stage1 == two.stage1[::-1]


def test_unusable_rows_are_dropped_counted_and_named(library: SkillCorpus) -> None:
    requests = [
        request("ok", "media/s0"),
        request("gone", "media/none"),
        request("short", "media/s1", query="Too short a request"),
        request("long", "media/s1", query="word " * 111),
        request("plain", "media/s2", implicit_query=""),
    ]
    built = build_records(requests, library)
    assert [record.record_id for record in built.stage1] == ["ok", "plain"]
    assert [record.record_id for record in built.stage2] == ["ok"]
    assert built.manifest["rejected"] == {
        "stage1_overlong_query": 1,
        "stage1_short_query": 1,
        "stage1_unknown_skill": 1,
        "stage2_no_implicit_query": 1,
    }
    assert {(row["record_id"], row["detail"]) for row in built.manifest["dropped"]} >= {
        ("gone", "media/none"),
        ("short", "4 words, 19 characters"),
    }


def test_a_row_whose_quota_cannot_be_filled_is_dropped_with_the_source(library: SkillCorpus) -> None:
    lonely = SkillCorpus(
        [*library, Skill("alone/x", "x", "Only one of its kind", "Nothing else is like this one here.")]
    )
    built = build_records([request("r", "alone/x"), request("s", "media/s1")], lonely)
    assert [record.record_id for record in built.stage1] == ["s"]
    (row,) = built.manifest["dropped"]
    assert (row["record_id"], row["reason"], row["detail"]) == ("r", "unfilled_same_category", "same_category: 0 of 2")


def test_quotas_are_counted_by_source(library: SkillCorpus) -> None:
    quotas = NegativeQuotas(2, 1, 1, 0)
    built = build_records(requests_for(library), library, quotas=quotas)
    assert all(len(record.negative_ids) == 4 for record in built.stage1)
    assert built.manifest["negatives_by_source"] == {
        "skill_neighbours": 84,
        "query_neighbours": 42,
        "same_category": 42,
        "cross_category": 0,
    }


def test_the_query_source_is_replaced_in_its_three_places_only(library: SkillCorpus) -> None:
    asked: list[int] = []

    def ranker(queries: list[str], k: int) -> list[list[str]]:
        asked.append(k)
        return [["legal/s7", "legal/s6", "legal/s5", "legal/s4", "legal/s3", "legal/s2", "legal/s1"] for _ in queries]

    requests = [request("r", "finance/s0")]
    given = build_records(requests, library, query_source=ranker).stage1[0].negative_ids  # pyright: ignore[reportArgumentType]
    dense = build_records(requests, library).stage1[0].negative_ids
    assert asked == [50]
    assert given[:4] == dense[:4]
    rest = [i for i in ("legal/s7", "legal/s6", "legal/s5", "legal/s4") if i not in given[:4]]
    assert list(given[4:7]) == rest[:3]


def test_bm25_finds_the_query_neighbours_by_words(library: SkillCorpus) -> None:
    query = "Please help me with the words finance0 legal3step1 legal3step2 and nothing more"
    built = build_records([request("r", "finance/s0", query=query)], library, query_source="bm25")
    assert built.stage1[0].negative_ids[4] == "legal/s3"
    assert built.manifest["query_source"] == "bm25"


def test_an_unknown_query_source_is_named(library: SkillCorpus) -> None:
    with pytest.raises(ValueError, match="query_source = 'tfidf': expected 'dense', 'bm25' or a function"):
        build_records([request("r", "media/s0")], library, query_source="tfidf")  # pyright: ignore[reportArgumentType]


def test_an_encoder_supplies_both_neighbour_sources(library: SkillCorpus, table_encoder: type) -> None:
    # Skill number n stands at angle 3n degrees: its nearest are its neighbours in number, cos 15° = 0.966.
    import math

    vectors = {}
    for n, skill_id in enumerate(library.ids):
        vectors[library.document(skill_id)] = [math.cos(math.radians(3 * n)), math.sin(math.radians(3 * n))]
    asked = request("r", "finance/s0")
    vectors[asked.query] = [math.cos(math.radians(60.5)), math.sin(math.radians(60.5))]  # between numbers 20 and 21
    built = build_records([asked], library, encoder=table_encoder(vectors), threshold=0.999)
    ids = built.stage1[0].negative_ids
    # cos 3° = 0.9986 is below the threshold, so nothing is excluded
    assert ids[:7] == tuple(library.ids[n] for n in (1, 2, 3, 4, 20, 21, 19))
    assert built.manifest["encoder"] == {"name": "table", "fingerprint": "table-1"}
    assert built.exclusions.manifest["text_gate"] is False


def test_a_category_function_replaces_the_prefix(library: SkillCorpus) -> None:
    def even(skill: Skill) -> str:
        return "even" if int(skill.skill_id[-1]) % 2 == 0 else "odd"

    built = build_records(requests_for(library), library, category=even)
    for record in built.stage1:
        assert record.category == even(library.get(record.positive_id))
        assert even(library.get(record.negative_ids[9])) != record.category


def test_repeated_record_ids_are_refused(library: SkillCorpus) -> None:
    with pytest.raises(ValueError, match="record_id 'r' occurs more than once"):
        build_records([request("r", "media/s0"), request("r", "media/s1")], library)


def test_folder_round_trip(library: SkillCorpus, tmp_path: Path) -> None:
    built = build_records(requests_for(library), library)
    write_records_folder(built, tmp_path / "records")
    assert sorted(entry.name for entry in (tmp_path / "records").iterdir()) == [
        "exclusions.json",
        "manifest.json",
        "stage1.jsonl",
        "stage2.jsonl",
    ]
    assert read_stage1(tmp_path / "records/stage1.jsonl", 10) == built.stage1
    assert read_stage2(tmp_path / "records/stage2.jsonl", 10) == built.stage2
    assert read_records_folder(tmp_path / "records") == built


def test_the_same_input_gives_the_same_bytes(library: SkillCorpus, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_records_folder(build_records(requests_for(library), library), tmp_path / name)
    for file in ("stage1.jsonl", "stage2.jsonl", "exclusions.json", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_folder_without_manifest_is_not_read(library: SkillCorpus, tmp_path: Path) -> None:
    write_records_folder(build_records(requests_for(library), library), tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no manifest\.json"):
        read_records_folder(tmp_path)
