"""The offline teacher: every kind of task, deterministic, within the same schemas, and marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import data_pipeline
from data_pipeline import Skill, SkillCorpus, ingest
from data_pipeline.teacher import OfflineTeacher, TeacherTask, bench_prompts, prompts
from data_pipeline.teacher.forms import form, text
from data_pipeline.teacher.offline import content_words, coverage
from data_pipeline.teacher.offline_writer import TextWriter, actions, gerund, names_skill

FROST = Skill(
    "garden/frost-alert",
    "Frost Alert",
    "Compares hourly forecasts with plant tolerances and warns in time. Use when planning what to cover at night.",
    """# Frost Alert

## Capabilities
- Comparing hourly forecasts with **plant tolerances**
- Schedules a [reminder](https://example.org) before sunset
- Cold frame opening hours (see below)

## Do not use this skill when
- You need a rain forecast for a whole week

```python
- not a list item of the text at all
```
""",
)
RAIN = Skill(
    "garden/rain-gauge",
    "rain-gauge",
    "Logs rainfall readings. Plots rainfall by week and month.",
    "## Capabilities\n- Plot rainfall by week and month\n- Calibrate a tipping bucket sensor\n- Export readings to a spreadsheet",
)
EMPTY = Skill("garden/empty", "empty", "Template.", "TODO")
TEACHER = OfflineTeacher()


def value(task: TeacherTask) -> dict[str, object]:
    result = TEACHER.complete(task)
    assert result.ok, (result.reason, result.detail)
    return result.record()


def test_actions_begin_with_a_verb_and_leave_out_markup_code_and_what_is_excluded():
    assert actions(FROST) == (
        "compare hourly forecasts with plant tolerances and warns in time",
        "plan what to cover at night",
        "compare hourly forecasts with plant tolerances",
        "schedule a reminder before sunset",
        "take care of cold frame opening hours",
    )


@pytest.mark.parametrize(
    "action, expected",
    [
        ("plan trips", "planning trips"),
        ("merge files", "merging files"),
        ("draft letters", "drafting letters"),
        ("take care of cold frames", "cold frames"),
        ("review, check, or improve the beds", "reviewing, checking, or improving the beds"),
        ("plan and harvest beds", "planning and harvest beds"),  # no verb that we know
    ],
)
def test_an_action_becomes_a_capability(action: str, expected: str):
    assert gerund(action) == expected


@pytest.mark.parametrize(
    "sentence, named",
    [
        ("Set a frost alert.", True),
        ("FROST-ALERT please", True),
        ("alert me of frost", False),
        ("frost alerting", False),
    ],
)
def test_a_name_is_found_as_words_in_a_row(sentence: str, named: bool):
    assert names_skill(sentence, FROST) == named


def test_three_requests_are_written_and_marked():
    written = value(prompts.query_synthesis(FROST))
    assert written["teacher"] == "offline"
    queries = written["queries"]
    assert isinstance(queries, list)
    assert len(set(queries)) == 3
    for query in queries:
        assert not names_skill(query, FROST)
        assert 8 <= len(query.split()) <= 110
        assert coverage(query, FROST) > 0.3


def test_a_rationale_follows_the_request():
    query = "Please schedule a reminder before sunset and open the cold frame."
    written = value(prompts.rationale("r", query, FROST))
    assert written["query_capability"] == (
        "The user needs skills for scheduling a reminder before sunset and cold frame opening hours."
    )


def test_a_rewrite_names_neither_skill_nor_tools():
    skill = Skill("a/b", "pdf-filler", "Fill PDF forms with the pypdf2 library. Check scanned application forms.", "x")
    written = value(prompts.implicit_rewrite("r", "Fill my forms.", "", skill))["implicit_query"]
    assert isinstance(written, str)
    assert "forms" in written
    assert not content_words(written) & {"pdf", "filler", "pypdf2"}


def test_a_compound_task_has_a_part_for_each_skill():
    written = value(prompts.multi_skill_task("t", [FROST, RAIN]))
    assert written["needs"] == [
        "compare hourly forecasts with plant tolerances and warns in time",
        "log rainfall readings",
    ] or written["needs"] == [
        "compare hourly forecasts with plant tolerances and warns in time",
        "plot rainfall by week and month",
    ]
    assert all(need in str(written["query"]) for need in written["needs"])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "query, issue",
    [
        ("Compare the hourly forecasts with what my plants tolerate, please.", "good"),
        ("Use frost alert to compare the hourly forecasts with what my plants tolerate.", "target_leakage"),
        ("Compare hourly forecasts.", "malformed"),
        ("Translate this long legal contract from German into plain English sentences.", "target_mismatch"),
        ("Schedule a reminder for me before sunset, please, every day.", "redundant"),
    ],
)
def test_a_review_gives_its_reason(query: str, issue: str):
    others = ["Schedule a reminder for me before sunset every day, please."]
    reviewed = value(prompts.quality_review("r", query, FROST, others))
    assert (reviewed["issue_type"], reviewed["keep"]) == (issue, issue == "good")


def test_an_empty_skill_is_no_anchor_and_gives_no_text():
    assert value(bench_prompts.anchor_screening(FROST))["label"] == 1
    assert value(bench_prompts.anchor_screening(EMPTY))["label"] == 0
    result = TEACHER.complete(prompts.query_synthesis(EMPTY))
    assert (result.status, result.reason) == ("failed", "no_text")


def test_a_bench_request_is_implicit_and_belongs_to_its_target():
    query = str(value(bench_prompts.bench_query(FROST))["query"])
    validated = value(bench_prompts.target_validation("q", query, FROST))
    assert (validated["keep"], validated["issue_type"]) == (True, "good")
    reviewed = value(bench_prompts.joint_review("q", query, FROST))
    assert (reviewed["keep"], reviewed["issue_type"]) == (True, "good_implicit_reasoning")
    assert value(bench_prompts.quality_audit("q", query, FROST))["pass"] is True


def test_a_request_that_names_its_target_fails_every_judge():
    query = "Use frost alert to compare hourly forecasts with plant tolerances."
    assert value(bench_prompts.target_validation("q", query, FROST))["issue_type"] == "explicit_match"
    assert value(bench_prompts.joint_review("q", query, FROST))["issue_type"] == "explicit_match"
    audited = value(bench_prompts.quality_audit("q", query, FROST))
    assert (audited["leakage"], audited["pass"]) == (True, False)


def test_a_copy_is_an_alternative_and_a_stranger_is_not():
    fork = Skill("fork/frost", "night-frost", FROST.description, FROST.body)
    stranger = Skill("law/contracts", "contracts", "Reviews contracts.", "Finds unusual clauses in legal documents.")
    query = "Compare hourly forecasts with plant tolerances before sunset."
    decisions = [
        value(bench_prompts.alternative_audit("q", query, FROST, candidate))["decision"]
        for candidate in (fork, stranger)
    ]
    assert decisions == ["positive", "hard_negative"]


def test_relevance_goes_by_shared_words():
    query = "Plot the rainfall by week and calibrate my sensor."
    assert value(prompts.relevance_audit("r", query, RAIN))["label"] == "strong_positive"
    assert value(prompts.relevance_audit("r", query, EMPTY))["label"] == "wrong_positive"


def test_a_category_is_the_label_whose_words_occur():
    assert (
        value(prompts.category(RAIN, ["frost protection", "rainfall and weather"]))["category"]
        == "rainfall and weather"
    )


def test_an_unknown_kind_is_a_failure_and_not_a_crash():
    result = TEACHER.complete(TeacherTask("poem/1", "poem", "s", "p", form(poem=text(9))))
    assert (result.status, result.reason) == ("failed", "unknown_kind")


def test_a_writer_of_ones_own_writes_and_stays_within_the_schema():
    class Writer(TextWriter):
        def requests(self, skill: Skill, count: int) -> list[str]:
            return [f"request {n} for {len(skill.body)} characters" for n in range(count)]

        def capability(self, skill: Skill, request: str) -> str:
            return "whatever"

        def compound(self, skills: Sequence[Skill]) -> tuple[str, list[str]]:
            return "", []

    teacher = OfflineTeacher(Writer())
    written = teacher.complete(prompts.query_synthesis(FROST))
    assert written.value is not None
    assert written.value["queries"][2].startswith("request 2 ")
    assert teacher.complete(prompts.rationale("r", "q", FROST)).reason == "check_failed"
    assert teacher.complete(prompts.multi_skill_task("t", [FROST, RAIN])).reason == "no_text"
    assert teacher.usage.failed == 2


def test_the_sample_library_is_served_through_and_through(tmp_path: Path):
    ingest(
        [str(Path(data_pipeline.__file__).parent / "sample_library" / "skills")],
        tmp_path / "corpus.jsonl",
        progress=False,
    )
    corpus = SkillCorpus.from_jsonl(tmp_path / "corpus.jsonl")
    first = list(TEACHER.run(prompts.query_synthesis(skill) for skill in corpus))
    assert [result.task_id for result in first] == [f"query_synthesis/{skill_id}" for skill_id in corpus.ids]
    assert all(result.ok for result in first)
    assert list(OfflineTeacher().run(prompts.query_synthesis(skill) for skill in corpus)) == first
