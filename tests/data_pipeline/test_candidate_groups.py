"""Reranker groups: what their file may hold, what is cut, held out, and in which order they are trained on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from data_pipeline.candidate_groups import CandidateGroup, SourceAwareSampler, read_groups, split_groups
from data_pipeline.heldout import is_heldout
from data_pipeline.rows import RecordError

KNOWN = {"charts", "forms", "sql", "notes"}
ROW = {
    "record_id": "r1",
    "source": "multi",
    "query": "draw it and file it",
    "query_capability": "The user needs skills for charts and forms.",
    "teacher": "somebody",
    "candidates": [
        {"skill_id": "sql", "weight": 0.0},
        {"skill_id": "charts", "weight": 1.0},
        {"skill_id": "forms", "weight": 0.5},
    ],
}


def write(folder: Path, *rows: dict) -> Path:
    file = folder / "groups.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_group_is_read_in_the_retrievers_order(tmp_path: Path):
    (group,) = read_groups(write(tmp_path, ROW), KNOWN)
    assert group == CandidateGroup(
        "r1", "multi", ROW["query"], ROW["query_capability"], ("sql", "charts", "forms"), (0.0, 1.0, 0.5)
    )
    assert group.positives == ("charts", "forms")


@pytest.mark.parametrize("rationale", [{}, {"query_capability": ""}, {"query_capability": "  "}])
def test_a_group_may_have_no_rationale(tmp_path: Path, rationale: dict):
    row = {key: value for key, value in ROW.items() if key != "query_capability"} | rationale
    (group,) = read_groups(write(tmp_path, row), KNOWN)
    assert group.query_capability == ""


def candidates(*pairs: tuple[object, object]) -> dict:
    return {"candidates": [{"skill_id": skill_id, "weight": weight} for skill_id, weight in pairs]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (candidates(("sql", 0), ("charts", 0.0)), "a group needs at least one positive"),
        (candidates(("sql", 0), ("unheard", 1)), r"candidates\[1\]\.skill_id = 'unheard': no such skill in the corpus"),
        (candidates(("sql", 0), ("sql", 1)), r"candidates\[1\]\.skill_id = 'sql': occurs twice"),
        (candidates(("sql", 0), ("charts", -1)), r"candidates\[1\]\.weight = -1: expected a finite number >= 0"),
        (candidates(("sql", 0), ("charts", True)), r"candidates\[1\]\.weight = True"),
        (candidates(("sql", 0), ("charts", "1")), r"candidates\[1\]\.weight = '1'"),
        (candidates(("charts", 1)), "at least two candidates"),
        ({"candidates": ["charts", "sql"]}, r"candidates\[0\] = 'charts': expected an object"),
        ({"query": " "}, "query = ' ': expected a non-empty string"),
        ({"source": 3}, "source = 3: expected a non-empty string"),
        ({"query_capability": None}, "query_capability = None"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, change: dict, message: str):
    file = write(tmp_path, {**ROW, "record_id": "r0"}, {**ROW, **change})
    with pytest.raises(RecordError, match=f"groups.jsonl:2: .*{message}"):
        read_groups(file, KNOWN)


def test_a_missing_key_a_repeated_id_and_an_empty_file_are_refused(tmp_path: Path):
    with pytest.raises(RecordError, match=r"groups\.jsonl:1: missing key 'candidates'"):
        read_groups(write(tmp_path, {k: v for k, v in ROW.items() if k != "candidates"}), KNOWN)
    with pytest.raises(RecordError, match=r"groups\.jsonl:2: record_id = 'r1': duplicate id, first seen in row 1"):
        read_groups(write(tmp_path, ROW, ROW), KNOWN)
    with pytest.raises(RecordError, match="the file has no groups"):
        read_groups(write(tmp_path), KNOWN)


def test_a_cut_group_keeps_its_positives_and_the_best_negatives_in_order():
    group = CandidateGroup("r", "multi", "q", "", tuple("abcdef"), (0, 0, 1, 0, 0, 0.5))
    cut = group.first(4)
    assert (cut.skill_ids, cut.weights) == (tuple("abcf"), (0, 0, 1, 0.5))
    assert group.first(6) is group


def test_a_group_of_which_a_held_out_skill_is_a_positive_is_never_trained_on():
    ids = [f"skill-{number}" for number in range(400)]
    groups = [CandidateGroup(str(n), "multi", "q", "", (ids[n], ids[n + 1], ids[n + 2]), (1, 0, 1)) for n in range(398)]
    training, heldout = split_groups(groups, 0.2)
    assert len(training) + len(heldout) == 398
    assert not any(is_heldout(s, 0.2) for group in training for s in group.positives)
    assert all(any(is_heldout(s, 0.2) for s in group.positives) for group in heldout)
    assert split_groups(groups, 0.0) == (groups, [])


# -- the sampler ----------------------------------------------------------------------------------------------------------


def test_an_epoch_has_every_group_once():
    sources = ["single"] * 30 + ["multi"] * 20
    assert sorted(SourceAwareSampler(sources, seed=1).order()) == list(range(50))


def test_every_stretch_has_the_sources_in_their_proportion():
    sources = ["single"] * 300 + ["multi"] * 199
    order = SourceAwareSampler(sources, seed=1).order()
    for size in (1, 8, 16, 128):
        for start in range(len(order) - size + 1):
            multi = sum(sources[row] == "multi" for row in order[start : start + size])
            assert abs(multi - size * 199 / 499) < 2, (start, size)
    so_far = Counter()
    for position, row in enumerate(order, start=1):
        so_far[sources[row]] += 1
        assert abs(so_far["multi"] - position * 199 / 499) <= 1


def test_the_order_is_decided_by_seed_and_epoch():
    sources = ["single", "multi"] * 20
    first = SourceAwareSampler(sources, seed=1)
    assert first.order(0) == SourceAwareSampler(sources, seed=1).order(0)
    assert first.order(0) != first.order(1)
    assert first.order(0) != SourceAwareSampler(sources, seed=2).order(0)


def test_groups_of_one_source_are_shuffled():
    order = SourceAwareSampler(["single"] * 50, seed=1).order()
    assert order != sorted(order)
