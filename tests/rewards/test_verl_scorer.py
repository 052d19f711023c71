"""Scoring single rollouts for verl: the numbers of our own trainer for the same pool, whatever is scored together."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.reward import EmbeddedScorer, RequestEmbedder, RewardRequest
from configs.schema import RewardConfig, TermConfig
from data_pipeline import Skill, SkillCorpus
from models.views import View, document_view, privileged_view, raw_view
from rewards import RewardError
from rewards.verl_config import VerlRewardConfig
from rewards.verl_scorer import RewardActor, RolloutRow, RowScore, RowScorer

TERMS = {"margin": TermConfig(), "gain": TermConfig(weight=0.5), "length": TermConfig()}
LIBRARY = SkillCorpus([Skill(f"lib/{n}", n, f"does {n}", f"body of {n}") for n in "abcdefgh"])


class FakeRetriever:
    """Unit vectors near one direction, made from each text's digest; notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def __call__(self, views: list[View], max_length: int) -> np.ndarray:
        self.calls.append(([view.text for view in views], max_length))
        digests = [hashlib.sha256(view.text.encode()).digest()[:8] for view in views]
        values = 1.0 + 0.1 * (np.array([list(d) for d in digests]) / 127.5 - 1.0)
        return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


class TableRetriever:
    """Vectors by text."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors

    def __call__(self, views: list[View], max_length: int) -> np.ndarray:
        return np.array([self.vectors[view.text] for view in views], dtype=np.float32)


def row(rationale: str = "charts", **changes: Any) -> RolloutRow:
    attributes: dict[str, Any] = {
        "record_id": "r1",
        "query": "draw it",
        "positive_id": "lib/a",
        "negative_ids": ("lib/b", "lib/c"),
        "rationale": rationale,
        "length": 130,
    } | changes
    named = [attributes["positive_id"], *attributes["negative_ids"]]
    attributes.setdefault("documents", {s: LIBRARY.document(s) for s in named})
    return RolloutRow(**attributes)


ROWS = [
    row("charts"),
    row("forms", record_id="r2", query="fill it", positive_id="lib/d", negative_ids=("lib/a", "lib/e"), length=1),
    row(""),
    row("tables", length=400),
    row("sheets", record_id="r2", query="fill it", positive_id="lib/d", negative_ids=("lib/a", "lib/e")),
]


def scorer(retriever: Any, **keys: Any) -> RowScorer:
    settings: dict[str, Any] = {"terms": TERMS} | keys
    return RowScorer(VerlRewardConfig(**settings), retriever)


def scores(found: list[RowScore | RewardError]) -> list[RowScore]:
    assert all(isinstance(score, RowScore) for score in found), found
    return found  # type: ignore[return-value]


def pool_file(tmp_path: Path, *names: str) -> str:
    path = tmp_path / "pool.jsonl"
    SkillCorpus([LIBRARY.get(f"lib/{n}") for n in names]).to_jsonl(path)
    return str(path)


def our_trainer(rollout: RolloutRow, pool: tuple[str, ...] = (), exclusions: dict[str, set[str]] | None = None):
    """Total and terms of Stage II's own scorer for a batch of this rollout alone over the same pool."""
    ids = list(dict.fromkeys([*rollout.negative_ids, *pool]))
    scorer = EmbeddedScorer(RewardConfig(terms=TERMS, mask_exclusions=exclusions is not None), exclusions)
    embedder = RequestEmbedder(FakeRetriever(), max_query_length=2048, document_max_length=2048)
    request = RewardRequest(
        query_ids=[rollout.record_id],
        queries=[rollout.query],
        positive_ids=[rollout.positive_id],
        negative_ids=[ids],
        documents={s: LIBRARY.document(s) for s in [rollout.positive_id, *ids]},
        rationales=[rollout.rationale],
        lengths=[rollout.length],
        group=[0],
    )
    result = scorer.score_embedded(request, embedder.embed(request))
    return {"total": result.total.item()} | {name: value.item() for name, value in result.terms.items()}


def as_terms(score: RowScore) -> dict[str, float]:
    return {"total": score.total} | {name: score.info[f"reward/{name}"] for name in TERMS}


def test_the_rewards_are_those_of_our_own_trainer_for_the_same_pool():
    for score, rollout in zip(scores(scorer(FakeRetriever()).score(ROWS)), ROWS, strict=True):
        assert as_terms(score) == pytest.approx(our_trainer(rollout), abs=1e-5)  # a cosine's last bit, over tau


@pytest.mark.parametrize("names", ["fgh", "abcdefgh", "aef"], ids=["others", "everything", "some"])
def test_a_fixed_pool_joins_every_row_s_own_candidates(names: str, tmp_path: Path):
    found = scores(scorer(FakeRetriever(), pool_file=pool_file(tmp_path, *names)).score(ROWS))
    pool = tuple(f"lib/{n}" for n in names)
    for score, rollout in zip(found, ROWS, strict=True):
        others = tuple(s for s in pool if s != rollout.positive_id)  # the positive is masked by its id
        assert as_terms(score) == pytest.approx(our_trainer(rollout, others), abs=1e-5)


def test_neighbours_of_the_positive_leave_its_negatives(tmp_path: Path):
    graph = tmp_path / "exclusions.json"
    edge = {"a": "lib/a", "b": "lib/f", "kind": "copy", "cosine": 0.99, "jaccard": 0.9}
    graph.write_text(
        json.dumps(
            {"manifest": {}, "edges": [edge], "adjacency": {"lib/a": ["lib/f"], "lib/f": ["lib/a"]}},
        )
    )
    pool = pool_file(tmp_path, "f", "g")
    found = scores(scorer(FakeRetriever(), pool_file=pool, exclusions_file=str(graph)).score(ROWS[:2]))
    masked = our_trainer(ROWS[0], ("lib/f", "lib/g"), {"lib/a": {"lib/f"}})
    assert as_terms(found[0]) == pytest.approx(masked, abs=1e-5)
    assert as_terms(found[1]) == pytest.approx(our_trainer(ROWS[1], ("lib/f", "lib/g")), abs=1e-5)


def test_the_margins_by_hand():
    vectors = {
        document_view(LIBRARY.document("lib/a")).text: [1.0, 0.0],
        document_view(LIBRARY.document("lib/b")).text: [0.0, 1.0],
        document_view(LIBRARY.document("lib/c")).text: [0.6, 0.8],
        raw_view("draw it").text: [0.0, 1.0],
        privileged_view("draw it", "charts").text: [0.8, 0.6],
    }
    (score,) = scores(scorer(TableRetriever(vectors)).score([row("charts")]))
    # [q; c]: 0.8 to the positive, 0.6 and 0.96 to the negatives; q: 0 to the positive, 1 and 0.8 to the negatives
    assert score.info["retrieval/margin"] == pytest.approx(0.8 - 0.96, abs=1e-6)
    assert score.info["retrieval/baseline_margin"] == pytest.approx(-1.0, abs=1e-6)
    assert score.info["reward/margin"] == pytest.approx(math.tanh(-0.16 / 0.05), abs=1e-6)
    assert score.info["reward/gain"] == 1.0  # 0.84 / 0.05, clipped
    assert score.info["reward/length"] == pytest.approx(-0.02, abs=1e-6)  # two tokens above the budget
    assert score.info["response/length"] == 130.0
    assert score.total == pytest.approx(math.tanh(-3.2) + 0.5 - 0.02, abs=1e-6)


def test_a_rollout_s_reward_does_not_depend_on_what_is_scored_with_it():
    together = scores(scorer(FakeRetriever()).score(ROWS))
    alone = [scores(scorer(FakeRetriever()).score([rollout]))[0] for rollout in ROWS]
    assert together == alone


def test_a_term_sees_one_rollout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "crowd_term.py").write_text("def crowd(batch):\n    return [float(len(batch.rationales))]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = scorer(FakeRetriever(), terms={"crowd": TermConfig(function="crowd_term:crowd")}).score(ROWS)
    assert [score.total for score in scores(found)] == [1.0] * len(ROWS)


def test_a_value_that_is_not_finite_is_refused_for_its_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "bad_term.py").write_text(
        "def bad(batch):\n    return [float('nan') if batch.rationales[0] == 'tables' else 1.0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = scorer(FakeRetriever(), terms={"bad": TermConfig(function="bad_term:bad")}).score(ROWS)
    assert isinstance(found[3], RewardError)
    assert "'bad' gave nan for rollout 0 of query 'r1' (rationale 'tables')" in str(found[3])
    assert [score.total for score in scores(found[:3] + found[4:])] == [1.0] * 4


def test_finite_terms_with_an_infinite_sum_are_refused():
    found = scorer(FakeRetriever(), terms={"length": TermConfig(weight=1e39)}).score([row(length=400)])
    assert "weighted sum of the terms is -inf for rollout 0: {'length': '1e+39 x -0.4'}" in str(found[0])


def test_documents_and_requests_are_embedded_once():
    retriever = FakeRetriever()
    scoring = scorer(retriever, max_query_length=77, document_max_length=55)
    scoring.score(ROWS)
    scoring.score([row("another"), row("and another")])
    texts = [text for call, _ in retriever.calls for text in call]
    for once in [LIBRARY.document(f"lib/{n}") for n in "abcde"] + [raw_view("draw it").text, raw_view("fill it").text]:
        assert texts.count(once) == 1
    assert [limit for _, limit in retriever.calls] == [55, 77, 77]
    assert scoring.counts == {"rollouts": 7, "calls": 2, "documents": 5, "requests": 2}


def test_another_text_of_a_known_skill_is_refused_by_name(tmp_path: Path):
    scoring = scorer(FakeRetriever(), pool_file=pool_file(tmp_path, "b", "g"))
    changed = row(record_id="r9", documents={**row().documents, "lib/b": "b | of another library | text"})
    found = scoring.score([changed, row()])
    assert isinstance(found[0], RewardError)
    assert "verl row 'r9': skill 'lib/b' has another text" in str(found[0])
    scores(found[1:])


def test_a_row_without_any_negative_left_is_refused_by_name(tmp_path: Path):
    graph = tmp_path / "exclusions.json"
    adjacency = {"lib/a": ["lib/b", "lib/c"], "lib/b": ["lib/a"], "lib/c": ["lib/a"]}
    edges = [{"a": "lib/a", "b": s, "kind": "copy", "cosine": 0.99, "jaccard": 0.9} for s in ("lib/b", "lib/c")]
    graph.write_text(json.dumps({"manifest": {}, "edges": edges, "adjacency": adjacency}))
    found = scorer(FakeRetriever(), exclusions_file=str(graph)).score(ROWS[:2])
    assert "verl row 'r1': no negative is left for 'lib/a' among 3 candidates" in str(found[0])
    scores(found[1:])


def test_terms_are_resolved_before_the_first_row():
    with pytest.raises(RewardError, match=r"terms\.bonus: no built-in of this name"):
        scorer(FakeRetriever(), terms={"bonus": TermConfig()})


# -- the actor, called without Ray ---------------------------------------------------------------------------------------


def actor(folder: Path, **keys: Any) -> RewardActor:
    return RewardActor(VerlRewardConfig(retriever_path=str(folder), dtype="float32", terms=TERMS, threads=0, **keys))


def test_rows_that_wait_are_scored_together_and_get_their_own_scores(tiny_folder: Path):
    rows = [row(f"rationale {i}", length=i + 1) for i in range(40)]

    async def ask() -> tuple[list[RowScore], list[RowScore], int]:
        asked = actor(tiny_folder)
        one_by_one = [await asked.score(r) for r in rows]
        before = (await asked.counts())["calls"]
        at_once = await asyncio.gather(*[asked.score(r) for r in rows])
        return one_by_one, at_once, (await asked.counts())["calls"] - before

    one_by_one, at_once, calls = asyncio.run(ask())
    assert calls <= 2  # the first row may leave alone; the others leave when it is back
    assert [s.info["response/length"] for s in at_once] == [float(i + 1) for i in range(40)]
    assert [s.total for s in at_once] == pytest.approx([s.total for s in one_by_one], abs=1e-4)
    assert len({round(s.info["retrieval/margin"], 6) for s in at_once}) > 30  # the rationales do differ


def test_a_failure_of_the_model_reaches_every_waiting_row_and_the_next_ones_are_scored(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    async def ask() -> tuple[list[Any], RowScore]:
        asked = actor(tiny_folder)
        working = asked._scorer.encode

        def broken(views: list[View], max_length: int) -> np.ndarray:
            raise RuntimeError("out of memory")

        asked._scorer.encode = broken
        failed = await asyncio.gather(*[asked.score(r) for r in ROWS], return_exceptions=True)
        asked._scorer.encode = working
        return failed, await asked.score(ROWS[0])

    failed, later = asyncio.run(ask())
    assert [str(error) for error in failed] == ["out of memory"] * len(ROWS)
    assert isinstance(later, RowScore)
