"""Self-retrieval: ranks, confusions and hubs of rankings made by hand, and of a library searched with BM25."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from data_pipeline import Skill, SkillCorpus
from data_pipeline.skill2query.pseudo_query import PseudoQuery
from evaluation.library_report.reach import (
    Confusion,
    Reach,
    Request,
    confusions,
    hubs,
    own_requests,
    reach_depth,
    self_retrieval,
)
from retrieval.bm25 import BM25Index
from retrieval.ranking import Ranking


def reach_of(n_skills: int, rows: list[tuple[int, list[int]]]) -> Reach:
    """From (own skill, first skills) of each request."""
    top = np.full((len(rows), 10), -1, dtype=np.int32)
    ranks = np.zeros(len(rows), dtype=np.int32)
    for number, (own, found) in enumerate(rows):
        top[number, : len(found)] = found[:10]
        ranks[number] = found.index(own) + 1 if own in found else 0
    return Reach(n_skills, np.array([own for own, _ in rows]), ranks, top)


class FixedRetriever:
    """Gives the same list whatever is asked."""

    def __init__(self, ids: list[str]) -> None:
        self.ids = ids

    def search(self, queries: Sequence[str], k: int) -> Ranking:
        return Ranking([self.ids[:k] for _ in queries], np.zeros((len(queries), min(k, len(self.ids)))))


@pytest.mark.parametrize("skills, depth", [(1, 1), (9, 1), (24, 2), (100, 10), (65_714, 10)])
def test_found_means_among_ten_and_in_a_small_library_among_a_tenth(skills: int, depth: int):
    assert reach_depth(skills) == depth


def test_a_skills_rank_is_its_place_in_the_list():
    ids = [f"s{i}" for i in range(150)]
    corpus = SkillCorpus(Skill(skill_id, skill_id, "d", "b") for skill_id in ids)
    requests = [Request(0, "a", "a"), Request(11, "b", "b"), Request(120, "c", "c")]
    reach = self_retrieval(corpus, FixedRetriever(ids), requests)
    assert reach.ranks.tolist() == [1, 12, 0]  # the hundred-and-twenty-first is beyond the depth
    assert reach.top[2].tolist() == list(range(10))
    assert reach.recall(1) == pytest.approx(1 / 3)
    assert reach.recall(100) == pytest.approx(2 / 3)


def test_skills_without_a_common_word_are_not_found_by_bm25():
    corpus = SkillCorpus([Skill("a", "apples", "apples", ""), Skill("b", "pears", "pears", "")])
    reach = self_retrieval(corpus, BM25Index(corpus.ids, corpus.documents()), [Request(0, "oranges", "oranges")])
    assert reach.ranks.tolist() == [0]
    assert (reach.top == -1).all()


def test_counts_of_a_skill():
    reach = reach_of(20, [(0, [0, 1]), (0, [1, 0]), (0, [1, 2]), (3, [3])])
    assert reach.requests[:4].tolist() == [3, 0, 0, 1]
    assert reach.found(1)[:4].tolist() == [1, 0, 0, 1]
    assert reach.found(2)[:4].tolist() == [2, 0, 0, 1]
    assert reach.stolen() == {(0, 1): 2}
    assert reach.occurrences[:4].tolist() == [0, 3, 1, 0]  # a skill's own requests do not count


def test_a_pair_is_confusable_from_two_requests_and_three_tenths_of_all():
    two_of_four = [(0, [1, 0])] * 2 + [(0, [0])] * 2
    one = [(2, [3, 2])]
    two_of_eight = [(4, [5, 4])] * 2 + [(4, [4])] * 6
    back = [(1, [0, 1])]
    found = confusions(reach_of(10, two_of_four + one + two_of_eight + back))
    assert found == [Confusion(0, 1, 2, 1)]


def test_a_hub_turns_up_for_the_requests_of_most_others():
    # skill 0 is second for every other skill's request, and first for the last one; no other skill is found by a stranger
    reach = reach_of(40, [(own, [own, 0]) for own in range(1, 40)] + [(1, [0, 1])])
    found, threshold = hubs(reach)
    counts = np.array([40, *[0] * 39])  # 39, and once more in the last request
    assert threshold == pytest.approx(counts.mean() + 3 * counts.std())
    assert [(hub.skill, hub.occurrences, hub.victims, hub.firsts) for hub in found] == [(0, 40, 39, 1)]


def test_a_library_without_a_hub_has_none():
    assert hubs(reach_of(40, [(own, [own, (own + 1) % 40]) for own in range(40)]))[0] == []


def queries_of(skill_id: str, capabilities: list[str]) -> list[PseudoQuery]:
    return [
        PseudoQuery.from_row(
            "f",
            n,
            {
                "query_id": f"{skill_id}/{n}",
                "skill_id": skill_id,
                "query": f"Please {text}.",
                "capability_id": f"c{n}",
                "capability": text,
                "template_id": f"t{n}",
                "template": "",
                "form": "imperative",
                "slots": {},
            },
        )
        for n, text in enumerate(capabilities)
    ]


def test_general_requests_are_left_out_where_there_are_telling_ones(library: SkillCorpus):
    queries = [
        *queries_of("lost/shy", ["write report", "translate signed contracts"]),
        *queries_of("talk/minutes", ["write report"]),
        *queries_of("elsewhere/unknown", ["tune violin strings"]),
    ]
    requests = own_requests(library, queries, per_skill=10, max_queries=1000)
    assert [(library.ids[r.owner], r.text) for r in requests] == [
        ("lost/shy", "Please translate signed contracts."),
        ("talk/minutes", "Please write report."),
    ]


def test_a_large_library_gets_fewer_requests_a_skill(library: SkillCorpus, queries: list[PseudoQuery]):
    assert len(own_requests(library, queries, per_skill=10, max_queries=1000)) == 3 * 24
    assert len(own_requests(library, queries, per_skill=10, max_queries=50)) == 2 * 24  # 50 // 24
    assert len(own_requests(library, queries, per_skill=10, max_queries=1)) == 24
