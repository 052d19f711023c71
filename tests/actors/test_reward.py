"""Scoring a batch: what is encoded, how often, and that the numbers are those of eqs. 8-15."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest

from actors.reward import EmbeddedScorer, RequestEmbedder, RewardRequest, RewardResult
from configs.schema import RewardConfig, TermConfig
from models.views import View, document_view, privileged_view, raw_view
from rewards import RewardError

DOCUMENTS = {skill_id: f"{skill_id} | does {skill_id} | body" for skill_id in ("a", "b", "c", "d", "e")}
PAPER_TERMS = {"margin": TermConfig(), "gain": TermConfig(), "length": TermConfig()}


class FakeRetriever:
    """Unit vectors near one direction, made from each text's digest; notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def vector(self, text: str) -> np.ndarray:
        values = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], dtype=np.uint8).astype(np.float64)
        values = 1.0 + 0.1 * (values / 127.5 - 1.0)
        return values / np.linalg.norm(values)

    def __call__(self, views: list[View], max_length: int) -> np.ndarray:
        self.calls.append(([v.text for v in views], max_length))
        embedded = np.stack([self.vector(v.text) for v in views]).astype(np.float32)
        embedded.flags.writeable = False  # as arrays come out of Ray's object store
        return embedded


def request(**changes: Any) -> RewardRequest:
    """Two requests whose five rollouts come mixed; the first one's target is also the second one's negative."""
    attributes: dict[str, Any] = {
        "query_ids": ["q-one", "q-two"],
        "queries": ["draw it", "fill it"],
        "positive_ids": ["a", "d"],
        "negative_ids": [["b", "c"], ["a", "e"]],
        "documents": DOCUMENTS,
        "rationales": ["draw", "fill", "", "chart", "form"],
        "lengths": [5, 128, 1, 129, 400],
        "group": [0, 1, 1, 0, 1],
    }
    return RewardRequest(**{**attributes, **changes})


class Scorer:
    """The two halves of the reward in one process: the driver's embedder, the actor's scorer."""

    def __init__(self, config: RewardConfig, retriever: FakeRetriever, exclusions: dict | None):
        self.embedder = RequestEmbedder(retriever, max_query_length=77, document_max_length=55)
        self.scorer = EmbeddedScorer(config, exclusions)
        self.ready = self.scorer.ready

    def score(self, asked: RewardRequest) -> RewardResult:
        return self.scorer.score_embedded(asked, self.embedder.embed(asked))


def scorer(retriever: FakeRetriever, exclusions: dict | None = None, **keys: Any) -> Scorer:
    return Scorer(RewardConfig(**{"terms": PAPER_TERMS, **keys}), retriever, exclusions)


def by_hand(retriever: FakeRetriever, asked: RewardRequest, negatives: list[set[str]]):
    """Margin, gain and length terms in float64, one inner product at a time."""

    def m(text: str, query: int) -> float:
        score = {s: float(retriever.vector(text) @ retriever.vector(DOCUMENTS[s])) for s in DOCUMENTS}
        return score[asked.positive_ids[query]] - max(score[s] for s in negatives[query])

    rows = []
    for rationale, tokens, query in zip(asked.rationales, asked.lengths, asked.group, strict=True):
        augmented = m(privileged_view(asked.queries[query], rationale).text, query)
        baseline = m(raw_view(asked.queries[query]).text, query)
        rows.append(
            (
                math.tanh(augmented / 0.05),
                min(1.0, max(-1.0, (augmented - baseline) / 0.05)),
                -min(0.4, 0.01 * max(0, tokens - 128)),
            )
        )
    return rows


BY_SKILL_ID = [{"b", "c", "d", "e"}, {"a", "b", "c", "e"}]


@pytest.mark.filterwarnings("error")
def test_every_term_and_the_total_equal_the_equations():
    retriever = FakeRetriever()
    result = scorer(retriever).score(request())
    rows = by_hand(retriever, request(), BY_SKILL_ID)
    for column, name in enumerate(("margin", "gain", "length")):
        assert result.terms[name].tolist() == pytest.approx([row[column] for row in rows], abs=2e-5), name
    assert result.total.tolist() == pytest.approx([sum(row) for row in rows], abs=5e-5)


def test_a_target_that_is_anothers_negative_counts_by_occurrence_where_configured():
    retriever = FakeRetriever()
    result = scorer(retriever, mask_positive="occurrence").score(request())
    rows = by_hand(retriever, request(), [{"a", "b", "c", "d", "e"}, {"a", "b", "c", "e"}])
    assert result.terms["margin"].tolist() == pytest.approx([row[0] for row in rows], abs=2e-5)
    assert max(result.terms["margin"][[0, 3]].tolist()) <= 0  # a target cannot beat itself


def test_neighbours_of_the_target_are_masked_only_where_configured():
    retriever, exclusions = FakeRetriever(), {"a": {"b", "c", "d"}}
    masked = scorer(retriever, exclusions, mask_exclusions=True).score(request())
    rows = by_hand(retriever, request(), [{"e"}, {"a", "b", "c", "e"}])
    assert masked.terms["margin"].tolist() == pytest.approx([row[0] for row in rows], abs=2e-5)
    plain = scorer(retriever, exclusions).score(request())
    rows = by_hand(retriever, request(), BY_SKILL_ID)
    assert plain.terms["margin"].tolist() == pytest.approx([row[0] for row in rows], abs=2e-5)


def test_the_views_are_those_of_the_retriever_with_their_limits():
    retriever = FakeRetriever()
    scorer(retriever).score(request())
    documents, queries = retriever.calls
    assert documents == ([document_view(DOCUMENTS[s]).text for s in ("a", "b", "c", "d", "e")], 55)
    texts, limit = queries
    assert limit == 77
    assert sorted(texts) == sorted(
        [raw_view("draw it").text, raw_view("fill it").text]
        + [privileged_view("draw it", c).text for c in ("draw", "chart")]
        + [privileged_view("fill it", c).text for c in ("fill", "", "form")]
    )


def test_the_raw_request_is_encoded_once_for_all_its_rollouts():
    retriever = FakeRetriever()
    scorer(retriever).score(request(rationales=[f"r{i}" for i in range(5)]))
    texts = [text for call, _ in retriever.calls for text in call]
    assert texts.count(raw_view("draw it").text) == texts.count(raw_view("fill it").text) == 1
    assert len(texts) == 5 + 2 + 5


def test_documents_are_encoded_once_for_the_whole_run():
    retriever = FakeRetriever()
    scoring = scorer(retriever)
    first = scoring.score(request())
    second = scoring.score(request(documents={}))
    third = scoring.score(request(negative_ids=[["b", "f"], ["a", "e"]], documents={"f": "f | new | body"}))
    encoded = [text for call, limit in retriever.calls if limit == 55 for text in call]
    assert encoded == [*DOCUMENTS.values(), "f | new | body"]
    assert second.total.tolist() == first.total.tolist()
    assert [r.metrics["retrieval/documents_encoded"] for r in (first, second, third)] == [5.0, 0.0, 1.0]


def test_a_candidate_without_a_document_is_named():
    with pytest.raises(KeyError, match=r"no document for candidate skill 'c' \(2 missing\)"):
        scorer(FakeRetriever()).score(request(documents={s: DOCUMENTS[s] for s in ("a", "b", "d")}))


def test_an_empty_rationale_is_scored_with_its_label():
    retriever = FakeRetriever()
    result = scorer(retriever).score(request())
    expected = by_hand(retriever, request(), BY_SKILL_ID)[2]
    assert result.total[2].item() == pytest.approx(sum(expected), abs=5e-5)


def test_equal_rationales_of_a_request_get_equal_rewards():
    result = scorer(FakeRetriever()).score(request(rationales=["x"] * 5, lengths=[3] * 5))
    assert len(set(result.total[[0, 3]].tolist())) == len(set(result.total[[1, 2, 4]].tolist())) == 1


def test_a_custom_terms_bad_value_names_term_and_query(monkeypatch: pytest.MonkeyPatch):
    scoring = scorer(FakeRetriever())
    terms = scoring.scorer.terms
    monkeypatch.setattr(scoring.scorer, "terms", [*terms, type(terms[0])("mine", lambda batch: [math.nan] * 5)])
    with pytest.raises(RewardError, match="'mine' gave nan for rollout 0 of query 'q-one'"):
        scoring.score(request())


def test_terms_are_resolved_before_the_first_batch():
    assert scorer(FakeRetriever()).ready() == ["margin", "gain", "length"]
    with pytest.raises(RewardError, match=r"reward\.terms\.bonus"):
        scorer(FakeRetriever(), terms={"bonus": TermConfig()})


def test_the_metrics_are_means_and_spreads_over_the_rollouts():
    retriever = FakeRetriever()
    metrics = scorer(retriever).score(request()).metrics
    rows = np.array(by_hand(retriever, request(), BY_SKILL_ID))
    for column, name in enumerate(("margin", "gain", "length")):
        assert metrics[f"reward/{name}/mean"] == pytest.approx(rows[:, column].mean(), abs=2e-5)
        assert metrics[f"reward/{name}/std"] == pytest.approx(rows[:, column].std(), abs=2e-5)
    assert metrics["reward/total/mean"] == pytest.approx(rows.sum(1).mean(), abs=5e-5)
    assert metrics["response/length_mean"] == pytest.approx((5 + 128 + 1 + 129 + 400) / 5)
    assert metrics["response/length_max"] == 400
    assert metrics["retrieval/pool_documents"] == 5
