"""A reranker step: the batch that the collator makes, and eqs. 16 and 17 with both auxiliaries against float64 references."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from configs.schema import OptimizerConfig, RerankerDataConfig, RerankerLossConfig
from data_pipeline.candidate_groups import CandidateGroup
from models.reranker import Reranker
from models.reranker_format import RerankerFormat
from objectives.engine_torch import ReplicaEngine
from objectives.reranker import (
    GroupBatch,
    GroupCollator,
    analysis_distillation,
    listwise_loss,
    reranker_backward,
    score_distillation,
    score_groups,
)

DOCUMENTS = {
    "chart": "chart | Makes charts | Draws bars and lines.",
    "form": "form | Fills forms | Reads the fields of a PDF form and fills them from a table.",
    "sql": "sql | Tunes queries | Finds the slow one.",
    "notes": "notes | Summarizes a meeting | Lists decisions and tasks in a table.",
}
GROUPS = [
    CandidateGroup("g0", "single", "draw my table", "The user needs charts.", ("sql", "chart", "form"), (0, 1, 0)),
    CandidateGroup("g1", "multi", "form and notes", "", ("form", "sql", "notes", "chart"), (1, 0, 0.5, 0)),
    CandidateGroup("g2", "single", "why is it slow? " * 2, "The user needs slow SQL found.", ("notes", "sql"), (0, 2)),
]


@pytest.fixture
def reranker(tiny_folder: Path) -> Reranker:
    return Reranker.load(tiny_folder, form=RerankerFormat(yes="y", no="n", max_length=1024)).eval()


def config_of(**options) -> RerankerLossConfig:
    return RerankerLossConfig(**{"lambda_distill": 1.5, "lambda_lm": 0.3, "micro_batch_tokens": 100_000, **options})


def collate(
    reranker: Reranker, loss: RerankerLossConfig, groups: list[CandidateGroup] = GROUPS, **data: Any
) -> GroupBatch:
    settings = RerankerDataConfig(**data)
    return GroupCollator(reranker.pairs, DOCUMENTS.__getitem__, settings, loss)(groups)


def engine_of(reranker: Reranker) -> ReplicaEngine:
    return ReplicaEngine(reranker, OptimizerConfig())


def gradients(reranker: Reranker) -> dict[str, torch.Tensor]:
    out = {name: p.grad.clone() for name, p in reranker.model.named_parameters() if p.grad is not None}
    reranker.zero_grad(set_to_none=True)
    return out


# -- the equations --------------------------------------------------------------------------------------------------------


def test_weights_are_normalized_within_their_group():
    # softmax of ln 1, ln 2, ln 5 is 1/8, 2/8, 5/8; weights 3 and 1 become 3/4 and 1/4
    scores = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log()
    loss = listwise_loss(scores, torch.tensor([3.0, 0.0, 1.0], dtype=torch.float64))
    assert loss.item() == pytest.approx(-(0.75 * math.log(1 / 8) + 0.25 * math.log(5 / 8)))


def test_one_positive_gives_the_cross_entropy_of_skill2query():
    scores = torch.tensor([0.3, -1.2, 0.9])
    expected = torch.nn.functional.cross_entropy(scores[None] / 0.5, torch.tensor([2]))
    assert listwise_loss(scores, torch.tensor([0.0, 0.0, 7.0]), tau=0.5).item() == pytest.approx(expected.item())


def test_the_gradient_of_the_loss_is_softmax_minus_target():
    scores = torch.tensor([0.3, -1.2, 0.9], dtype=torch.float64, requires_grad=True)
    listwise_loss(scores, torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)).backward()
    expected = torch.softmax(scores.detach(), 0) - torch.tensor([2 / 3, 1 / 3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(scores.grad, expected)


def test_distillation_is_one_minus_the_cosine_and_moves_the_query_alone():
    query = torch.tensor([[0.6, 0.8], [1.0, 0.0]], requires_grad=True)
    analysis = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    loss = analysis_distillation(query, analysis)
    assert loss.item() == pytest.approx((1 - 0.6) + (1 - 0.0))
    loss.backward()
    torch.testing.assert_close(query.grad, -analysis.detach())
    assert analysis.grad is None


def test_score_distillation_is_the_kl_from_the_scores_that_saw_the_rationale():
    scores = torch.tensor([0.2, -0.4, 1.0], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    p, q = torch.softmax(teacher / 2, 0).tolist(), torch.softmax(scores / 2, 0).tolist()
    loss = score_distillation(scores, teacher, tau=2.0)
    assert loss.item() == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    loss.backward()
    assert teacher.grad is None


# -- the collator ---------------------------------------------------------------------------------------------------------


def test_groups_without_a_rationale_have_no_part_in_the_auxiliaries(reranker: Reranker):
    batch = collate(reranker, config_of())
    assert batch.explained == [0, 2]
    assert [len(group) for group in batch.pairs] == [3, 4, 2]
    assert batch.weights == [[0, 1, 0], [1, 0, 0.5, 0], [0, 2]]
    assert len(batch.queries) == len(batch.analyses) == len(batch.prompts) == len(batch.rationales) == 2
    assert batch.privileged == []


def test_the_auxiliaries_see_the_query_prefix(reranker: Reranker):
    batch = collate(reranker, config_of())
    decode = reranker.tokenizer.hf.decode
    prefix = reranker.form.head + "draw my table"
    assert decode(batch.queries[0]) == prefix
    assert decode(batch.analyses[0]) == prefix + "\nQuery analysis:The user needs charts."
    assert decode(batch.prompts[0]) == prefix + "\nQuery analysis:"
    assert decode(batch.rationales[0]) == "The user needs charts.<|im_end|>"


def test_a_rationale_is_cut_and_ends_with_its_end_token(reranker: Reranker):
    batch = collate(reranker, config_of(), rationale_max_length=5)
    assert [len(r) for r in batch.rationales] == [5, 5]
    assert {r[-1] for r in batch.rationales} == {reranker.tokenizer.eos_id}
    assert len(batch.analyses[0]) == len(batch.prompts[0]) + 4


def test_without_auxiliaries_nothing_is_tokenized_for_them(reranker: Reranker):
    assert collate(reranker, config_of(lambda_distill=0.0, lambda_lm=0.0)).explained == []


def test_only_max_candidates_take_part_positives_first(reranker: Reranker):
    batch = collate(reranker, config_of(), max_candidates=2)
    assert batch.weights == [[0, 1], [1, 0.5], [0, 2]]


# -- one update -----------------------------------------------------------------------------------------------------------


def reference(
    reranker: Reranker, batch: GroupBatch, config: RerankerLossConfig, groups: list[CandidateGroup] = GROUPS
) -> dict[str, torch.Tensor]:
    """The terms by the equations: one unpadded sequence at a time, everything after the transformer in float64."""
    yes, no = reranker.answer_ids
    head = reranker.model.lm_head.weight.double()

    def hidden(ids: list[int]) -> torch.Tensor:
        return reranker.model.base_model(torch.tensor([ids])).last_hidden_state[0].double()

    def score(ids: list[int]) -> torch.Tensor:
        return hidden(ids)[-1] @ (head[yes] - head[no])

    scores = [torch.stack([score(pair) for pair in group]) for group in batch.pairs]
    rank = torch.zeros((), dtype=torch.float64)
    for row, weights in zip(scores, batch.weights, strict=True):
        target = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        rank = rank - (target * torch.log_softmax(row / config.tau, 0)).sum()
    terms = {"loss/rank": rank / len(groups)}
    explained = [row for row, group in enumerate(groups) if group.query_capability]
    if explained and config.lambda_distill and config.distill == "cosine":
        cosines = []
        for query, analysis in zip(batch.queries, batch.analyses, strict=True):
            with torch.no_grad():
                target = hidden(analysis)[-1]
            cosines.append(torch.cosine_similarity(hidden(query)[-1], target, dim=0))
        terms["loss/distill"] = torch.stack([1 - c for c in cosines]).mean()
    if explained and config.lambda_distill and config.distill == "kl":
        parts = []
        for row, group in zip(explained, batch.privileged, strict=True):
            with torch.no_grad():
                teacher = torch.stack([score(pair) for pair in group]).div(config.tau).softmax(0)
            parts.append((teacher * (teacher.log() - torch.log_softmax(scores[row] / config.tau, 0))).sum())
        terms["loss/distill"] = torch.stack(parts).mean()
    if explained and config.lambda_lm:
        picked = []
        for prompt, rationale in zip(batch.prompts, batch.rationales, strict=True):
            logits = hidden([*prompt, *rationale])[len(prompt) - 1 : -1] @ head.T
            picked.append(torch.log_softmax(logits, -1)[range(len(rationale)), rationale])
        terms["loss/lm"] = -torch.cat(picked).mean()
    weighted = config.lambda_distill * terms.get("loss/distill", 0.0) + config.lambda_lm * terms.get("loss/lm", 0.0)
    return {"loss/total": terms["loss/rank"] + weighted, **terms}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"distill": "kl"},
        {"tau": 0.5},
        {"lambda_distill": 0.0},
        {"lambda_lm": 0.0},
        {"lambda_distill": 0.0, "lambda_lm": 0.0},
    ],
    ids=str,
)
def test_terms_and_gradients_equal_the_equations(reranker: Reranker, options: dict):
    config = config_of(**options)
    batch = collate(reranker, config)
    expected = reference(reranker, batch, config)
    expected["loss/total"].backward()
    expected_gradients = gradients(reranker)
    terms = reranker_backward(engine_of(reranker), batch, config)
    accuracy = terms.pop("train/accuracy")
    assert terms == pytest.approx({k: v.item() for k, v in expected.items()}, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(gradients(reranker), expected_gradients, rtol=1e-4, atol=1e-5)
    best = [[int(s.argmax()) for s in score_groups(engine_of(reranker), batch, 0)][row] for row in range(3)]
    hits = [batch.weights[row][column] > 0 for row, column in enumerate(best)]
    assert accuracy == pytest.approx(sum(hits) / 3)


@pytest.mark.parametrize("distill", ["cosine", "kl"])
@pytest.mark.parametrize(
    "pieces",
    [{"window_groups": 3}, {"micro_batch_tokens": 1}, {"micro_batch_tokens": 600, "gradient_cache": False}],
    ids=str,
)
def test_windows_and_micro_batches_change_neither_terms_nor_gradients(reranker: Reranker, distill: str, pieces: dict):
    config = config_of(distill=distill)
    batch = collate(reranker, config)
    whole = reranker_backward(engine_of(reranker), batch, config)
    expected = gradients(reranker)
    cut = reranker_backward(engine_of(reranker), batch, config_of(distill=distill, **pieces))
    assert cut == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(gradients(reranker), expected, rtol=1e-5, atol=1e-5)


def test_a_batch_without_rationales_has_the_ranking_loss_alone(reranker: Reranker):
    config = config_of()
    terms = reranker_backward(engine_of(reranker), collate(reranker, config, GROUPS[1:2]), config)
    assert set(terms) == {"loss/total", "loss/rank", "train/accuracy"}
    assert terms["loss/total"] == terms["loss/rank"]


def test_accumulated_halves_with_the_batchs_counts_are_the_whole(reranker: Reranker):
    """Groups weigh 1 / |G| of their own batch: two batches of one group each weigh what they do in one batch of two, halved."""
    config = config_of(lambda_distill=0.0, lambda_lm=0.0)
    reranker_backward(engine_of(reranker), collate(reranker, config, GROUPS[:2]), config)
    whole = gradients(reranker)
    for group in GROUPS[:2]:
        reranker_backward(engine_of(reranker), collate(reranker, config, [group]), config)
    halves = {name: gradient / 2 for name, gradient in gradients(reranker).items()}
    torch.testing.assert_close(halves, whole, rtol=1e-5, atol=1e-5)


def break_weights(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        reranker.model.base_model.norm.weight.fill_(float("nan"))


def break_lm(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    original = reranker.response_log_probs
    broken = lambda *args: tuple(t * float("nan") for t in original(*args))  # noqa: E731
    monkeypatch.setattr(reranker, "response_log_probs", broken, raising=False)


def break_embedding(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    original = reranker.embed_sequences
    monkeypatch.setattr(reranker, "embed_sequences", lambda *args: original(*args) * float("nan"), raising=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_weights, "the ranking loss is nan"),
        (break_embedding, "the distillation loss is nan"),
        (break_lm, "the rationale LM loss is nan"),
    ],
)
def test_a_loss_that_is_not_a_number_raises_and_leaves_no_gradient(
    reranker: Reranker, monkeypatch: pytest.MonkeyPatch, damage: Callable, message: str
):
    config = config_of()
    batch = collate(reranker, config)
    damage(reranker, monkeypatch)
    with pytest.raises(FloatingPointError, match=message):
        reranker_backward(engine_of(reranker), batch, config)
    assert gradients(reranker) == {}


def test_scores_of_groups_are_those_of_the_reranker(reranker: Reranker):
    batch = collate(reranker, config_of())
    found = score_groups(engine_of(reranker), batch, 500)
    for group, scores in zip(GROUPS, found, strict=True):
        expected = reranker.score(group.query, [DOCUMENTS[s] for s in group.skill_ids])
        torch.testing.assert_close(scores, torch.from_numpy(expected), rtol=0, atol=1e-5)
