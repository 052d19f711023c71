"""Training requests from a library's own text."""

from __future__ import annotations

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.records import TrainingRequest
from data_pipeline.self_requests import self_requests

SKILL = Skill(
    "a/one",
    "one",
    "w1 w2 w3 w4",
    "w5 w6 w7 w8\n\n```\ncode stays out\n```\n\n## Capabilities\n\n- **Count** things\n- Sort things.\n",
)


def test_passages_overlap_and_leave_out_code_and_markup():
    made = self_requests(SkillCorpus([SKILL]))
    assert [r.query for r in made] == ["w1 w2 w3 w4 w5 w6 w7 w8", "w5 w6 w7 w8 Capabilities Count things Sort"]
    assert [r.record_id for r in made] == ["self/a/one/0", "self/a/one/1"]


def test_rationales_take_turns_through_the_capabilities():
    made = self_requests(SkillCorpus([SKILL]))
    assert [r.query_capability for r in made] == [
        "The user needs skills for count things.",
        "The user needs skills for sort things.",
    ]


def test_both_wordings_of_a_request_are_cut_up_with_its_own_rationale():
    request = TrainingRequest("r1", "a/one", "e1 e2 e3 e4 e5 e6 e7 e8", "The rationale.", "i1 i2 i3 i4 i5 i6 i7 i8")
    other = TrainingRequest("r2", "b/unknown", "x1 x2 x3 x4 x5 x6 x7 x8", "Not here.")
    made = self_requests(SkillCorpus([SKILL]), [request, other])[2:]
    assert [(r.record_id, r.query, r.query_capability, r.implicit_query) for r in made] == [
        ("self/a/one/r1/0", "e1 e2 e3 e4 e5 e6 e7 e8", "The rationale.", ""),
        ("self/a/one/r1/1", "i1 i2 i3 i4 i5 i6 i7 i8", "The rationale.", ""),
    ]
