"""The graph's writer inside the offline teacher: requests of the right shape, true to the skill, without its name."""

from __future__ import annotations

import pytest

from configs.load import ConfigError
from data_pipeline.corpus import Skill
from data_pipeline.phrases import names_skill
from data_pipeline.skill2query.parsing import parse_skill
from data_pipeline.skill2query.writer import GraphWriter
from data_pipeline.teacher import OfflineTeacher, TeacherConfig, open_teacher, prompts, validate_teacher
from data_pipeline.teacher.forms import check_rationale
from data_pipeline.teacher.offline_writer import TextWriter
from data_pipeline.validation import query_problem

FROST = Skill(
    "garden/frost-alert",
    "frost-alert",
    "Compares hourly forecasts with plant tolerances and warns gardeners before cold nights.",
    """# Frost Alert

## Capabilities
- Compare hourly forecasts with plant tolerances
- Schedule a reminder before sunset
- Plan which beds to cover tonight

## Parameters

| name | type | required | default | description |
|---|---|---|---|---|
| nights | integer | yes | 3 | how many nights to look ahead |
| unit | celsius, fahrenheit | no | celsius | unit of the temperatures |
""",
)
RAIN = Skill(
    "garden/rain-gauge",
    "rain-gauge",
    "Plots rainfall by week and month.",
    "# Rain gauge\n\n## Capabilities\n- Plot rainfall by week and month\n- Calibrate a tipping bucket sensor\n",
)
EMPTY = Skill("garden/empty", "empty", "Template.", "TODO")
WRITER = GraphWriter()


def test_requests_are_different_admitted_and_do_not_name_the_skill() -> None:
    made = WRITER.requests(FROST, 3)
    assert len(set(made)) == 3
    for text in made:
        assert query_problem(text) is None
        assert not names_skill(text, FROST)


def test_a_request_asks_for_several_capabilities_of_the_graph() -> None:
    objects = ("plant tolerances", "reminder before sunset", "beds to cover")
    for text in WRITER.requests(FROST, 3):
        assert sum(item in text for item in objects) >= 2


def test_the_same_skill_gives_the_same_requests() -> None:
    assert GraphWriter().requests(FROST, 3) == WRITER.requests(FROST, 3)


def test_the_rationale_is_the_sentence_of_the_closest_capabilities() -> None:
    sentence = WRITER.capability(FROST, "Tell me in the evening with a reminder before the sunset, please.")
    assert check_rationale({"query_capability": sentence}) is None
    assert sentence.startswith("The user needs skills for scheduling a reminder before sunset")


def test_the_implicit_rewrite_keeps_the_subject_without_name_and_verb() -> None:
    text = WRITER.implicit(FROST, "Schedule a reminder before sunset.")
    assert "reminder before sunset" in text
    assert "schedul" not in text.lower()
    assert not names_skill(text, FROST)
    assert query_problem(text) is None


def test_a_compound_task_has_a_part_of_each_skill() -> None:
    text, needs = WRITER.compound([FROST, RAIN])
    assert len(needs) == len(set(needs)) == 2
    assert all(need in text for need in needs)
    own = [{c.text.lower() for c in parse_skill(skill).capabilities} for skill in (FROST, RAIN)]
    assert [need.lower() in texts for need, texts in zip(needs, own, strict=True)] == [True, True]


def test_a_document_without_capabilities_is_written_about_as_plain_text_or_not_at_all() -> None:
    assert WRITER.requests(EMPTY, 3) == TextWriter().requests(EMPTY, 3)
    assert WRITER.implicit(EMPTY, "anything") == TextWriter().implicit(EMPTY, "anything")


@pytest.mark.parametrize(
    "task",
    [
        prompts.query_synthesis(FROST),
        prompts.rationale("r", "Schedule a reminder before sunset.", FROST),
        prompts.implicit_rewrite(
            "r", "Schedule a reminder before sunset.", "The user needs skills for reminders.", FROST
        ),
        prompts.multi_skill_task("r", [FROST, RAIN]),
    ],
    ids=lambda task: task.kind,
)
def test_the_offline_teachers_answers_fit_their_forms(task) -> None:
    assert OfflineTeacher(WRITER).complete(task).ok


@pytest.mark.parametrize(("writer", "kind"), [("graph", GraphWriter), ("text", TextWriter)])
def test_the_configuration_chooses_the_writer(writer: str, kind: type, tmp_path) -> None:
    task = prompts.query_synthesis(FROST)
    chosen = open_teacher(TeacherConfig(writer=writer), tmp_path)
    (result,) = chosen.run([task])
    assert result.value == {"queries": kind().requests(FROST, 3)}
    assert kind().requests(FROST, 3) != ({GraphWriter, TextWriter} - {kind}).pop()().requests(FROST, 3)


def test_an_unknown_writer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"teacher\.writer is 'poet'; expected one of graph, text"):
        validate_teacher(TeacherConfig(writer="poet"))
