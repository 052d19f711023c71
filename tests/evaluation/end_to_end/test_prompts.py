"""Prompts: what the model sees of a skill, how it is shortened, and what makes two prompts the same."""

from __future__ import annotations

import pytest

from data_pipeline.corpus import Skill
from evaluation.end_to_end.prompts import CUT_NOTE, SYSTEM, build_prompt, by_characters, by_tokens, skill_text
from evaluation.end_to_end.tasks import CODE_SUITE

SKILL = Skill("theoremqa_000", "Trees", "Counting edges.", "n - 1 edges.")


def test_without_skills_the_user_message_is_the_question(make_task):
    prompt = build_prompt(make_task("champ", "  How many?\u200b "), [], by_characters(100))
    assert (prompt.user, prompt.skills, prompt.cut) == ("How many?", (), 0)


def test_a_skill_is_shown_without_its_id(make_task):
    prompt = build_prompt(make_task("champ", "How many?"), [SKILL], by_characters(100))
    assert "# Trees\n\nCounting edges.\n\nn - 1 edges." in prompt.user
    assert "theoremqa" not in prompt.user
    assert prompt.user.endswith("Task:\n\nHow many?")


def test_missing_parts_leave_no_gap():
    assert skill_text(Skill("s", "", "Only this.", "")) == "Only this."


def test_a_long_skill_is_cut_and_counted(make_task):
    prompt = build_prompt(make_task("champ"), [SKILL, Skill("b", "B", "", "")], by_characters(10))
    assert prompt.cut == 1
    assert f"# Trees\n\nC{CUT_NOTE}" in prompt.user


def test_a_skill_is_cut_by_tokens(tiny_folder):
    shorten = by_tokens(3, str(tiny_folder))
    text, missing = shorten("the user needs skills for spreadsheet analysis")
    assert missing
    assert "the user needs skills for spreadsheet analysis".startswith(text.removesuffix(CUT_NOTE))
    assert shorten("the") == ("the", False)


def test_the_identity_of_a_prompt_is_its_text(make_task):
    plain = build_prompt(make_task("champ", "Q"), [], by_characters(9)).sha256
    assert plain == build_prompt(make_task("champ", "Q"), [], by_characters(5)).sha256
    assert plain != build_prompt(make_task("toolqa", "Q"), [], by_characters(9)).sha256
    assert plain != build_prompt(make_task("champ", "Q"), [SKILL], by_characters(9)).sha256


@pytest.mark.parametrize("suite", sorted(SYSTEM))
def test_every_suite_says_how_to_end(suite):
    assert ("```python" if suite == CODE_SUITE else "ANSWER: <answer>") in SYSTEM[suite]
