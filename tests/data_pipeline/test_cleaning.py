"""C.2's deterministic cleaning: one reason per dropped record, and what must not be dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from data_pipeline.cleaning import CleaningRules, RawSkill, clean

TEXT = (
    "Reconcile two ledgers line by line, explain each difference and propose the journal entry that corrects it. " * 2
)
GOOD = RawSkill("lib.jsonl", 1, "finance/reconcile", "reconcile", "Reconcile two ledgers", TEXT)


def reason(**change: Any) -> str | None:
    result = clean([replace(GOOD, **change)])
    return result.dropped[0].reason if result.dropped else None


def test_a_good_record_is_kept_whole() -> None:
    (skill,) = clean([replace(GOOD, metadata={"repo": "r"})]).kept
    assert (skill.skill_id, skill.name, skill.description) == (
        "finance/reconcile",
        "reconcile",
        "Reconcile two ledgers",
    )
    assert skill.body == TEXT
    assert skill.metadata == {"repo": "r"}


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"skill_id": None}, "missing_id"),
        ({"skill_id": "  "}, "missing_id"),
        ({"name": None}, "missing_name"),
        ({"name": ""}, "missing_name"),
        ({"description": None, "body": None}, "empty_document"),
        ({"description": " ", "body": "\n\n"}, "empty_document"),
        ({"description": "Short", "body": "Too short."}, "too_short"),
        ({"name": ["a"]}, "malformed_record"),
        ({"body": {"text": "x"}}, "malformed_record"),
        ({"body": TEXT + "\x00"}, "unreadable"),
        ({"body": TEXT + "\ud800"}, "unreadable"),
        ({"body": TEXT[:150] + "\ufffd" * 10}, "unreadable"),
        ({"name": "your-skill-name"}, "placeholder"),
        ({"name": "{{skill_name}}"}, "placeholder"),
        ({"description": "Replace with description of the skill and when Claude should use it."}, "placeholder"),
        ({"description": "[TODO: Complete and informative explanation of what the skill does]"}, "placeholder"),
        ({"body": "# Title\n\nLorem ipsum dolor sit amet, consectetur adipiscing elit\n" * 3}, "placeholder"),
        ({"body": "# Overview\n\nTODO: write this part\n\n## Steps\n\n- TBD\n- TODO\n" * 3}, "placeholder"),
    ],
)
def test_reason(change: dict[str, Any], expected: str) -> None:
    assert reason(**change) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"description": None},
        {"name": "todo-tracker", "description": "Keep a TODO list of open questions while reviewing contracts"},
        {"body": TEXT + "\n\n- TODO: check the totals\n"},
        {"body": TEXT + "\n\n```markdown\n[TODO: your description here]\nTODO\nTODO\n```\n"},
        {"name": "skill-creator", "description": "Create skills from a short interview"},
        {"description": "Generate lorem ipsum text for mock-ups"},
        {"body": "将两本账簿逐行核对,解释每一处差异,并给出更正分录。" * 5},
        {"body": TEXT + "\ufffd"},
        {"body": "| a | b |\n|---|---|\n" + "| value | other |\n" * 10},
    ],
)
def test_kept(change: dict[str, Any]) -> None:
    assert reason(**change) is None


def test_length_is_counted_with_white_space_folded() -> None:
    rules = CleaningRules(min_characters=10)
    at_bound = replace(GOOD, description="", body="12345  \n 7890")
    assert len(clean([at_bound], rules).kept) == 1
    assert clean([replace(at_bound, body="12345  \n 789")], rules).dropped[0].reason == "too_short"


def test_the_first_usable_record_of_an_id_wins_and_the_second_names_it() -> None:
    broken = replace(GOOD, body="", description="")
    second, third = replace(GOOD, row=2), replace(GOOD, file="other.jsonl", row=7, name="later")
    result = clean([broken, second, third])
    assert [skill.name for skill in result.kept] == ["reconcile"]
    assert [record.reason for record in result.dropped] == ["empty_document", "duplicate_id"]
    assert (result.dropped[1].file, result.dropped[1].row) == ("other.jsonl", 7)
    assert "lib.jsonl:2" in result.dropped[1].detail


def test_copies_under_two_ids_are_both_kept() -> None:
    assert len(clean([GOOD, replace(GOOD, skill_id="finance/fork")]).kept) == 2


def test_counts_by_reason() -> None:
    result = clean([GOOD, GOOD, GOOD, replace(GOOD, skill_id=None)])
    assert result.counts == {"missing_id": 1, "duplicate_id": 2}


def test_an_impossible_rule_is_named() -> None:
    with pytest.raises(ValueError, match=r"max_placeholder = 1\.5"):
        CleaningRules(max_placeholder=1.5)
