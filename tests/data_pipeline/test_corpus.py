"""The corpus: order, ids, documents and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_pipeline import RecordError, Skill, SkillCorpus

ROW = {"skill_id": "a/x", "name": "x", "description": "does x", "body": "Body", "license": "MIT", "stars": 3}


def test_document_is_the_serialization_of_e1() -> None:
    skill = Skill("a/x", "name", "d" * 400, "b" * 3000)
    assert SkillCorpus([skill]).document("a/x") == "name | " + "d" * 300 + " | " + "b" * 2500


def test_order_position_and_lookup() -> None:
    corpus = SkillCorpus([Skill("b", "B", "d", "t"), Skill("a", "A", "d", "t")])
    assert corpus.ids == ["b", "a"]
    assert (corpus.position("a"), corpus.get("a").name, corpus[0].name) == (1, "A", "B")
    assert corpus.documents() == ["B | d | t", "A | d | t"]


def test_membership_asks_by_id() -> None:
    corpus = SkillCorpus([Skill("a", "A", "d", "t")])
    assert "a" in corpus
    assert "A" not in corpus


def test_unknown_id_is_named() -> None:
    with pytest.raises(KeyError, match="no skill 'zz' among the 1 skills"):
        SkillCorpus([Skill("a", "A", "d", "t")]).get("zz")


def test_duplicate_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="'a' occurs twice"):
        SkillCorpus([Skill("a", "A", "d", "t"), Skill("a", "B", "d", "t")])


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_other_keys_become_metadata(write_jsonl: Callable[..., Path], name: str) -> None:
    corpus = SkillCorpus.from_jsonl(write_jsonl(name, [ROW]))
    assert corpus[0] == Skill("a/x", "x", "does x", "Body", {"license": "MIT", "stars": "3"})


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.parquet"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    skills = [Skill("a", "A", "", "bö\ndy", {"repo": "r"}), Skill("b", "B", "d", "")]
    SkillCorpus(skills).to_jsonl(tmp_path / name)
    assert list(SkillCorpus.from_jsonl(tmp_path / name)) == skills


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"skill_id": ""}, "skill_id = '': expected a non-empty string"),
        ({"name": 3}, "name = 3: expected a string"),
        ({"description": "", "body": " "}, "description and body are both empty"),
    ],
)
def test_an_unusable_row_is_named(write_jsonl: Callable[..., Path], change: dict[str, Any], problem: str) -> None:
    path = write_jsonl("c.jsonl", [ROW | {"skill_id": "ok"}, ROW | change])
    with pytest.raises(RecordError) as caught:
        SkillCorpus.from_jsonl(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert problem in str(caught.value)


def test_a_repeated_id_names_both_rows(write_jsonl: Callable[..., Path]) -> None:
    with pytest.raises(RecordError, match=r":2: skill_id = 'a/x': duplicate id, first seen in row 1"):
        SkillCorpus.from_jsonl(write_jsonl("c.jsonl", [ROW, ROW]))
